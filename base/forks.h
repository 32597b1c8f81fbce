// Tells a fork from the process that it was forked from: what a process shares with others does not become the fork's.
// For what is asked at every call; elsewhere getpid(), which is a system call, says the same.
#pragma once

#include <cstdint>

namespace tutti {

/// How many forks this process is away from the one that called this first. One load; thread-safe.
std::uint64_t forks();

}  // namespace tutti
