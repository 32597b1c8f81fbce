#include "collectives/planner/cost.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string_view>

#include "collectives/algorithms/table.h"
#include "collectives/plan/count.h"
#include "collectives/plan/rename.h"
#include "collectives/plan/verify.h"
#include "collectives/planner/candidates.h"
#include "topology/machines.h"

namespace tutti::planner::cost_test {
namespace {

using topology::Graph;
using topology::machine;

const Constants kFree{.call_us = 0, .step_us = 0, .put_us = 0, .message_us = 0, .switch_us = 0};

Graph graph_of(const std::string& name, const topology::MachineOptions& options) {
  Result<Graph> graph = Graph::of(machine(name, options).take());
  EXPECT_TRUE(graph.ok()) << graph.status().message();
  return graph.take();
}

plan::Plan plan_of(const std::string& text) {
  Result<plan::Plan> plan = plan::parse(text);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.take();
}

double us_of(const Candidate& candidate) { return candidate.estimate.us; }

const Candidate& best_of(const std::vector<Candidate>& all) { return all.front(); }

const Candidate& find(const std::vector<Candidate>& all, std::string_view algorithm, std::string_view order) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Candidate& one) {
    return one.algorithm->name == algorithm && one.order == order;
  });
  EXPECT_NE(found, all.end()) << algorithm << ", " << order;
  return found == all.end() ? all.front() : *found;
}

// One message from rank 0 to rank 1 on another host: every term can be written down.
TEST(Cost, OfOneMessageIsLatencyAndBytesOverBandwidth) {
  const Graph graph = graph_of("ethernet", {.hosts = 2});
  const plan::Plan plan =
      algorithms::find(Collective::broadcast, "chain")->build({Collective::broadcast, 2, 0, {0, 1}});
  const topology::Route& route = graph.route(0, 1);
  EXPECT_EQ(route.gb_per_s, 3.125);
  CostOptions options;
  options.bytes = 64 << 10;
  options.constants = kFree;
  const Estimate estimate = price(plan, graph, options);
  const double moved = 65536 / 3.125e3;
  const double copied = 65536 / 10e3;  // at home, out of the slot: read and written by a core that copies 10 GB/s
  EXPECT_NEAR(estimate.us, route.latency_us + moved + copied, 1e-6);
  EXPECT_EQ(estimate.rounds, 1);
  EXPECT_EQ(estimate.bytes_across, 65536);
}

/// Ranks a and b each put one piece to c and d at the same time.
std::string two_puts(int ranks, int a, int b, int c, int d) {
  std::string text =
      fmt::format("all_to_all test ranks {} pieces {} root 0 slots 1 published 0 rank_order no\n", ranks, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    text += fmt::format("rank {} lane 0\n", rank);
    const int to = rank == a ? c : rank == b ? d : -1;
    if (to >= 0) text += fmt::format("  put {} input@{}:{} -> scratch@{}:0\n  signal {} data\n", to, rank, to, to, to);
    const int from = rank == c ? a : rank == d ? b : -1;
    if (from >= 0) text += fmt::format("  wait {} data\n", from);
  }
  return text;
}

TEST(Cost, WhoSharesALinkWaits) {
  const Graph graph = graph_of("pcie", {});
  CostOptions options;
  options.constants = kFree;
  options.bytes = std::size_t{8} * 100000;  // pieces of 100 kB
  const double narrow = 100000 / 31.5e3;    // PCIe
  const double wide = 100000 / 40e3;        // between the sockets
  const auto took = [&](int a, int b, int c, int d) {
    return price(plan_of(two_puts(8, a, b, c, d)), graph, options).us;
  };
  // From two PCI switches to two others, in each socket: nothing is shared.
  EXPECT_NEAR(took(0, 4, 2, 6), narrow + graph.route(0, 2).latency_us, 1e-6);
  // Across the sockets in one direction: the second begins when the link between the sockets has let the first go.
  EXPECT_NEAR(took(0, 2, 4, 6), wide + narrow + graph.route(0, 4).latency_us, 1e-6);
  // In both directions: a link is two, one for each; but both go through the memory of both GPUs.
  const double memory = 100000 / 1935e3;
  EXPECT_NEAR(took(0, 4, 4, 0), memory + narrow + graph.route(0, 4).latency_us, 1e-6);
  // Two GPUs of one PCI switch share its way up.
  EXPECT_NEAR(took(0, 1, 2, 3), 2 * narrow + graph.route(0, 2).latency_us, 1e-6);
}

