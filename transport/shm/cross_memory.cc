#include "transport/shm/cross_memory.h"

#include <fmt/format.h>
#include <sys/uio.h>

#include <cerrno>

namespace tutti::transport {

namespace {

Status attach_error(const char* what, pid_t pid) {
  const int error = errno;
  if (error == ESRCH) return {Code::peer_died, fmt::format("pid {} has ended", pid)};
  return system_error(fmt::format("cannot {} memory of pid {}", what, pid), error);
}

}  // namespace

Status cross_memory_read(pid_t pid, std::uint64_t from, void* to, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const iovec here{static_cast<std::byte*>(to) + done, bytes - done};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address in another process
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
    // NOLINTNEXTLINE(performance-no-int-to-ptr): likewise
    const iovec there{reinterpret_cast<void*>(to + done), bytes - done};
    const ssize_t moved = process_vm_writev(pid, &here, 1, &there, 1, 0);
    if (moved <= 0) return attach_error("write", pid);
    done += static_cast<std::size_t>(moved);
  }
  return {};
}

}  // namespace tutti::transport
