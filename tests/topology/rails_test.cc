// Which rails the ranks of a host share.
#include "topology/rails.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "topology/graph.h"
#include "topology/machines.h"
#include "topology/orders.h"

namespace tutti::topology::rails_test {
namespace {

/// How many ranks have each rail, of a host with so many of both.
std::vector<int> users(int ranks, int rails) {
  const RailShares shares(std::vector<int>(static_cast<std::size_t>(ranks), 7));
  std::vector<int> users(static_cast<std::size_t>(rails));
  for (int rank = 0; rank < ranks; ++rank) {
    const RailShare share = shares.of(rank, rails);
    for (int lane = 0; lane < share.count; ++lane) ++users.at(static_cast<std::size_t>(share.of_lane(lane)));
    EXPECT_EQ(share.of_lane(share.count), share.first);
  }
  return users;
}

TEST(RailShares, AreEven) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (int rails = 1; rails <= 16; ++rails) {
      const std::vector<int> all = users(ranks, rails);
      const auto [least, most] = std::minmax_element(all.begin(), all.end());
      EXPECT_EQ(*least, std::max(ranks / rails, 1)) << ranks << " ranks, " << rails << " rails";
      EXPECT_LE(*most, (ranks + rails - 1) / rails) << ranks << " ranks, " << rails << " rails";
    }
  }
}

TEST(RailShares, BothEndsUseEquallyManyOfTheLowerOnesShare) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::vector<int> hosts(12);
  for (int& host : hosts) host = static_cast<int>(random() % 4);
  const int rails_of[] = {1, 4, 4, 7};
  const RailShares all(hosts);
  std::vector<int> members(12);
  std::iota(members.begin(), members.end(), 0);
  std::shuffle(members.begin(), members.end(), random);
  members.resize(8);
  const RailShares some = all.of_members(members);
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 8; ++j) {
      const int a = members[static_cast<std::size_t>(i)];
      const int b = members[static_cast<std::size_t>(j)];
      const int here = rails_of[hosts[static_cast<std::size_t>(a)]];
      const int there = rails_of[hosts[static_cast<std::size_t>(b)]];
      const RailShare own = some.between(i, here, j, there);
      const RailShare theirs = some.between(j, there, i, here);
      EXPECT_EQ(own.count, theirs.count);
      if (here == there) {
        EXPECT_EQ(own.first, theirs.first);
      }
      EXPECT_EQ(own.first, all.of(std::min(a, b), here).first);
      EXPECT_LE(own.first + own.count, here);
      EXPECT_GE(own.count, 1);
    }
  }
}

TEST(RailShares, ARankOfSeveralHostsCountsThoseOfItsOwn) {
  const RailShares shares({0, 1, 0, 1, 1, 0});
  EXPECT_EQ(shares.of(5, 8).first, 5);  // the third of three: 5, 6 and 7
  EXPECT_EQ(shares.of(5, 8).count, 3);
  EXPECT_EQ(shares.of(1, 8).first, 0);
  EXPECT_EQ(shares.of(5, 2).first, 1);
}

// The rule knows nothing of buses, and still is right where devices and ranks are numbered along them.
TEST(RailShares, OfKnownMachinesAreNicsThatNoneIsNearerThan) {
  for (const char* name : {"nvswitch", "pcie"}) {
    for (const int rails : {1, 2, 4, 8}) {
      const Graph graph = Graph::of(machine(name, {.hosts = 2, .rails = rails}).take()).take();
      const RailShares shares(host_of_rank(graph.topology()));
      for (int rank = 0; rank < graph.ranks(); ++rank) {
        const double own = hop_cost(graph.route_to_nic(rank, shares.of(rank, rails).first));
        for (int nic = 0; nic < rails; ++nic) EXPECT_LE(own, hop_cost(graph.route_to_nic(rank, nic))) << name << rank;
      }
    }
  }
}

}  // namespace
}  // namespace tutti::topology::rails_test