TEST(Cost, WhoWaitsForALinkKeepsNoOtherOne) {
  const Graph graph = graph_of("ethernet", {.hosts = 4});
  // Rank 1 waits for rank 2's link until rank 0 has done with it; its own link can do the other message meanwhile.
  const plan::Plan plan = plan_of(
      "all_to_all test ranks 4 pieces 4 root 0 slots 2 published 0 rank_order no\n"
      "rank 0 lane 0\n  put 2 input@0:2 -> scratch@2:0\n  signal 2 data\n"
      "rank 1 lane 0\n  put 2 input@1:2 -> scratch@2:1\n  signal 2 data\n"
      "  put 3 input@1:3 -> scratch@3:0\n  signal 3 data\n"
      "rank 2 lane 0\n  wait 0 data\n  wait 1 data\n"
      "rank 3 lane 0\n  wait 1 data\n");
  CostOptions options;
  options.constants = kFree;
  options.bytes = std::size_t{4} * 100000;
  EXPECT_NEAR(price(plan, graph, options).us, 2 * 100000 / 3.125e3 + graph.route(0, 2).latency_us, 1e-6);
}

TEST(Cost, LanesOfARankTakeTurns) {
  const Graph graph = graph_of("ethernet", {.hosts = 2});
  const plan::Plan one = algorithms::find(Collective::broadcast, "chain")->build({Collective::broadcast, 2, 0, {0, 1}});
  CostOptions options;
  options.constants = kFree;
  options.constants.message_us = 4;
  const double latency = graph.route(0, 1).latency_us;
  EXPECT_NEAR(price(one, graph, options).us, 2 * 4 + latency, 1e-6);
  // The second message leaves after the first has been made, and is taken after the first has been.
  EXPECT_NEAR(price(plan::side_by_side({one, one}), graph, options).us, 3 * 4 + latency, 1e-6);
}

// A root that broadcasts again and again is kept back by nothing but its slots, of which there are two for each lane;
// so it may be one call ahead, or many where the bytes go in the signals. Then the link is what takes longest.
TEST(Cost, InARowIsThatOfTheSlowestStage) {
  const Graph graph = graph_of("ethernet", {.hosts = 2});
  const plan::Plan plan =
      algorithms::find(Collective::broadcast, "chain")->build({Collective::broadcast, 2, 0, {0, 1}});
  CostOptions options;
  options.bytes = 64 << 10;
  options.constants = kFree;
  options.back_to_back = true;
  const double moved = 65536 / 3.125e3;
  const double copied = 65536 / 10e3;
  // Two calls for each way there and back.
  EXPECT_NEAR(price(plan, graph, options).us, (moved + copied + 2 * graph.route(0, 1).latency_us) / 2, 1e-6);
  options.express = options.bytes;
  EXPECT_NEAR(price(plan, graph, options).us, moved, 1e-6);
}

TEST(Cost, OfAMessageIsPaidAtBothEnds) {
  const Graph graph = graph_of("ethernet", {.hosts = 2});
  const plan::Plan plan =
      algorithms::find(Collective::broadcast, "chain")->build({Collective::broadcast, 2, 0, {0, 1}});
  const double latency = graph.route(0, 1).latency_us;
  CostOptions options;
  options.constants = kFree;
  const auto took = [&](std::size_t bytes) {
    options.bytes = bytes;
    return price(plan, graph, options).us;
  };
  options.constants.message_us = 4;
  // Its bytes are on their way meanwhile.
  EXPECT_NEAR(took(1000), 2 * 4 + latency + 1000 / 10e3, 1e-6);
  // What goes along with the message takes no put; a small one that does not is over before its own is made.
  options.constants.put_us = 50;
  options.inlined = 1000;
  EXPECT_NEAR(took(1000), 2 * 4 + latency + 1000 / 10e3, 1e-6);
  options.inlined = 999;
  EXPECT_NEAR(took(1000), 50 + 2 * 4 + latency + 1000 / 10e3, 1e-6);
  // Again and again: the root sends one and is told by one; so is the other.
  options.inlined = options.express = 1000;
  options.back_to_back = true;
  EXPECT_NEAR(took(1000), 2 * 4 + 1000 / 10e3, 1e-6);
}

