// A system call that the kernel refuses from now on, for this thread and those that it starts: as a container's filter
// does.
#pragma once

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <stdexcept>

namespace tutti::testing {

/// `bytes`: of a call with that third argument alone, such as write(); 0: whatever it is. REQUIRES: an x86-64 or 64-bit
/// Arm kernel with filters. Throws where there are none.
inline void refuse_call(long number, int error_number, unsigned bytes = 0) {
  constexpr std::size_t kLow = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 0 : 4;
  const std::array<sock_filter, 6> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<__u32>(number), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2]) + kLow),
      BPF_JUMP(static_cast<__u16>(BPF_JMP | (bytes == 0 ? BPF_JGE : BPF_JEQ) | BPF_K), bytes, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (static_cast<__u32>(error_number) & SECCOMP_RET_DATA)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter{static_cast<unsigned short>(program.size()), const_cast<sock_filter*>(program.data())};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    throw std::runtime_error("no seccomp filter can be set");
  }
}

}  // namespace tutti::testing
