#include "transport/shm/arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/even_share.h"
#include "base/pages.h"
#include "transport/shm/arena_size.h"
#include "transport/sockets/fd.h"

namespace tutti::transport {

namespace {

constexpr std::size_t kSmallAlignment = 64;

std::mutex process_mutex;
Arena* process_arena = nullptr;  // guarded by process_mutex

}  // namespace

Result<std::shared_ptr<ArenaMapping>> ArenaMapping::map(int descriptor, std::size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  if (base == MAP_FAILED) {
    return system_error(
        fmt::format("cannot map {} bytes of shared memory (ulimit -v; TUTTI_ARENA sets the size)", bytes), errno);
  }
  return std::shared_ptr<ArenaMapping>(new ArenaMapping(static_cast<std::byte*>(base), bytes));
}

ArenaMapping::~ArenaMapping() { munmap(base_, bytes_); }

Arena::Arena(int descriptor, std::shared_ptr<ArenaMapping> mapping, std::string why)
    : descriptor_(descriptor),
      owner_(getpid()),
      mapping_(std::move(mapping)),
      why_(std::move(why)),
      free_{{0, mapping_->bytes()}} {}

Result<Arena*> Arena::process() {
  // Never destroyed: buffers may be released by static destructors. A forked child makes an arena of its own, since the
  // one that it inherited goes on being its parent's.
  const std::lock_guard lock(process_mutex);
  if (process_arena != nullptr && process_arena->owner_ == getpid()) return process_arena;
  TUTTI_ASSIGN(process_arena, create());
  return process_arena;
}

void Arena::deallocate(std::byte* pointer) {
  Arena* arena = nullptr;
  {
    const std::lock_guard lock(process_mutex);
    arena = process_arena;
  }
  if (arena != nullptr && arena->owner_ == getpid() && arena->offset_of(pointer, 1)) arena->release(pointer);
}

Result<Arena*> Arena::create() {
  TUTTI_ASSIGN(const ArenaSize size, arena_size(arena_limits()));
  sockets::Fd file(memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return system_error("cannot create shared memory (memfd_create)", errno);
  if (ftruncate(file.get(), static_cast<off_t>(size.bytes)) != 0) {
    return system_error(fmt::format("cannot size shared memory to {} bytes", size.bytes), errno);
  }
  // A peer must not be able to shrink what we then touch.
  fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  TUTTI_ASSIGN(std::shared_ptr<ArenaMapping> mapping, ArenaMapping::map(file.get(), size.bytes));
  return new Arena(file.release(), std::move(mapping), size.why);
}

Result<std::byte*> Arena::allocate(std::size_t bytes) {
  const std::size_t alignment = bytes >= page_bytes() ? page_bytes() : kSmallAlignment;
  const std::lock_guard lock(mutex_);
  const bool possible = bytes <= this->bytes();  // else rounding up could pass the end of a size_t
  const std::size_t size = possible ? round_up(bytes == 0 ? 1 : bytes, alignment) : 0;
  for (auto it = free_.begin(); possible && it != free_.end(); ++it) {
    const auto [offset, length] = *it;
    const std::size_t begin = round_up(offset, alignment);
    if (begin + size > offset + length) continue;
    free_.erase(it);
    if (begin > offset) free_.emplace(offset, begin - offset);
    if (begin + size < offset + length) free_.emplace(begin + size, offset + length - begin - size);
    used_.emplace(begin, size);
    allocated_ += size;
    return base() + begin;  // zero: the file began so, and deallocate() leaves it so
  }
  return Status(Code::memory_limit,
                fmt::format("allocate({}) finds no room in the registered arena of {} bytes, of which {} are in use; "
                            "its size comes from {} (TUTTI_ARENA sets another)",
                            bytes, this->bytes(), allocated_, why_));
}

void Arena::release(std::byte* pointer) {
  std::size_t begin = static_cast<std::size_t>(pointer - base());
  std::size_t end = begin;
  {
    const std::lock_guard lock(mutex_);
    const auto used = used_.find(begin);
    TUTTI_CHECK(used != used_.end());
    end += used->second;
    allocated_ -= used->second;
    used_.erase(used);
  }
  // Neither used nor free: the block is not found, and its memory is not given away.
  {
    const std::lock_guard lock(watch_mutex_);
    for (const auto& [watcher, ended] : watchers_) ended(pointer);
  }
  const std::lock_guard lock(mutex_);
  // Pages that held only this block go back, and read as zero when they are used again. A page shared with small
  // neighbours stays, so a later page-aligned block must not find it dirty: clear it by hand.
  std::size_t hole_begin = round_up(begin, page_bytes());
  std::size_t hole_end = end / page_bytes() * page_bytes();
  if (hole_begin < hole_end) {
    const int punched = fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                  static_cast<off_t>(hole_begin), static_cast<off_t>(hole_end - hole_begin));
    if (punched != 0) std::memset(base() + hole_begin, 0, hole_end - hole_begin);  // what is free must be zero
  } else {
    hole_begin = hole_end = end;
  }
  std::memset(base() + begin, 0, hole_begin - begin);
  std::memset(base() + hole_end, 0, end - hole_end);

  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == end) {
    end += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      begin = previous->first;
      free_.erase(previous);
    }
  }
  free_.emplace(begin, end - begin);
}

std::optional<std::size_t> Arena::offset_of(const void* address, std::size_t size) const {
  const auto* p = static_cast<const std::byte*>(address);
  if (p < base() || p + size > base() + bytes()) return std::nullopt;
  return static_cast<std::size_t>(p - base());
}

Arena::Block Arena::block_of(const void* address, std::size_t size) const {
  const std::optional<std::size_t> offset = offset_of(address, size);
  if (!offset) return {};
  const std::lock_guard lock(mutex_);
  auto used = used_.upper_bound(*offset);
  if (used == used_.begin()) return {};
  --used;
  if (*offset + size > used->first + used->second) return {};
  return {base() + used->first, used->second};
}

void Arena::watch(const void* watcher, std::function<void(std::byte* base)> ended) {
  const std::lock_guard lock(watch_mutex_);
  watchers_[watcher] = std::move(ended);
}

void Arena::unwatch(const void* watcher) {
  const std::lock_guard lock(watch_mutex_);
  watchers_.erase(watcher);
}

std::size_t Arena::allocated() const {
  const std::lock_guard lock(mutex_);
  return allocated_;
}

}  // namespace tutti::transport
