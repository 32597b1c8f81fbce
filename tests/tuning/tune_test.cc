// What is found of a machine that is made up.
#include "tuning/tune.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <memory>
#include <random>
#include <thread>

#include "collectives/algorithms/table.h"
#include "collectives/create.h"
#include "topology/job.h"

namespace tutti::tuning::tune_test {
namespace {

topology::Topology two_cores(int hosts, int ranks) {
  topology::HostOfJob one;
  topology::Host& host = one.found.hosts.emplace_back();
  host.numa_nodes.emplace_back();
  host.cores = {{0, 0, {0}}, {0, 0, {1}}};
  std::vector<int> host_of_rank;
  for (int rank = 0; rank < ranks; ++rank) host_of_rank.push_back(rank % hosts);
  return topology::of_job(std::vector(static_cast<std::size_t>(hosts), one), host_of_rank).take();
}

/// The cases as a machine with these costs would have taken them, give or take `noise`.
std::vector<Case> made_up(const Place& place, const planner::Table& truth, const char* const (&algorithms)[3],
                          double noise, std::mt19937& random) {
  std::vector<Case> cases = cases_to_tune(place);
  for (Case& one : cases) {
    const int chosen = one.collective == Collective::all_reduce ? 0 : one.collective == Collective::all_gather ? 1 : 2;
    one.algorithm = one.asked.empty() ? algorithms[chosen] : one.asked;
    one.plan =
        std::make_shared<const plan::Plan>(algorithms::find(one.collective, one.algorithm)
                                               ->build({one.collective, static_cast<int>(place.topology.ranks.size()),
                                                        0, topology::host_of_rank(place.topology)}));
  }
  std::uniform_real_distribution<double> off(-noise, noise);
  const std::vector<double> times = predicted_us(cases, place, truth).take();
  for (std::size_t i = 0; i < cases.size(); ++i) cases[i].measured_us = times[i] * std::exp(off(random));
  return cases;
}

TEST(Tune, TellsWhatTheCasesTookOnAMachineOfItsOwnKind) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const Place place{two_cores(1, 2), ""};
  planner::Table truth;
  truth.constants = {.call_us = 0.3, .step_us = 0.05};
  truth.constants.copying = {{8192, 40}, {4 << 20, 20}, {32 << 20, 5}};
  truth.signal_us = 0.7;
  const std::vector<Case> cases = made_up(place, truth, {"ring", "ring", "chain"}, 0.05, random);
  const Result<Costs> table = table_for(cases, place);
  ASSERT_TRUE(table.ok()) << table.status().message();
  const std::vector<double> predicted = predicted_us(cases, place, table.value().table).take();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_TRUE(is_near(predicted[i], cases[i].measured_us)) << name_of(cases[i].collective) << " of " << cases[i].bytes
                                                             << ": " << predicted[i] << " for " << cases[i].measured_us;
  }
  EXPECT_EQ(table.value().table.network_gb_per_s, 0);
}

TEST(Tune, FindsTheNetworksFigures) {
  std::mt19937 random(1);
  const Place place{two_cores(2, 2), "made up"};
  planner::Table truth;
  truth.constants.copying = {{32 << 20, 10}};
  truth.network_us = 70;
  truth.network_gb_per_s = 0.12;
  const std::vector<Case> cases = made_up(place, truth, {"ring", "ring", "chain"}, 0, random);
  const planner::Table table = table_for(cases, place).take().table;
  // Not to the digit: what a step or a copy at home takes may stand for a part of it, and a message at its two ends for
  // a part of the way.
  const auto way_of = [](const planner::Table& one) { return one.network_us + 2 * one.constants.message_us; };
  EXPECT_TRUE(is_near(way_of(table), way_of(truth))) << way_of(table);
  EXPECT_TRUE(is_near(table.network_gb_per_s, truth.network_gb_per_s)) << table.network_gb_per_s;
}

TEST(Tune, RanksThatShareCoresTellOfTheirChangesAlone) {
  std::mt19937 random(1);
  const Place crowded{two_cores(1, 4), ""};
  planner::Table truth;
  truth.constants = {.call_us = 0.3, .step_us = 0.05, .switch_us = 4};
  truth.constants.copying = {{8192, 40}, {16 << 20, 5}};
  truth.signal_us = 0.7;
  const std::vector<Case> cases = made_up(crowded, truth, {"ring", "ring", "chain"}, 0, random);
  planner::Table known = truth;
  known.constants.switch_us = 1;
  planner::Table found = table_for(cases, crowded, &known).take().table;
  EXPECT_TRUE(is_near(found.constants.switch_us, 4)) << found.constants.switch_us;
  // And of what their cores copy of more than others have worked on.
  EXPECT_EQ(found.constants.copying.back().bytes, 32 << 20);
  EXPECT_EQ(found.constants.copying.size(), known.constants.copying.size() + 1);
  found.constants.switch_us = 1;
  found.constants.copying.pop_back();
  EXPECT_EQ(found, known);
  // And those that do not, tell nothing of them.
  const Place apart{two_cores(1, 2), ""};
  const std::vector<Case> others = made_up(apart, truth, {"ring", "ring", "chain"}, 0, random);
  EXPECT_EQ(table_for(others, apart, &known).value().table.constants.switch_us, 1);
}

// Each evaluation of a large job takes a tenth of a second, of which a search to its end makes hundreds.
TEST(Tune, OfALargeJobEndsWhenWhatIsAllowedIsSpent) {
  std::mt19937 random(1);
  const Place place{two_cores(8, 32), "made up"};
  planner::Table truth;
  truth.constants.copying = {{32 << 20, 10}};
  truth.network_us = 70;
  truth.network_gb_per_s = 0.12;
  const std::vector<Case> cases = made_up(place, truth, {"ring", "ring", "chain"}, 0, random);
  int asked = 0;
  const Costs some = table_for(cases, place, nullptr, [&] { return ++asked == 10; }).take();
  EXPECT_FALSE(some.in_full);
  EXPECT_EQ(asked, 10);
  EXPECT_GT(some.table.network_gb_per_s, 0);
}

// All ranks make the same turns, though but one of them finds that its time is over.
TEST(Measure, EndsAfterTheTurnInWhichWhatIsAllowedIsSpent) {
  const auto communicators = create_in_process(2, {}).take();
  std::vector<int> turns(2, 0);
  std::size_t measured = 0;
  const auto rank = [&](int own) {
    auto& communicator = dynamic_cast<TuttiCommunicator&>(*communicators[static_cast<std::size_t>(own)]);
    std::vector<Case> cases = cases_of({Collective::broadcast});
    cases.resize(2);
    int asked = 0;
    const Result<int> made = measure_all(
        communicator, cases, [&](const Case&, std::size_t number, std::size_t) { measured = number; },
        [&] { return own == 1 && ++asked == 3; });
    ASSERT_TRUE(made.ok()) << made.status().message();
    turns[static_cast<std::size_t>(own)] = made.value();
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
  EXPECT_EQ(turns, (std::vector<int>{3, 3}));
  EXPECT_EQ(measured, 6u);
}

}  // namespace
}  // namespace tutti::tuning::tune_test
