// What this process has taken, as the system sees it.
#pragma once

#include <dirent.h>

#include <cstddef>
#include <fstream>
#include <string>

#include "tests/collectives/conformance.h"

namespace tutti::testing {

/// Kilobytes after `field` ("VmSize:") in this process's status.
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

inline int open_descriptors() {
  int count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

/// A few calls, large and small.
inline void use_all(Communicator& comm) {
  for (const std::size_t count : {std::size_t{100}, std::size_t{50'000}}) {
    for (const Collective collective : {Collective::all_reduce, Collective::all_to_all, Collective::gather}) {
      Case c;
      c.collective = collective;
      c.count = count;
      check_case(comm, c);
    }
  }
}

}  // namespace tutti::testing
