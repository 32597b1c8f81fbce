// What comes in by a connection, and is written to memory that is exposed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/redirects.h"
#include "transport/wire/exposed.h"

namespace tutti::tcp {

using transport::ExposedMemory;

/// Not thread-safe.
class Inbox {
 public:
  /// Reads what has come, and writes it where it belongs, or to where it is redirected. Returns true if anything had.
  /// Errors, after which there is nothing more to be had: peer_died (the connection has ended), system (what came makes
  /// no sense).
  Result<bool> receive(int fd, const ExposedMemory& memory, Redirects& redirects);

 private:
  static constexpr std::size_t kBuffer = std::size_t{16} << 10;

  Status unpack(const ExposedMemory& memory, Redirects& redirects);
  std::byte* rest_of_put(const ExposedMemory& memory, Redirects& redirects) const;

  // Of a put whose bytes have not all come. Where they go is asked each time: the memory may be exposed no longer.
  std::uint32_t region_ = 0;
  std::uint64_t at_ = 0;
  std::size_t left_ = 0;
  const std::byte* redirected_slot_ = nullptr;  // the slot that it was sent to, if it goes elsewhere,
  std::size_t redirected_bytes_ = 0;            // and how much has
  bool large_ = false;  // the last put was, and the next may be: its bytes need not come by the buffer
  // What came with it or behind it.
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kBuffer);
  std::size_t begin_ = 0, end_ = 0;
};

}  // namespace tutti::tcp
