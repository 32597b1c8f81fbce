// What a process holds: for tests that do the same very often, and expect it to stay.
#pragma once

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string>

namespace tutti::testing {

/// Returns the kilobytes after `field` ("VmSize:") in this process's status.
inline std::size_t status_kb(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != field) continue;
    std::size_t kb = 0;
    status >> kb;
    return kb;
  }
  return 0;
}

/// Returns how many entries the folder has; 0 without one.
inline int entries_of(const char* folder) {
  int count = 0;
  DIR* all = opendir(folder);
  while (all != nullptr && readdir(all) != nullptr) ++count;
  if (all != nullptr) closedir(all);
  return count;
}

inline int open_descriptors() { return entries_of("/proc/self/fd"); }

struct Usage {
  int descriptors = 0;
  int threads = 0;
  std::size_t resident = 0;  // bytes

  static Usage now() {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages >> pages;
    return {open_descriptors(), entries_of("/proc/self/task"), pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE))};
  }

  std::string text() const {
    return std::to_string(descriptors) + " descriptors, " + std::to_string(threads) + " threads, " +
           std::to_string(resident >> 10) + " KiB";
  }
};

/// Calls `once` so often, and looks at 1, 10, 50 and 100 %. What has grown from 10 % on; empty: nothing. A leak of 16
/// bytes in each of the last 90 % must be more than `spare`, which an allocator may keep.
template <class Once>
std::string growth(long times, std::size_t spare, Once&& once) {
  Usage at_ten;
  int most_descriptors = 0;  // to then: a peer's process is watched until the next window is made
  std::string seen;
  bool grows = false;
  for (long i = 1; i <= times; ++i) {
    once();
    const bool looks = i == times / 100 || i == times / 10 || i == times / 2 || i == times;
    if (!looks) continue;
    const Usage usage = Usage::now();
    seen += std::to_string(100 * i / times) + " %: " + usage.text() + "\n";
    if (i == times / 10) at_ten = usage;
    if (i <= times / 10) most_descriptors = std::max(most_descriptors, usage.descriptors);
    if (i <= times / 10) continue;
    grows = grows || usage.descriptors > most_descriptors + 2 || usage.threads > at_ten.threads ||
            usage.resident > at_ten.resident + spare;
  }
  return grows ? seen : std::string();  // not before: the other ranks do as many
}

}  // namespace tutti::testing
