// How large a process's arena is: address space and file size are taken when it is made, memory only as it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "base/status.h"

namespace tutti::transport {

/// Limits that an arena must fit in, in bytes.
struct ArenaLimits {
  static constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t asked = 0;              // TUTTI_ARENA; 0: by the others
  std::uint64_t physical = kNone;       // memory of the machine
  std::uint64_t cgroup = kNone;         // the least memory limit of this process's cgroup and those around it
  std::uint64_t file = kNone;           // ulimit -f: the arena is a file without a name
  std::uint64_t address_space = kNone;  // ulimit -v, less what is taken
  int ranks = 1;                        // of this host: each maps the arenas of all
};

/// Returns this process's limits. Where the launcher does not tell the ranks of the host, 16 are assumed.
ArenaLimits arena_limits();

struct ArenaSize {
  std::size_t bytes = 0;  // whole pages
  std::string why;        // "the machine's memory"
};

/// Errors: memory_limit, which names the limit: less than a page is left, or TUTTI_ARENA asks for more than a file may
/// have.
Result<ArenaSize> arena_size(const ArenaLimits& limits);

}  // namespace tutti::transport
