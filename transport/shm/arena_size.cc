#include "transport/shm/arena_size.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

#include "base/even_share.h"
#include "base/options.h"
#include "base/pages.h"
#include "transport/bootstrap/environment.h"

namespace tutti::transport {
namespace {

constexpr int kUnknownRanks = 16;

std::uint64_t limit_of(__rlimit_resource resource) {
  rlimit limit{};
  const bool limited = getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return limited ? limit.rlim_cur : ArenaLimits::kNone;
}

/// The least of what a cgroup and those around it allow. `folder`, `path`: where it lies under /sys/fs/cgroup. `file`:
/// holds the limit there.
std::uint64_t least_limit(const std::string& folder, std::string path, const std::string& file) {
  std::uint64_t least = ArenaLimits::kNone;
  for (;; path.erase(path.rfind('/'))) {
    std::uint64_t bytes = 0;
    if (std::ifstream("/sys/fs/cgroup" + folder + path + file) >> bytes) least = std::min(least, bytes);
    if (path.rfind('/') == std::string::npos) return least;
  }
}

/// Returns the limit of this process's cgroup. A line of /proc/self/cgroup is 0::PATH in version 2, N:memory:PATH in
/// version 1.
std::uint64_t cgroup_limit() {
  constexpr std::string_view kVersion2 = "0::", kVersion1 = ":memory:";
  std::uint64_t least = ArenaLimits::kNone;
  std::ifstream own("/proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {
    const std::size_t memory = line.find(kVersion1);
    if (line.starts_with(kVersion2)) {
      least = std::min(least, least_limit("", line.substr(kVersion2.size()), "/memory.max"));
    } else if (memory != std::string::npos) {
      least = std::min(least, least_limit("/memory", line.substr(memory + kVersion1.size()), "/memory.limit_in_bytes"));
    }
  }
  return least;
}

int ranks_of_host() {
  const Result<bootstrap::LaunchPlace> place = bootstrap::launch_place(bootstrap::launch_environment());
  if (!place.ok() || place.value().launcher == "none") return kUnknownRanks;
  return place.value().local_size > 0 ? place.value().local_size : std::min(place.value().size, kUnknownRanks);
}

}  // namespace

ArenaLimits arena_limits() {
  ArenaLimits limits;
  limits.asked = options::bytes(Option::arena);
  limits.physical = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes();
  limits.cgroup = cgroup_limit();
  limits.file = limit_of(RLIMIT_FSIZE);
  limits.address_space = limit_of(RLIMIT_AS);
  limits.ranks = ranks_of_host();
  if (limits.address_space != ArenaLimits::kNone) {
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    limits.address_space -= std::min(limits.address_space, pages * page_bytes());
  }
  return limits;
}

Result<ArenaSize> arena_size(const ArenaLimits& limits) {
  if (limits.asked != 0) {
    const std::uint64_t bytes = round_up(limits.asked, page_bytes());
    if (bytes <= limits.file) return ArenaSize{bytes, "TUTTI_ARENA"};
    return Status(Code::memory_limit, fmt::format("TUTTI_ARENA is {}, and a file may have {} bytes (ulimit -f)",
                                                  limits.asked, limits.file));
  }
  ArenaSize size{limits.physical, "the machine's memory"};
  const auto at_most = [&size](std::uint64_t bytes, const std::string& why) {
    if (bytes < size.bytes) size = {bytes, why};
  };
  at_most(limits.cgroup, "the cgroup's memory limit");
  at_most(limits.file, "ulimit -f");
  if (limits.address_space != ArenaLimits::kNone) {
    // Half of it, for the arenas of all ranks together.
    at_most(limits.address_space / 2 / static_cast<std::uint64_t>(limits.ranks),
            fmt::format("ulimit -v, for {} ranks", limits.ranks));
  }
  size.bytes = size.bytes / page_bytes() * page_bytes();
  if (size.bytes > 0) return size;
  return Status(Code::memory_limit, fmt::format("no shared memory can be had within {}", size.why));
}

}  // namespace tutti::transport
