#include "training/data/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "tutti/tutti.hpp"

namespace tutti::training {

MappedFile::MappedFile(std::string who, std::string path) : who_(std::move(who)), path_(std::move(path)) {
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not block
  if (descriptor < 0) fail(fmt::format("cannot be opened: {}", std::strerror(errno)));
  struct stat about = {};
  const bool is_file = ::fstat(descriptor, &about) == 0 && S_ISREG(about.st_mode);
  void* memory = nullptr;
  int error = 0;
  if (is_file && about.st_size > 0) {
    size_ = static_cast<std::size_t>(about.st_size);
    memory = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) error = errno;
  }
  ::close(descriptor);  // the mapping stays
  if (!is_file) fail("is not a file");
  if (error != 0) fail(fmt::format("cannot be mapped: {}", std::strerror(error)));
  data_ = static_cast<const std::uint8_t*>(memory);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : who_(std::move(other.who_)),
      path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::uint8_t*>(data_), size_);
}

void MappedFile::fail(const std::string& what) const {
  throw Error(Code::invalid_argument, fmt::format("{}: '{}': {}", who_, path_, what));
}

void write_file(const std::string& who, const std::string& path,
                std::initializer_list<std::span<const std::byte>> parts) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  for (const std::span<const std::byte> part : parts) {
    out.write(reinterpret_cast<const char*>(part.data()), static_cast<std::streamsize>(part.size()));
  }
  out.close();
  if (!out) throw Error(Code::system, fmt::format("{}: '{}': cannot be written", who, path));
}

}  // namespace tutti::training