// Two hosts that are parts of one machine, and their ranks on one core of it: what both ends take is one after another.
// But the one that waits for the core reads what has come meanwhile at once.
TEST(Cost, HostsOfOneMachineTakeTurnsOnItsCores) {
  topology::Topology t = machine("ethernet", {.hosts = 2, .ranks = 1}).take();
  const plan::Plan plan =
      algorithms::find(Collective::broadcast, "chain")->build({Collective::broadcast, 2, 0, {0, 1}});
  CostOptions options;
  options.constants = kFree;
  options.constants.message_us = 4;
  options.inlined = options.express = options.bytes = 8;
  options.back_to_back = true;
  ASSERT_EQ(t.ranks[0].index, t.ranks[1].index);
  EXPECT_NEAR(price(plan, Graph::of(t).take(), options).us, 2 * 4, 0.01);
  for (topology::Host& host : t.hosts) host.machine = "both";
  const double shared = price(plan, Graph::of(t).take(), options).us;
  EXPECT_GT(shared, 2 * 4 + 0.01);
  EXPECT_LT(shared, 4 * 4 - 0.01);  // which it would be if each were read by itself
  // A row is not given up: however long its first calls take, the later ones count.
  options.price_limit_us = 1;
  EXPECT_EQ(price(plan, Graph::of(t).take(), options).us, shared);
}

TEST(Cost, CoresThatMoveAMessageAreBusyWithIt) {
  const Graph graph = graph_of("ethernet", {.hosts = 2});
  const double latency = graph.route(0, 1).latency_us;
  CostOptions options;
  options.constants = kFree;
  options.constants.message_gb_per_s = 1;
  options.bytes = 65536;
  const double by_hand = 65536 / 1e3;
  const double copied = 65536 / 10e3;
  // One way both ends are at it at the same time; both ways each has to send and to receive.
  const plan::Plan one_way =
      algorithms::find(Collective::broadcast, "chain")->build({Collective::broadcast, 2, 0, {0, 1}});
  EXPECT_NEAR(price(one_way, graph, options).us, by_hand + latency + copied, 1e-6);
  EXPECT_NEAR(price(plan_of(two_puts(2, 0, 1, 1, 0)), graph, options).us, 2 * by_hand / 2, 1e-6);
}

/// A graph on which many cores' bytes go through caches and memory at once.
Graph wide(topology::Topology t) {
  for (topology::NumaNode& node : t.hosts[0].numa_nodes) node.gb_per_s = 1e9;
  return Graph::of(t, {.cache_gb_per_s = 1e9, .memory_gb_per_s = 1e9}).take();
}

TEST(Cost, CoresCopyFasterWhatFitsIntoTheirCaches) {
  const Graph graph = wide(machine("ethernet", {.ranks = 2}).take());
  const plan::Plan plan = plan_of(two_puts(2, 0, 1, 1, 0));
  CostOptions options;
  options.constants = kFree;
  const auto moving = [&](std::size_t bytes) {
    options.bytes = bytes;
    return price(plan, graph, options).us - graph.route(0, 1).latency_us;
  };
  // Pieces are halves; a core copies 10 GB/s unless the constants say otherwise.
  EXPECT_NEAR(moving(2000), 1000 / 10e3, 1e-6);
  options.constants.copying = {{1000, 40}, {100000, 10}};
  // Each core reads one piece of its rank's buffer, so these are 1000 bytes for it.
  EXPECT_NEAR(moving(2000), 1000 / 40e3, 1e-6);
  EXPECT_NEAR(moving(200), 100 / 40e3, 1e-6);
  EXPECT_NEAR(moving(20000), 10000 / 20e3, 1e-6);  // half way on the logarithmic scale
  EXPECT_NEAR(moving(200000), 100000 / 10e3, 1e-6);
}

// What ranks of a host read is in their last cache once, however many do.
TEST(Cost, CountsWhatCachesHoldOnce) {
  const Graph graph = graph_of("ethernet", {.ranks = 4});
  const auto flat = [&](Collective collective, const char* algorithm) {
    return FlatPlan(algorithms::find(collective, algorithm)->build({collective, 4, 0, {0, 0, 0, 0}}), graph, {});
  };
  const FlatPlan gather = flat(Collective::all_gather, "direct");
  EXPECT_EQ(gather.read, 4);
  EXPECT_EQ(gather.touched, 4 + 16);
  const FlatPlan scatter = flat(Collective::reduce_scatter, "direct");
  EXPECT_EQ(scatter.read, 16);
  EXPECT_EQ(scatter.touched, 16 + 4);
}

