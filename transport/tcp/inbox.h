// What comes in by a connection, and is written to memory that is exposed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "transport/exposed.h"
#include "transport/tcp/frame.h"

namespace tutti::tcp {

using transport::ExposedMemory;

/// Not thread-safe.
class Inbox {
 public:
  /// Reads what has come, and writes it where it belongs. True: something had. Errors, after which there is nothing
  /// more to be had: peer_died (the connection has ended), system (what came makes no sense).
  Result<bool> receive(int fd, const ExposedMemory& memory);

 private:
  static constexpr std::size_t kBuffer = std::size_t{16} << 10;

  Status unpack(const ExposedMemory& memory);

  // Of a put whose bytes have not all come. Where they go is asked each time: the memory may be exposed no longer.
  std::uint32_t region_ = 0;
  std::uint64_t at_ = 0;
  std::size_t left_ = 0;
  // What came with it or behind it.
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kBuffer);
  std::size_t begin_ = 0, end_ = 0;
};

}  // namespace tutti::tcp
