// Does this machine let one rank read and write another's plain memory? Found out by doing it.
#pragma once

#include <string>

namespace tutti::cli {

struct CrossMemory {
  bool allowed = false;
  std::string why;  // why not
};

/// Two child processes, since ranks are siblings: some systems let a parent reach its children, but not these each
/// other. REQUIRES: no other threads in this process.
CrossMemory try_cross_memory();

}  // namespace tutti::cli