constexpr const char* kTwoCopies =
    "all_gather test ranks 2 pieces 2 root 0 slots 0 published 0 rank_order no\n"
    "rank 0 lane 0\n  open 1\n  copy input@1:1 -> output@0:1\n"
    "rank 1 lane 0\n  copy input@1:1 -> output@1:1\n";

TEST(Cost, ACoreReadsAPeersMemoryWithoutThePeersCore) {
  const Graph graph = wide(machine("ethernet", {.ranks = 2}).take());
  CostOptions options;
  options.constants = kFree;
  options.bytes = 200000;
  // Both copy at the same time: one after it has seen the other's call and fetched the first line.
  EXPECT_NEAR(price(plan_of(kTwoCopies), graph, options).us, 100000 / 10e3 + 2 * graph.route(1, 0).latency_us, 1e-6);
}

// A rank that is to read another one's buffer waits until that one has come with it.
TEST(Cost, OpenWaitsForThePeersCall) {
  topology::Topology t = machine("ethernet", {.ranks = 3}).take();
  t.ranks[2] = t.ranks[0];
  const Graph graph = Graph::of(t).take();
  const plan::Plan plan = plan_of(
      "all_gather test ranks 3 pieces 3 root 0 slots 0 published 0 rank_order no\n"
      "rank 0 lane 0\n  copy input@0:0 -> output@0:0\n"
      "rank 1 lane 0\n  open 2\n"
      "rank 2 lane 0\n");
  CostOptions options;
  options.constants = kFree;
  options.constants.switch_us = 5;
  options.bytes = 300000;
  // Rank 2 begins when rank 0 has left its core.
  EXPECT_NEAR(price(plan, graph, options).us, 100000 / 10e3 + 5 + graph.route(2, 1).latency_us, 1e-6);
}

/// Returns what 1 GB/s of `speed` adds to a plan that takes no time for it else.
double us_of_speed(double Constants::*speed, const plan::Plan& plan, const topology::Topology& t, std::size_t bytes) {
  CostOptions options;
  options.bytes = bytes;
  options.constants = kFree;
  options.constants.*speed = 0;
  const double before = price(plan, Graph::of(t).take(), options).us;
  options.constants.*speed = 1;
  return price(plan, Graph::of(t).take(), options).us - before;
}

TEST(Cost, SmallSlotsThatAnotherCoreHasReadAreDearToWrite) {
  topology::Topology t = machine("ethernet", {.ranks = 2}).take();
  const plan::Plan plan = plan_of(two_puts(2, 0, 1, 1, 0));
  const auto dearer = [&](std::size_t bytes) { return us_of_speed(&Constants::slot_reuse_gb_per_s, plan, t, bytes); };
  EXPECT_NEAR(dearer(2000), 1000 / 1e3, 1e-9);
  EXPECT_NEAR(dearer(200000), 0, 1e-9);  // these lie elsewhere in each call
  t.ranks[1] = t.ranks[0];
  EXPECT_NEAR(dearer(2000), 0, 1e-9);
}

TEST(Cost, SumsShowWhileAllIsInACoresOwnCache) {
  topology::Topology t = machine("ethernet", {.ranks = 2}).take();
  t.hosts[0].caches = {{.level = 2, .bytes = 10000, .cpus = t.hosts[0].cores[0].cpus}};
  const plan::Plan plan =
      algorithms::find(Collective::reduce_scatter, "direct")->build({Collective::reduce_scatter, 2, 0, {0, 0}});
  const auto dearer = [&](std::size_t bytes) { return us_of_speed(&Constants::reduce_gb_per_s, plan, t, bytes); };
  // Each rank reads its block of both inputs.
  EXPECT_NEAR(dearer(2000), 2000 / 1e3, 1e-6);
  EXPECT_NEAR(dearer(200000), 0, 1e-6);
}

// What goes in a signal is there with it; what lies in a slot is fetched.
TEST(Cost, ExpressDataComesWithItsSignal) {
  const Graph graph = graph_of("ethernet", {.ranks = 2});
  const plan::Plan plan =
      algorithms::find(Collective::all_gather, "one_shot")->build({Collective::all_gather, 2, 0, {0, 0}});
  CostOptions options;
  options.constants = kFree;
  options.bytes = 16;
  const double fetched = price(plan, graph, options).us;
  options.express = 8;
  EXPECT_NEAR(fetched - price(plan, graph, options).us, graph.route(0, 1).latency_us, 1e-6);
  options.express = 7;
  EXPECT_EQ(price(plan, graph, options).us, fetched);
}

