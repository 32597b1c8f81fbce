// Memory of this process that comes and goes in blocks, whose end is reported. So a wire may keep what it knows of a
// block (that it is registered) for as long as the block lives. The end of other memory is not reported.
//
// Threads: all functions may be called from any thread.
#pragma once

#include <cstddef>
#include <functional>

namespace tutti::transport {

class Blocks {
 public:
  struct Block {
    std::byte* base = nullptr;  // null: there is none
    std::size_t bytes = 0;
  };
  virtual ~Blocks() = default;

  /// Returns the block that has all of [address, address + bytes); none once its end has been reported.
  virtual Block block_of(const void* address, std::size_t bytes) const = 0;
  /// Calls `ended` with the base of each block that ends, on the thread that ends it, before its memory is reused.
  /// REQUIRES: `ended` ends no block, and calls neither this nor unwatch().
  virtual void watch(const void* watcher, std::function<void(std::byte* base)> ended) = 0;
  /// Returns when the watcher is not called any more.
  virtual void unwatch(const void* watcher) = 0;
};

}  // namespace tutti::transport
