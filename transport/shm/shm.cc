#include "transport/shm/shm.h"

#include <poll.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/pages.h"
#include "transport/shm/cross_memory.h"

namespace tutti::transport {

namespace {

struct Retired {
  Arena* arena;
  std::size_t offset;
  std::vector<std::shared_ptr<const ShmProcess>> processes;  // by rank
  std::function<bool()> gone;                                // null: no other condition
};
struct Retirement {
  std::mutex mutex;
  std::vector<Retired> windows;  // guarded by mutex
};

// Never destroyed: a communicator may live as long as the process.
Retirement& retirement() {
  static Retirement& all = *new Retirement;
  return all;
}

DetachedRanks& detached_of(std::byte* window) { return reinterpret_cast<Board*>(window)->detached; }

void sweep(Arena& arena) {
  Retirement& all = retirement();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.windows, [&](const Retired& window) {
    if (window.arena != &arena) return false;  // inherited by a fork
    std::byte* base = arena.base() + window.offset;
    for (std::size_t r = 0; r < window.processes.size(); ++r) {
      if (window.processes[r] == nullptr) continue;
      if (!detached_of(base).has(static_cast<int>(r)) && !has_ended(*window.processes[r])) return false;
    }
    if (window.gone != nullptr && !window.gone()) return false;
    Arena::deallocate(base);
    return true;
  });
}

}  // namespace

bool has_ended(const ShmProcess& process) {
  if (process.pidfd < 0) return false;
  pollfd watched{process.pidfd, POLLIN, 0};
  return poll(&watched, 1, 0) > 0;  // A signal may interrupt the call, which tells nothing; the caller asks again.
}

std::size_t make_window_in(Arena& arena, std::size_t bytes, Status& status) {
  sweep(arena);
  const Result<std::byte*> memory = arena.allocate(bytes);
  status = memory.status();
  return memory.ok() ? static_cast<std::size_t>(memory.value() - arena.base()) : 0;
}

void retire_window(Arena& arena, std::size_t offset, std::vector<std::shared_ptr<const ShmProcess>> processes,
                   std::function<bool()> gone) {
  {
    Retirement& all = retirement();
    const std::lock_guard lock(all.mutex);
    all.windows.push_back({&arena, offset, std::move(processes), std::move(gone)});
  }
  sweep(arena);
}

ShmTransport::ShmTransport(int rank, const WindowSizes& sizes, Arena& own,
                           std::vector<std::shared_ptr<const ShmProcess>> processes, std::vector<std::size_t> offsets,
                           bool cross_memory)
    : rank_(rank),
      sizes_(sizes),
      capabilities_{.load_store = true, .any_pointer = false, .cross_memory = cross_memory},
      own_(own),
      processes_(std::move(processes)),
      offsets_(std::move(offsets)) {
  TUTTI_CHECK_EQ(static_cast<int>(processes_.size()), sizes.ranks);
  for (std::size_t r = 0; r < processes_.size(); ++r) {
    if (processes_[r] == nullptr) {
      windows_.emplace_back();
      continue;
    }
    std::byte* base = static_cast<int>(r) == rank_ ? own_.base() : processes_[r]->arena->base();
    windows_.push_back(window_at(base + offsets_[r], sizes_));
  }
}

ShmTransport::~ShmTransport() {
  for (const Window& window : windows_) {
    if (window.board != nullptr) window.board->detached.add(rank_);
  }
  retire_window(own_, offsets_[static_cast<std::size_t>(rank_)], std::move(processes_), std::move(gone_));
}

void ShmTransport::warm() {
  const std::uintptr_t page = page_bytes();
  for (const Window& window : windows_) {
    if (window.scratch == nullptr) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(window.scratch) / page * page;
    // Fails on kernels before 5.14; then the pages come one by one.
    (void)madvise(reinterpret_cast<void*>(begin), reinterpret_cast<std::uintptr_t>(window.mailboxes) - begin,
                  MADV_POPULATE_WRITE);
  }
}

Handle ShmTransport::handle_of(const void* address, std::size_t bytes) const {
  if (const std::optional<std::size_t> offset = own_.offset_of(address, bytes)) return *offset | kRegistered;
  return reinterpret_cast<Handle>(address);
}

std::byte* ShmTransport::reach(int rank, Handle handle) const {
  const std::size_t offset = handle & ~kRegistered;
  if (rank == rank_) return is_registered(handle) ? own_.base() + offset : reinterpret_cast<std::byte*>(handle);
  const ArenaMapping& arena = *processes_[static_cast<std::size_t>(rank)]->arena;
  return is_registered(handle) && offset < arena.bytes() ? arena.base() + offset : nullptr;
}

bool ShmTransport::alive(int rank) const {
  return rank == rank_ || !has_ended(*processes_[static_cast<std::size_t>(rank)]);
}

Status ShmTransport::read(int rank, Handle from, std::size_t offset, void* to, std::size_t bytes) {
  return cross_memory_read(processes_[static_cast<std::size_t>(rank)]->pid, from + offset, to, bytes);
}

Status ShmTransport::write(int rank, const void* from, Handle to, std::size_t offset, std::size_t bytes) {
  return cross_memory_write(processes_[static_cast<std::size_t>(rank)]->pid, from, to + offset, bytes);
}

}  // namespace tutti::transport
