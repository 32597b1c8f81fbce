// A whole file, read-only, as memory: pages are read when they are touched, and files may be larger than the memory.
//
//   const MappedFile file("tokens", path);
//   file.bytes()[1024];
//
// Errors: tutti::Error, "<who>: '<path>': <what is wrong>"; invalid_argument when it cannot be opened or is no file.
// Limits: the file must not become shorter while this lives; touching what was cut off ends the process (SIGBUS).
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace tutti::training {

class MappedFile {
 public:
  MappedFile(std::string who, std::string path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  std::span<const std::uint8_t> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  /// Throws invalid_argument about this file.
  [[noreturn]] void fail(const std::string& what) const;

 private:
  std::string who_, path_;
  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Writes the parts, one after another, as the whole of the file. Errors: as above, code `system`.
void write_file(const std::string& who, const std::string& path,
                std::initializer_list<std::span<const std::byte>> parts);

}  // namespace tutti::training
