#include "transport/shm/shm.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/uio.h>

#include <cerrno>
#include <mutex>

#include "base/check.h"

namespace tutti::transport {

namespace {

struct Retired {
  std::size_t offset;
  int ranks;
};
std::mutex retired_mutex;
std::vector<Retired> retired;  // guarded by retired_mutex

std::atomic<std::uint32_t>& leavers_of(std::byte* window) { return reinterpret_cast<Board*>(window)->pulse.leavers; }

void sweep(Arena& arena) {
  const std::lock_guard lock(retired_mutex);
  std::erase_if(retired, [&](const Retired& window) {
    std::byte* base = arena.base() + window.offset;
    if (leavers_of(base).load(std::memory_order_acquire) < static_cast<std::uint32_t>(window.ranks)) return false;
    Arena::deallocate(base);
    return true;
  });
}

Status attach_error(const char* what, pid_t pid) {
  const int error = errno;
  if (error == ESRCH) return {Code::peer_died, fmt::format("pid {} has ended", pid)};
  return system_error(fmt::format("cannot {} memory of pid {}", what, pid), error);
}

}  // namespace

std::size_t make_window_in(Arena& arena, const WindowSizes& sizes, Status& status) {
  sweep(arena);
  const Result<std::byte*> memory = arena.allocate(sizes.bytes());
  status = memory.status();
  return memory.ok() ? static_cast<std::size_t>(memory.value() - arena.base()) : 0;
}

void retire_window(std::size_t offset, int ranks) {
  const std::lock_guard lock(retired_mutex);
  retired.push_back({offset, ranks});
}

ShmTransport::ShmTransport(int rank, const WindowSizes& sizes, Arena& own,
                           std::vector<std::shared_ptr<const ShmProcess>> processes, std::vector<std::size_t> offsets,
                           bool cross_memory)
    : rank_(rank),
      sizes_(sizes),
      capabilities_{.name = "shm",
                    .load_store = true,
                    .any_pointer = false,
                    .cross_memory = cross_memory,
                    .alpha_us = 0.15,
                    .gb_per_s = 10.0},
      own_(own),
      processes_(std::move(processes)),
      offsets_(std::move(offsets)) {
  TUTTI_CHECK_EQ(static_cast<int>(processes_.size()), sizes.ranks);
  for (std::size_t r = 0; r < processes_.size(); ++r) {
    std::byte* base = static_cast<int>(r) == rank_ ? own_.base() : processes_[r]->arena->base();
    windows_.push_back(window_at(base + offsets_[r], sizes_));
  }
}

ShmTransport::~ShmTransport() {
  for (const Window& window : windows_) window.board->pulse.leavers.fetch_add(1, std::memory_order_release);
  retire_window(offsets_[static_cast<std::size_t>(rank_)], sizes_.ranks);
  sweep(own_);
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
  const int pidfd = processes_[static_cast<std::size_t>(rank)]->pidfd;
  if (rank == rank_ || pidfd < 0) return true;
  pollfd watched{pidfd, POLLIN, 0};
  return poll(&watched, 1, 0) == 0;
}

Status ShmTransport::read(int rank, Handle from, std::size_t offset, void* to, std::size_t bytes) {
  return cross_memory_read(processes_[static_cast<std::size_t>(rank)]->pid, from + offset, to, bytes);
}

Status ShmTransport::write(int rank, const void* from, Handle to, std::size_t offset, std::size_t bytes) {
  return cross_memory_write(processes_[static_cast<std::size_t>(rank)]->pid, from, to + offset, bytes);
}

Status cross_memory_read(pid_t pid, std::uint64_t from, void* to, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const iovec here{static_cast<std::byte*>(to) + done, bytes - done};
    const iovec there{reinterpret_cast<void*>(from + done), bytes - done};
    const ssize_t moved = process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (moved <= 0) return attach_error("read", pid);
    done += static_cast<std::size_t>(moved);
  }
  return {};
}

Status cross_memory_write(pid_t pid, const void* from, std::uint64_t to, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const iovec here{static_cast<std::byte*>(const_cast<void*>(from)) + done, bytes - done};
    const iovec there{reinterpret_cast<void*>(to + done), bytes - done};
    const ssize_t moved = process_vm_writev(pid, &here, 1, &there, 1, 0);
    if (moved <= 0) return attach_error("write", pid);
    done += static_cast<std::size_t>(moved);
  }
  return {};
}

}  // namespace tutti::transport
