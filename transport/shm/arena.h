// The registered memory of a process: one large, sparse memory file that every peer on the host maps once. Whatever is
// allocated in it is reached by all of them at (their mapping of it) + offset, with no exchange per buffer. Nothing
// appears in a file system, and the pages live until the last process that maps them lets go.
//
// Threads: all functions may be called from any thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/status.h"
#include "transport/wire/blocks.h"

namespace tutti::transport {

/// A mapping of a process's arena; unmapped with the object.
class ArenaMapping {
 public:
  /// Maps `bytes` of the file, which may be closed then.
  static Result<std::shared_ptr<ArenaMapping>> map(int descriptor, std::size_t bytes);
  ~ArenaMapping();
  ArenaMapping(const ArenaMapping&) = delete;
  ArenaMapping& operator=(const ArenaMapping&) = delete;

  std::byte* base() const { return base_; }
  std::size_t bytes() const { return bytes_; }

 private:
  ArenaMapping(std::byte* base, std::size_t bytes) : base_(base), bytes_(bytes) {}
  std::byte* base_;
  std::size_t bytes_;
};

class Arena final : public Blocks {
 public:
  /// This process's arena; made at the first use. How large it is: arena_size.h.
  static Result<Arena*> process();

  int descriptor() const { return descriptor_; }
  std::size_t bytes() const { return mapping_->bytes(); }
  std::byte* base() const { return mapping_->base(); }
  /// Returns which limit its size follows.
  const std::string& why() const { return why_; }

  /// Zero-filled; from a page on page-aligned, 64-byte aligned below. Errors: memory_limit.
  Result<std::byte*> allocate(std::size_t bytes);
  /// REQUIRES: from allocate(), once. Whole pages go back to the system. In a forked child, what the parent allocated
  /// is left alone.
  static void deallocate(std::byte* pointer);
  /// The offset of [address, address + bytes) when it lies in the arena.
  std::optional<std::size_t> offset_of(const void* address, std::size_t bytes) const;
  std::size_t allocated() const;

  Block block_of(const void* address, std::size_t bytes) const override;
  void watch(const void* watcher, std::function<void(std::byte* base)> ended) override;
  void unwatch(const void* watcher) override;

 private:
  static Result<Arena*> create();
  void release(std::byte* pointer);
  Arena(int descriptor, std::shared_ptr<ArenaMapping> mapping, std::string why);

  const int descriptor_;
  const pid_t owner_;
  const std::shared_ptr<ArenaMapping> mapping_;
  const std::string why_;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;                          // offset -> bytes; guarded by mutex_
  std::map<std::size_t, std::size_t> used_;                          // guarded by mutex_
  std::size_t allocated_ = 0;                                        // guarded by mutex_
  std::mutex watch_mutex_;                                           // never taken with mutex_ held
  std::map<const void*, std::function<void(std::byte*)>> watchers_;  // guarded by watch_mutex_
};

}  // namespace tutti::transport