TEST(Cost, RanksOfACoreTakeTurns) {
  topology::Topology t = machine("ethernet", {.ranks = 2}).take();
  const plan::Plan plan = plan_of(two_puts(2, 0, 1, 1, 0));
  CostOptions options;
  options.bytes = 200000;
  options.constants = kFree;
  options.constants.switch_us = 5;
  const double moved = 100000 / 10e3;
  const auto took = [&] { return price(plan, wide(t), options).us; };
  const double apart = took();
  EXPECT_NEAR(apart, moved + Graph::of(t).take().route(0, 1).latency_us, 1e-6);
  // The first puts, the second puts and has done, the first sees that: two changes.
  t.ranks[1] = t.ranks[0];
  EXPECT_NEAR(took(), 2 * moved + 2 * 5, 1e-6);
}

// What cannot be better is not walked: what the busiest link alone takes is too long.
TEST(Cost, GivesUpWithALowerBound) {
  const Graph graph = graph_of("ethernet", {.hosts = 4});
  const plan::Plan plan =
      algorithms::find(Collective::all_reduce, "ring")->build({Collective::all_reduce, 4, 0, {0, 1, 2, 3}});
  for (const std::size_t bytes : {std::size_t{4} << 10, std::size_t{64} << 20}) {
    CostOptions options;
    options.bytes = bytes;
    const double whole = price(plan, graph, options).us;
    for (const double part : {0.1, 0.5, 0.9}) {
      options.price_limit_us = part * whole;
      const Estimate given_up = price(plan, graph, options);
      EXPECT_GT(given_up.us, options.price_limit_us);
      EXPECT_LE(given_up.us, whole * 1.0001);
    }
    options.price_limit_us = 1.001 * whole;
    EXPECT_EQ(price(plan, graph, options).us, whole);
  }
}

TEST(Cost, OfARingComesNearItsBound) {
  for (const int hosts : {2, 4, 8}) {
    const Graph graph = graph_of("ethernet", {.hosts = hosts});
    std::vector<int> of_rank(static_cast<std::size_t>(hosts));
    std::iota(of_rank.begin(), of_rank.end(), 0);
    const plan::Plan plan =
        algorithms::find(Collective::all_reduce, "ring")->build({Collective::all_reduce, hosts, 0, of_rank});
    const double bytes = 256e6;
    const Estimate estimate = price(plan, graph, {.bytes = static_cast<std::size_t>(bytes), .scratch_half = 64 << 20});
    const double bound = 2.0 * (hosts - 1) / hosts * bytes / 3.125e3;
    EXPECT_GE(estimate.us, bound);
    // Where nothing overlaps, each byte is also summed (two read, one written) at 10 GB/s, in slices of 128 KiB that
    // each wait for their latency of some 22 us; half of the steps only copy.
    const double slices = 2.0 * (hosts - 1) * std::ceil(bytes / hosts / (128 << 10));
    EXPECT_LE(estimate.us, bound * (1 + 3.125 * 0.15) + slices * 23);
    // Little scratch makes many small slices, and then it is the latency that counts.
    EXPECT_GT(price(plan, graph, {.bytes = static_cast<std::size_t>(bytes), .scratch_half = 128 << 10}).us,
              1.5 * estimate.us);
    EXPECT_NEAR(estimate.bytes_across, 2.0 * (hosts - 1) * bytes, 1e-3 * bytes);
    EXPECT_GT(estimate.rounds, 6);
  }
}

