#include "transport/shm/cross_memory.h"

#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <vector>

#include "base/clock.h"

namespace tutti::transport {

namespace {

Status attach_error(const char* what, pid_t pid) {
  const int error = errno;
  if (error == ESRCH) return {Code::peer_died, fmt::format("pid {} has ended", pid)};
  return system_error(fmt::format("cannot {} memory of pid {}", what, pid), error);
}

template <class Body>
std::int64_t best_time_of(Body&& body) {
  constexpr int kTries = 5;
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < kTries; ++i) {
    const std::int64_t begin = now_ns();
    body();
    best = std::min(best, now_ns() - begin);
  }
  return best;
}

}  // namespace

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

bool cross_memory_pays() {
  constexpr std::size_t kBytes = std::size_t{256} << 10;
  std::vector<std::byte> memory(3 * kBytes, std::byte{1});
  std::byte* from = memory.data();
  std::byte* slot = from + kBytes;
  std::byte* to = slot + kBytes;
  bool well = true;
  const std::int64_t attached = best_time_of(
      [&] { well = well && cross_memory_read(getpid(), reinterpret_cast<std::uint64_t>(from), to, kBytes).ok(); });
  const std::int64_t staged = best_time_of([&] {
    std::memcpy(slot, from, kBytes);
    std::memcpy(to, slot, kBytes);
  });
  return well && attached < staged;
}

}  // namespace tutti::transport
