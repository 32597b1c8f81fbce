// What comes in by a connection, and the memory that it may write to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "transport/tcp/frame.h"

namespace tutti::tcp {

/// Memory that peers may write into; a region is its number. Not thread-safe.
class ExposedMemory {
 public:
  std::uint32_t add(std::byte* base, std::size_t bytes);
  void remove(const std::byte* base);
  /// Null where [at, at + bytes) is not exposed.
  std::byte* place(std::uint32_t region, std::uint64_t at, std::uint64_t bytes) const;

 private:
  struct Region {
    std::byte* base = nullptr;  // null: none
    std::size_t bytes = 0;
  };
  std::vector<Region> regions_;
};

/// Not thread-safe.
class Inbox {
 public:
  /// Reads what has come, and writes it where it belongs. True: something had. Errors, after which there is nothing
  /// more to be had: peer_died (the connection has ended), system (what came makes no sense).
  Result<bool> receive(int fd, const ExposedMemory& memory);

 private:
  static constexpr std::size_t kBuffer = std::size_t{16} << 10;

  Status unpack(const ExposedMemory& memory);

  // Of a put whose bytes have not all come.
  std::byte* to_ = nullptr;
  std::size_t left_ = 0;
  // What came with it or behind it.
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kBuffer);
  std::size_t begin_ = 0, end_ = 0;
};

}  // namespace tutti::tcp
