// Any three calls in a row are proven, whatever their algorithms: half a minute, and ten times that under a sanitizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "collectives/algorithms/common/samples.h"
#include "collectives/algorithms/table.h"
#include "collectives/plan/verify.h"

namespace tutti::algorithms::sequences_slow_test {
namespace {

// Scratch is used by alternate calls with no barrier between: all pairs and triples of algorithms for 2 and 3 ranks.
TEST(CallsInARow, AllTriplesShareScratchSafely) {
  for (const int ranks : {2, 3}) {
    std::vector<plan::Plan> plans;
    for (const Algorithm& algorithm : table()) {
      for (const PlanRequest& request : sample_requests(algorithm, ranks)) {
        plan::Plan plan = algorithm.build(request);
        // Many groupings of so few ranks are the same.
        if (std::find(plans.begin(), plans.end(), plan) == plans.end()) plans.push_back(std::move(plan));
      }
    }
    for (const plan::Plan& a : plans) {
      for (const plan::Plan& b : plans) {
        for (const plan::Plan& c : plans) {
          const Status status = plan::verify_sequence({&a, &b, &c}, {.rounds = 1});
          ASSERT_TRUE(status.ok()) << name_of(a.collective) << " " << a.algorithm << ", " << name_of(b.collective)
                                   << " " << b.algorithm << ", " << name_of(c.collective) << " " << c.algorithm
                                   << " on " << ranks << " ranks: " << status.message();
        }
      }
    }
  }
}

}  // namespace
}  // namespace tutti::algorithms::sequences_slow_test
