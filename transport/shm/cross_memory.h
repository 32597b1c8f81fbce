// The kernel's way into another process's plain memory (process_vm_readv and process_vm_writev), where it is allowed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace tutti::transport {

/// Copies from (to) another process's plain memory. Errors: system, peer_died.
Status cross_memory_read(pid_t pid, std::uint64_t from, void* to, std::size_t bytes);
Status cross_memory_write(pid_t pid, const void* from, std::uint64_t to, std::size_t bytes);

}  // namespace tutti::transport
