// What a connection has still to send.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/tcp/frame.h"
#include "transport/wire/sources.h"

namespace tutti::tcp {

using transport::Source;

/// Not thread-safe.
class Outbox {
 public:
  bool empty() const { return parts_.empty(); }

  void signal(std::uint32_t region, std::size_t at, std::uint64_t count, std::uint64_t tag);
  /// Copies the bytes.
  void put(std::uint32_t region, std::size_t at, const void* from, std::size_t bytes);
  /// Reads them when they are sent, and then appends `source` to what send() has completed.
  void large_put(std::uint32_t region, std::size_t at, const void* from, std::size_t bytes, Source& source);

  /// Offers the socket what there is (of a long queue a part). Returns the bytes that it took, or -1 and errno, which
  /// is EAGAIN when it took nothing because it is full.
  std::ptrdiff_t send(int fd, std::vector<Source*>& completed);
  /// Copies what has not been sent of that put, and appends `source` to what it has completed. Returns false if
  /// there is no memory.
  bool copy(const Source& source, std::vector<Source*>& completed);
  /// Forgets everything.
  void clear(std::vector<Source*>& completed);

 private:
  /// So many bytes of text_, and behind them those at `from`.
  struct Part {
    std::size_t text = 0;
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
    Source* source = nullptr;  // null: `from` is in `copied`
    std::unique_ptr<std::byte[]> copied = nullptr;
  };

  void append(const void* from, std::size_t bytes);
  void sent(std::size_t bytes, std::vector<Source*>& completed);

  std::vector<std::byte> text_;
  std::size_t text_begin_ = 0;  // of what has not been sent
  std::vector<Part> parts_;
};

}  // namespace tutti::tcp