TEST(Cost, IsNeverLessThanTheBusiestResourceTakes) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::vector<Graph> graphs = {graph_of("pcie", {}), graph_of("nvswitch", {.hosts = 2, .rails = 4, .ranks = 3}),
                                     graph_of("uneven", {.hosts = 4}), graph_of("ethernet", {.ranks = 5})};
  for (const Graph& graph : graphs) {
    for (const algorithms::Algorithm& algorithm : algorithms::table()) {
      Demand demand;
      demand.collective = algorithm.collective;
      demand.bytes = std::size_t{1} << random() % 28;
      for (const Candidate& one : candidates(demand, graph)) {
        if (!one.why_not.empty()) continue;
        EXPECT_GE(one.estimate.us * 1.0001, one.estimate.bottleneck_us) << one.algorithm->name;
        const std::shared_ptr<const plan::Plan> plan = plan_of(one, demand, graph);
        ASSERT_TRUE(plan::verify(*plan).ok())
            << one.algorithm->name << ", " << one.order << ": " << plan::verify(*plan).message();
        // It was priced without being made in that order or twice.
        CostOptions options = one.options;
        options.copies = 1;
        EXPECT_NEAR(price(*plan, graph, options).us, one.estimate.us, 1e-6 * one.estimate.us)
            << one.algorithm->name << ", " << one.order;
        // What goes to other hosts is what the plan says, whatever the rounds.
        const plan::Counts counts = plan::total(plan::count(*plan, topology::host_of_rank(graph.topology())));
        const double piece = static_cast<double>(demand.bytes) / (plan->pieces);
        EXPECT_NEAR(one.estimate.bytes_across, static_cast<double>(counts.pieces_put_away) * piece,
                    1e-6 * (1 + one.estimate.bytes_across))
            << one.algorithm->name << ", " << one.order;
      }
    }
  }
}

TEST(Candidates, ManyRailsAreUsedForLargeMessages) {
  const Graph graph = graph_of("nvswitch", {.hosts = 4, .rails = 8});
  Demand demand;
  demand.bytes = std::size_t{1} << 30;
  CostOptions options;
  options.scratch_half = std::size_t{1} << 30;  // 496 slots
  options.slice = 4 << 20;
  const std::vector<Candidate> all = candidates(demand, graph, 0, options);
  const Candidate& rails = find(all, "ring", "an order for each rail");
  const Candidate& one_rail = find(all, "ring", "rank order");
  const double bound = 2.0 * 31 / 32 * static_cast<double>(demand.bytes) / (8 * 50e3);
  EXPECT_GE(us_of(rails), bound);
  EXPECT_LT(us_of(rails), us_of(one_rail) / 2);
  // Each rank of a host goes by a rail of its own, in one lane too.
  const double by_all = 2.0 * 3 / 4 * static_cast<double>(demand.bytes) / (8 * 50e3);
  EXPECT_GE(us_of(find(all, "hierarchical", "rank order")), by_all);
  EXPECT_LT(us_of(find(all, "hierarchical", "rank order")), 2 * by_all);
  EXPECT_STREQ(best_of(all).algorithm->name, "hierarchical");
  // As hosts have it: two rings, each by rails that the other does not use. Both enter a host by one GPU, whose PCIe
  // link is all that limits them.
  demand.lanes = 2;
  const std::vector<Candidate> in_two = candidates(demand, graph, 0, options);
  const Candidate& two = find(in_two, "ring", "an order for each rail");
  const double by_gpu = 2.0 * 31 / 32 * static_cast<double>(demand.bytes) / 63e3;
  EXPECT_GE(us_of(two), by_gpu);
  EXPECT_LT(us_of(two), 1.01 * by_gpu);
}

// A chain of h hosts takes the time of k + h - 2 slices for k slices.
TEST(Candidates, AMessageOfFewSlicesIsCutFinerForAPipeline) {
  const auto best = [](int hosts, Collective collective, std::size_t bytes) {
    Demand demand;
    demand.collective = collective;
    demand.bytes = bytes;
    demand.lanes = 2;
    CostOptions options;
    options.scratch_half = 4 << 20;
    options.slice = 512 << 10;
    const Graph graph = graph_of("ethernet", {.hosts = hosts});
    const std::vector<Candidate> all = candidates(demand, graph, 0, options);
    for (const Candidate& one : all) {
      if (!one.why_not.empty()) continue;
      const bool told = one.order.find(" KiB") != std::string::npos;
      EXPECT_EQ(told, one.options.slice != options.slice) << one.algorithm->name << ", " << one.order;
    }
    return cheapest(demand, graph, 0, options);
  };
  for (const Collective collective : {Collective::broadcast, Collective::reduce}) {
    const Candidate fine = best(4, collective, 1 << 20);
    EXPECT_EQ(fine.options.slice, std::size_t{128} << 10) << fine.order;
    EXPECT_EQ(fine.estimate.rounds, 4) << fine.order;  // in each of two lanes
    EXPECT_EQ(best(4, collective, 16 << 20).options.slice, std::size_t{512} << 10);
    EXPECT_EQ(best(2, collective, 1 << 20).options.slice, std::size_t{512} << 10);
  }
  EXPECT_EQ(best(4, Collective::all_reduce, 1 << 20).options.slice, std::size_t{512} << 10);
}

