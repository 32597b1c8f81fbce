#include "transport/shm/cross_memory.h"

#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

namespace tutti::transport {

namespace {

/// Returns true if this process may read its own memory there. The kernel reads it, which does not fault.
bool is_there(const void* address) {
  char byte = 0;
  const iovec here{&byte, 1};
  const iovec there{const_cast<void*>(address), 1};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

/// Returns true if this process may write there. It writes a 0: the buffer of a call that has failed holds anything.
bool can_be_written(void* address) {
  char byte = 0;
  const iovec here{&byte, 1};
  const iovec there{address, 1};
  return process_vm_writev(getpid(), &here, 1, &there, 1, 0) == 1;
}

/// `own`: of this process, where the copy has stopped.
Status attach_error(const char* what, pid_t pid, void* own, bool writes_own, std::size_t bytes) {
  const int error = errno;
  if (error == ESRCH) return {Code::peer_died, fmt::format("pid {} has ended", pid)};
  if (error == EFAULT && !(writes_own ? can_be_written(own) : is_there(own))) {
    return system_error(fmt::format("its own buffer of {} bytes at {} {}", bytes, fmt::ptr(own),
                                    is_there(own) ? "cannot be written" : "is not there"),
                        error);
  }
  return system_error(fmt::format("cannot {} memory of pid {}", what, pid), error);
}

}  // namespace

Status cross_memory_read(pid_t pid, std::uint64_t from, void* to, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const iovec here{static_cast<std::byte*>(to) + done, bytes - done};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address in another process
    const iovec there{reinterpret_cast<void*>(from + done), bytes - done};
    const ssize_t moved = process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (moved <= 0) return attach_error("read", pid, here.iov_base, true, here.iov_len);
    done += static_cast<std::size_t>(moved);
  }
  return {};
}

Status cross_memory_write(pid_t pid, const void* from, std::uint64_t to, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const iovec here{static_cast<std::byte*>(const_cast<void*>(from)) + done, bytes - done};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address in another process, as above
    const iovec there{reinterpret_cast<void*>(to + done), bytes - done};
    const ssize_t moved = process_vm_writev(pid, &here, 1, &there, 1, 0);
    if (moved <= 0) return attach_error("write", pid, here.iov_base, false, here.iov_len);
    done += static_cast<std::size_t>(moved);
  }
  return {};
}

}  // namespace tutti::transport
