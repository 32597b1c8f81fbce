// How the ranks of a job come to one topology.
#include "collectives/job/job_topology.h"

#include <gmock/gmock.h>
#include <sched.h>

#include <cstddef>
#include <locale>
#include <string>

#include "tests/transport/bootstrap/bootstrap_support.h"
#include "topology/discover.h"
#include "topology/graph.h"
#include "topology/text.h"

namespace tutti::job_topology_test {
namespace {

constexpr double kSignalUs = 12;          // what the wire says of a signal
constexpr double kWayUs = kSignalUs / 3;  // the ends take the rest (job_costs.h); what is nearer takes less than 1 us

/// Ranks that are threads of this process, and count as on `hosts`; rank r's wire says figures[r] GB/s.
/// `bound`: the CPU that each is bound to.
std::vector<Result<topology::Topology>> exchange(const std::vector<int>& hosts, const std::vector<double>& figures,
                                                 const std::vector<int>& bound = {}) {
  const int n = static_cast<int>(hosts.size());
  const auto ranks = bootstrap::meet(n);
  std::vector<Result<topology::Topology>> all(hosts.size(), Status(Code::unsupported, "none"));
  bootstrap::on_threads(bootstrap::all_ranks(n), [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    transport::WireInfo wire;
    wire.devices = "tcp/nothing0\nat all";
    wire.gb_per_s = figures[r];
    wire.alpha_us = kSignalUs;
    if (!bound.empty()) {
      cpu_set_t cpus;
      CPU_ZERO(&cpus);
      CPU_SET(bound[r], &cpus);
      EXPECT_EQ(::sched_setaffinity(0, sizeof cpus, &cpus), 0);
    }
    all[r] = exchange_topology(*ranks[r], hosts, wire);
  });
  for (const auto& rank : ranks) (void)rank->leave();
  return all;
}

TEST(ExchangeTopology, AllRanksHaveTheSame) {
  // What rank 3 thinks of the network does not count: rank 0 speaks for their host.
  const auto all = exchange({0, 1, 1, 0, 2}, {2, 4, 9, 9, 1});
  for (const auto& one : all) {
    ASSERT_TRUE(one.ok()) << one.status().message();
    EXPECT_EQ(topology::print(one.value()), topology::print(all[0].value()));
  }
  const topology::Topology& job = all[0].value();
  EXPECT_EQ(job.hosts.size(), 3u);
  EXPECT_NE(job.hosts[0].machine, "");  // they are all this one
  EXPECT_EQ(job.hosts[2].machine, job.hosts[0].machine);
  EXPECT_THAT(topology::host_of_rank(job), ::testing::ElementsAre(0, 1, 1, 0, 2));
  const topology::Graph graph = topology::Graph::of(job).take();
  EXPECT_EQ(graph.route(0, 1).gb_per_s, 2);
  EXPECT_EQ(graph.route(1, 4).gb_per_s, 1);
  EXPECT_NEAR(graph.route(0, 1).latency_us, kWayUs, 1);
}

TEST(ExchangeTopology, RanksAreOnTheCoresThatTheyAreBoundTo) {
  cpu_set_t mine;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mine, &mine), 0);
  std::vector<int> usable;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mine)) usable.push_back(cpu);
  }
  const std::vector<int> bound = {usable.back(), usable.front(), usable.back()};
  const topology::Topology job = exchange({0, 0, 1}, {1, 1, 1}, bound)[0].take();
  for (std::size_t r = 0; r < bound.size(); ++r) {
    const topology::Place& place = job.ranks[r];
    const topology::Host& host = job.hosts[static_cast<std::size_t>(place.host)];
    EXPECT_THAT(host.cores[static_cast<std::size_t>(place.index)].cpus, ::testing::Contains(bound[r]));
  }
}

/// Formats numbers as in Germany: 1234.5 is 1.234,5.
struct CommaForPoint : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(ExchangeTopology, TheProgramsLocaleIsNoMatter) {
  const std::locale before = std::locale::global(std::locale(std::locale(), new CommaForPoint));
  const auto all = exchange({0, 1}, {2.5, 1234.75});
  std::locale::global(before);
  for (const auto& one : all) {
    ASSERT_TRUE(one.ok()) << one.status().message();
    const topology::Graph graph = topology::Graph::of(one.value()).take();
    EXPECT_EQ(graph.route(0, 1).gb_per_s, 2.5);
    EXPECT_NEAR(graph.route(0, 1).latency_us, kWayUs, 1);
  }
}

TEST(ExchangeTopology, AFailureIsThatOfAllRanks) {
  // Rank 1's host is said to be number 2 of two.
  const auto all = exchange({0, 2}, {1, 1});
  for (const auto& one : all) {
    ASSERT_FALSE(one.ok());
    EXPECT_THAT(one.status().message(), ::testing::HasSubstr("rank 1 is on host 2; the job has 2"));
  }
}

}  // namespace
}  // namespace tutti::job_topology_test