// Four hosts that are one machine, whose ranks share two cores: each call of a row takes as long as the cores are busy
// with it, however many of them are under way. By itself a call goes through all hosts one after another.
TEST(Candidates, WhereHostsShareCoresACallIsOneOfARow) {
  topology::Topology t = machine("ethernet", {.hosts = 4, .ranks = 1}).take();
  for (std::size_t r = 0; r < 4; ++r) t.ranks[r].index = static_cast<int>(r % 2);
  Demand demand;
  demand.collective = Collective::broadcast;
  demand.bytes = 8;
  CostOptions options;
  options.constants = kFree;
  options.constants.message_us = 4;
  options.inlined = options.express = demand.bytes;
  const double latency = Graph::of(t).take().route(0, 1).latency_us;
  const double alone = us_of(find(candidates(demand, Graph::of(t).take(), 0, options), "chain", "rank order"));
  EXPECT_NEAR(alone, 3 * (2 * 4 + latency), 0.1);
  for (topology::Host& host : t.hosts) host.machine = "all";
  const double shared = us_of(find(candidates(demand, Graph::of(t).take(), 0, options), "chain", "rank order"));
  const double messages = 3 * (2 * 4) / 2.0;  // of both ends, on two cores
  EXPECT_GE(shared, messages);
  EXPECT_LE(shared, 2 * messages);  // each is also told of, by one back
  EXPECT_STREQ(cheapest(demand, Graph::of(t).take(), 0, options).algorithm->name, "chain");
}

// What the model cannot tell apart: a link is as long busy with one sender's bytes as with three senders' at once.
TEST(Candidates, LongBlocksAreNotGatheredFromAllAtOnce) {
  const Graph graph = graph_of("ethernet", {.hosts = 4, .ranks = 1});
  Demand demand;
  demand.collective = Collective::all_gather;
  for (const std::size_t bytes : {std::size_t{16} << 20, std::size_t{64} << 20}) {
    demand.bytes = bytes;
    const std::string chosen = cheapest(demand, graph, 0, {}).algorithm->name;
    EXPECT_TRUE(chosen == "ring" || chosen == "hierarchical") << chosen;  // the same on hosts of one rank
  }
  // By name all the same.
  const auto* direct = algorithms::find(Collective::all_gather, "linear");
  EXPECT_EQ(cheapest(demand, graph, 0, {}, direct).algorithm, direct);
}

TEST(Candidates, RanksThatLieAcrossHostsInTurnArePutInOrder) {
  topology::Topology t = machine("ethernet", {.hosts = 2, .ranks = 4}).take();
  const std::vector<topology::Place> places = t.ranks;
  for (std::size_t r = 0; r < 8; ++r) t.ranks[r] = places[r % 2 * 4 + r / 2];
  const Graph graph = Graph::of(t).take();
  Demand demand;
  demand.bytes = 64 << 20;
  const std::vector<Candidate> all = candidates(demand, graph);
  // In rank order every hop crosses: eight of eight against two of eight.
  EXPECT_GT(us_of(find(all, "ring", "rank order")), 2 * us_of(find(all, "ring", "ring order")));
  EXPECT_NEAR(find(all, "ring", "rank order").estimate.bytes_across,
              4 * find(all, "ring", "ring order").estimate.bytes_across, 1);
  EXPECT_FALSE(find(all, "one_shot", "rank order").why_not.empty());
}

TEST(Candidates, SmallMessagesTakeFewSteps) {
  const Graph graph = graph_of("ethernet", {.hosts = 16});
  Demand demand;
  demand.bytes = 64;
  const std::vector<Candidate> small = candidates(demand, graph);
  EXPECT_LT(us_of(best_of(small)), us_of(find(small, "ring", "rank order")) / 4);
  demand.deterministic = true;
  for (const Candidate& one : candidates(demand, graph)) {
    if (one.why_not.empty()) {
      EXPECT_TRUE(one.algorithm->rank_order && one.order == "rank order") << one.algorithm->name;
    }
  }
}

}  // namespace
}  // namespace tutti::planner::cost_test
