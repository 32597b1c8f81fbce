// Whether a scenario ended as the library promises.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/chaos/ranks.h"
#include "tests/chaos/scenario.h"

namespace tutti::chaos {

/// The outcome as the campaign sees it from outside.
struct Seen {
  std::int64_t began_ns = 0;
  std::int64_t fault_ns = 0;    // 0: it never came, all had ended
  bool victim_running = false;  // at that moment
  std::vector<int> statuses;    // of waitpid(), by rank
  std::vector<bool> late;       // had to be killed: it did not end in time
};

/// Sentences, one for each thing that is not as promised; none: all is well.
std::vector<std::string> judge(const Scenario& scenario, const Reports& reports, const Seen& seen);

}  // namespace tutti::chaos
