// Plants every possible mistake of ten kinds in the plans of all algorithms and asks the proof. A mutant that passes is
// run by the simulator in many random schedules: either none of them goes wrong, and the mutant is a correct plan too
// (it is then counted under the reason why), or the proof has missed it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "collectives/algorithms/common/samples.h"
#include "collectives/plan/verify.h"
#include "tests/plan/simulate.h"
#include "tests/support/oracles/mutate.h"

namespace tutti::plan::mutation_test {
namespace {

constexpr int kRounds = 4;
constexpr int kSchedules = 40;

/// The cases that `tutti verify` runs: one round and many, out of place and, where it is served, in place.
template <class Try>
bool any_case(bool in_place_too, Try attempt) {
  return attempt(1, false) || attempt(kRounds, false) || (in_place_too && (attempt(1, true) || attempt(kRounds, true)));
}

bool is_refused(const Plan& plan, bool in_place_too) {
  return any_case(in_place_too, [&](int rounds, bool in_place) {
    return !verify(plan, {.in_place = in_place, .rounds = rounds}).ok();
  });
}

bool goes_wrong(const Plan& plan, bool in_place_too, unsigned seed) {
  return any_case(in_place_too, [&](int rounds, bool in_place) {
    for (int schedule = 0; schedule < kSchedules; ++schedule) {
      if (!Simulation(plan, rounds, in_place, seed + schedule).run().empty()) return true;
    }
    return false;
  });
}

/// Why a mutant can be a correct plan, by kind; empty where it never should be.
const char* reason_of(Mutation mutation) {
  switch (mutation) {
    case Mutation::drop_pair: return "the order that it gives, mostly a credit's, follows from other signals";
    case Mutation::swap_steps: return "the two steps do not depend on each other";
    default: return "";
  }
}

struct Tally {
  int mutants = 0;
  int caught = 0;
  int correct = 0;
  int missed = 0;
};

TEST(Mutations, TheProofFindsWhatChangesBehaviour) {
  const unsigned seed = std::random_device{}();
  Tally tally[kMutations];
  for (const algorithms::Algorithm& algorithm : algorithms::table()) {
    for (const int ranks : {2, 3, 4}) {
      const auto requests = algorithms::sample_requests(algorithm, ranks);
      const Plan plan = algorithm.build(requests[requests.size() / 2]);
      for (const Mutant& mutant : mutants_of(plan)) {
        Tally& count = tally[static_cast<int>(mutant.mutation)];
        ++count.mutants;
        const Plan mutated = mutate(plan, mutant);
        if (is_refused(mutated, algorithm.in_place)) {
          ++count.caught;
        } else if (goes_wrong(mutated, algorithm.in_place, seed)) {
          ++count.missed;
          ADD_FAILURE() << "seed " << seed << ": missed in " << name_of(plan.collective) << " " << plan.algorithm
                        << " on " << ranks << " ranks: " << describe(plan, mutant);
        } else {
          ++count.correct;
          EXPECT_STRNE(reason_of(mutant.mutation), "")
              << "correct although changed: " << name_of(plan.collective) << " " << plan.algorithm << " on " << ranks
              << " ranks: " << describe(plan, mutant);
        }
      }
    }
  }
  int caught = 0;
  int missed = 0;
  std::printf("%-12s %8s %8s %8s %8s\n", "mutation", "mutants", "caught", "correct", "missed");
  for (int m = 0; m < kMutations; ++m) {
    std::printf("%-12s %8d %8d %8d %8d  %s\n", name_of(static_cast<Mutation>(m)), tally[m].mutants, tally[m].caught,
                tally[m].correct, tally[m].missed, tally[m].correct > 0 ? reason_of(static_cast<Mutation>(m)) : "");
    EXPECT_GT(tally[m].caught, 0);
    caught += tally[m].caught;
    missed += tally[m].missed;
  }
  const double share = 100.0 * caught / (caught + missed);
  std::printf("caught %d of %d that change behaviour: %.2f %%\n", caught, caught + missed, share);
  EXPECT_GE(share, 99.0);
}

// The simulator must be able to say no, or "correct" above would mean nothing.
TEST(Mutations, TheSimulatorFindsMostOfThemToo) {
  const unsigned seed = std::random_device{}();
  int caught = 0;
  int wrong = 0;
  for (const algorithms::Algorithm& algorithm : algorithms::table()) {
    const Plan plan = algorithm.build(algorithms::sample_requests(algorithm, 3).front());
    ASSERT_FALSE(goes_wrong(plan, algorithm.in_place, seed)) << "seed " << seed << ": " << plan.algorithm;
    for (const Mutant& mutant : mutants_of(plan)) {
      const Plan mutated = mutate(plan, mutant);
      if (!check_shape(mutated, {.rounds = kRounds}).ok() || !is_refused(mutated, false)) continue;
      ++caught;
      wrong += goes_wrong(mutated, false, seed) ? 1 : 0;
    }
  }
  std::printf("the simulator sees %d of %d that the proof finds (seed %u)\n", wrong, caught, seed);
  EXPECT_GE(wrong * 100, caught * 70);
}

}  // namespace
}  // namespace tutti::plan::mutation_test
