// Detects that this process is a fork, because a fork must not use what its parent shares with other processes.
// For checks in every call; elsewhere getpid(), a system call, gives the same answer.
#pragma once

#include <cstdint>

namespace tutti {

/// Returns the number of forks between this process and the one that called this first. One load. Threads: any.
std::uint64_t forks();

}  // namespace tutti
