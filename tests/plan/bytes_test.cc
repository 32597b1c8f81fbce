// What the plans put on links equals the textbook, piece for piece. With S the bytes of the vector (all_reduce,
// broadcast, reduce) or of a block (the others), per rank unless said otherwise.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "collectives/algorithms/table.h"
#include "collectives/plan/count.h"

namespace tutti::plan::bytes_test {
namespace {

std::vector<Counts> counts_of(Collective collective, const char* name, int n, int* pieces = nullptr) {
  const algorithms::PlanRequest request{collective, n, collective == Collective::broadcast ? n / 2 : 0};
  const Plan plan = algorithms::find(collective, name)->build(request);
  if (pieces != nullptr) *pieces = plan.pieces;
  return count(plan);
}

bool is_power_of_two(int n) { return std::has_single_bit(static_cast<unsigned>(n)); }

TEST(Bytes, RingAllReduceIs2nMinus1OverN) {
  for (int n = 2; n <= 64; ++n) {
    int pieces = 0;
    for (const Counts& c : counts_of(Collective::all_reduce, "ring", n, &pieces)) {
      EXPECT_EQ(pieces, n);
      EXPECT_EQ(c.pieces_put, 2 * (n - 1));
      EXPECT_EQ(c.messages, 2 * (n - 1));
      EXPECT_EQ(c.pieces_reduced, n - 1);
    }
  }
}

TEST(Bytes, StagedTwoShotIsThatOfTheRing) {
  for (int n = 2; n <= 64; ++n) {
    for (const Counts& c : counts_of(Collective::all_reduce, "put_two_shot", n)) EXPECT_EQ(c.pieces_put, 2 * (n - 1));
  }
}

TEST(Bytes, HalvingDoublingIsThatOfTheRingIn2LogNMessages) {
  for (int n = 2; n <= 64; n *= 2) {
    int pieces = 0;
    for (const Counts& c : counts_of(Collective::all_reduce, "halving_doubling", n, &pieces)) {
      EXPECT_EQ(pieces, n);
      EXPECT_EQ(c.pieces_put, 2 * (n - 1));
      EXPECT_EQ(c.messages, 2 * std::countr_zero(static_cast<unsigned>(n)));
    }
  }
}

TEST(Bytes, RecursiveDoublingIsTheWholeVectorInLogNMessages) {
  for (int n = 2; n <= 64; n *= 2) {
    int pieces = 0;
    for (const Counts& c : counts_of(Collective::all_reduce, "recursive_doubling", n, &pieces)) {
      EXPECT_EQ(pieces, 1);
      EXPECT_EQ(c.pieces_put, std::countr_zero(static_cast<unsigned>(n)));
      EXPECT_EQ(c.messages, c.pieces_put);
    }
  }
}

TEST(Bytes, AllGatherByRecursiveDoublingIsThatOfARingInLogNMessages) {
  for (int n = 2; n <= 64; ++n) {
    const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
    const Counts sum = total(counts_of(Collective::all_gather, "recursive_doubling", n));
    // A guest gives its block to a neighbour, and gets the n - 1 others from it.
    EXPECT_EQ(sum.pieces_put, n * (p - 1) + (n - p) * n) << n;
    if (n == p) {
      EXPECT_EQ(sum.messages, n * std::countr_zero(static_cast<unsigned>(n)));
    }
  }
}

TEST(Bytes, FoldingAddsOneVectorEachWayPerGuest) {
  for (int n = 2; n <= 64; ++n) {
    const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
    int pieces = 0;
    const Counts sum = total(counts_of(Collective::all_reduce, "halving_doubling", n, &pieces));
    EXPECT_EQ(pieces, p);
    EXPECT_EQ(sum.pieces_put, 2 * (p - 1) * p + 2 * (n - p) * p) << n;
  }
}

TEST(Bytes, DoubleBinaryTreePassesEveryEdgeTwicePerHalf) {
  for (int n = 2; n <= 64; ++n) {
    const std::vector<Counts> counts = counts_of(Collective::all_reduce, "double_binary_tree", n);
    EXPECT_EQ(total(counts).pieces_put, 4 * (n - 1)) << n;  // pieces are halves: 2(n-1) S in all
    // A rank is an inner node of at most one tree when n is even: up once in each tree, down to two children in one.
    for (const Counts& c : counts) EXPECT_LE(c.pieces_put, n % 2 == 0 ? 4 : 6);
  }
}

TEST(Bytes, HierarchicalCrossesHostsAsAFewAsHostsNeed) {
  const std::vector<std::vector<int>> groupings = {
      {0, 0, 1, 1}, {0, 0, 0, 1, 2, 2}, {0, 1, 2, 0, 1, 2, 0}, {0, 0, 0}, {5, 6}};
  for (const std::vector<int>& hosts : groupings) {
    const int n = static_cast<int>(hosts.size());
    std::vector<int> distinct = hosts;
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    const int h = static_cast<int>(distinct.size());
    const Plan plan =
        algorithms::find(Collective::all_reduce, "hierarchical")->build({Collective::all_reduce, n, 0, hosts});
    const std::vector<Counts> counts = count(plan, hosts);
    for (const int host : distinct) {
      std::int64_t away = 0;
      for (int r = 0; r < n; ++r) away += hosts[r] == host ? counts[r].pieces_put_away : 0;
      EXPECT_EQ(away * h, 2 * (h - 1) * plan.pieces);  // 2(H-1)/H S per host
    }
  }
}

/// Groupings of ranks into hosts: even, uneven, dealt out in turn, one host, one rank each.
const std::vector<std::vector<int>> kGroupings = {{0, 0, 1, 1},          {0, 0, 0, 1, 2, 2}, {2, 0, 2, 1, 0, 0},
                                                  {0, 1, 2, 0, 1, 2, 0}, {0, 0, 0},          {5, 6, 3}};

struct ByHost {
  int hosts = 0;
  std::map<int, std::int64_t> ranks;    // on each host
  std::map<int, std::int64_t> sent;     // pieces from there to other hosts
  std::map<int, std::int64_t> arrived;  // pieces to there from other hosts
  std::int64_t messages = 0;            // between hosts
  int pieces = 0;
};

ByHost across(Collective collective, const char* name, const std::vector<int>& hosts, int root = 0) {
  const int n = static_cast<int>(hosts.size());
  const Plan plan = algorithms::find(collective, name)->build({collective, n, root, hosts});
  ByHost result;
  result.pieces = plan.pieces;
  for (const int host : hosts) ++result.ranks[host];
  result.hosts = static_cast<int>(result.ranks.size());
  std::int64_t sent = 0;
  for (int r = 0; r < n; ++r) {
    const auto& steps = plan.of_rank[static_cast<std::size_t>(r)].lanes.front().steps;
    const int here = hosts[static_cast<std::size_t>(r)];
    for (const Step& step : steps) {
      if (step.peer < 0 || hosts[static_cast<std::size_t>(step.peer)] == here) continue;
      if (step.kind == StepKind::signal && step.channel == Channel::data) ++result.messages;
      if (step.kind != StepKind::put) continue;
      result.sent[here] += step.sources.front().count;
      result.arrived[hosts[static_cast<std::size_t>(step.peer)]] += step.sources.front().count;
      sent += step.sources.front().count;
    }
  }
  EXPECT_EQ(total(count(plan, hosts)).pieces_put_away, sent);
  return result;
}

TEST(Bytes, HierarchicalReduceScatterSendsEachForeignBlockOnce) {
  for (const std::vector<int>& hosts : kGroupings) {
    ByHost moved = across(Collective::reduce_scatter, "hierarchical", hosts);
    for (const auto& [host, ranks] : moved.ranks) {
      const auto n = static_cast<std::int64_t>(hosts.size());
      EXPECT_EQ(moved.sent[host], moved.hosts == 1 ? 0 : n - ranks);
    }
  }
}

TEST(Bytes, HierarchicalAllGatherBringsEachForeignBlockOnce) {
  for (const std::vector<int>& hosts : kGroupings) {
    ByHost moved = across(Collective::all_gather, "hierarchical", hosts);
    for (const auto& [host, ranks] : moved.ranks) {
      EXPECT_EQ(moved.arrived[host], static_cast<std::int64_t>(hosts.size()) - ranks);
    }
  }
}

TEST(Bytes, HierarchicalBroadcastAndReduceCrossToEachOtherHostOnce) {
  for (const std::vector<int>& hosts : kGroupings) {
    for (int root = 0; root < static_cast<int>(hosts.size()); ++root) {
      ByHost down = across(Collective::broadcast, "hierarchical", hosts, root);
      ByHost up = across(Collective::reduce, "hierarchical", hosts, root);
      const int host_of_root = hosts[static_cast<std::size_t>(root)];
      for (const auto& [host, ranks] : down.ranks) {
        EXPECT_EQ(down.arrived[host], host == host_of_root ? 0 : down.pieces);
        EXPECT_EQ(up.sent[host], host == host_of_root ? 0 : up.pieces);
        EXPECT_LE(down.sent[host], down.pieces);  // a chain: no host sends more than once
      }
    }
  }
}

TEST(Bytes, HierarchicalAllToAllMovesWhatMustInMessagesOfWholeHosts) {
  for (const std::vector<int>& hosts : kGroupings) {
    ByHost moved = across(Collective::all_to_all, "hierarchical", hosts);
    ByHost pairwise = across(Collective::all_to_all, "pairwise", hosts);
    const auto n = static_cast<std::int64_t>(hosts.size());
    std::int64_t messages = 0;
    for (const auto& [host, ranks] : moved.ranks) {
      EXPECT_EQ(moved.sent[host], ranks * (n - ranks));
      messages += n - ranks;  // from this host, one for each rank of another
    }
    for (const auto& [host, pieces] : pairwise.sent) EXPECT_EQ(moved.sent[host], pieces);
    EXPECT_EQ(moved.messages, messages);
  }
}

TEST(Bytes, OneStepAlgorithmsSendEachRankOneMessage) {
  for (int n = 2; n <= 16; ++n) {
    for (const Counts& c : counts_of(Collective::all_reduce, "put_one_shot", n)) EXPECT_EQ(c.messages, n - 1);
    for (const Counts& c : counts_of(Collective::all_gather, "linear", n)) EXPECT_EQ(c.pieces_put, n - 1);
    EXPECT_EQ(total(counts_of(Collective::reduce, "linear", n)).pieces_put, n - 1);
  }
}

TEST(Bytes, ReduceScatterIsNMinus1Blocks) {
  for (int n = 2; n <= 64; ++n) {
    for (const char* name : {"ring", "linear"}) {
      for (const Counts& c : counts_of(Collective::reduce_scatter, name, n)) EXPECT_EQ(c.pieces_put, n - 1) << name;
    }
    if (!is_power_of_two(n)) continue;
    for (const Counts& c : counts_of(Collective::reduce_scatter, "halving", n)) {
      EXPECT_EQ(c.pieces_put, n - 1);
      EXPECT_EQ(c.messages, std::countr_zero(static_cast<unsigned>(n)));
    }
  }
}

TEST(Bytes, AllGatherIsNMinus1Blocks) {
  for (int n = 2; n <= 64; ++n) {
    for (const char* name : {"ring", "bruck"}) {
      for (const Counts& c : counts_of(Collective::all_gather, name, n)) EXPECT_EQ(c.pieces_put, n - 1) << name;
    }
    for (const char* name : {"direct", "one_shot"}) {
      for (const Counts& c : counts_of(Collective::all_gather, name, n)) EXPECT_EQ(c.pieces_read, n - 1) << name;
    }
  }
}

TEST(Bytes, BroadcastAndReduceMoveTheVectorNMinus1Times) {
  for (int n = 2; n <= 64; ++n) {
    for (const Collective collective : {Collective::broadcast, Collective::reduce}) {
      EXPECT_EQ(total(counts_of(collective, "chain", n)).pieces_put, n - 1);
      for (const Counts& c : counts_of(collective, "chain", n)) EXPECT_LE(c.pieces_put, 1);
      EXPECT_EQ(total(counts_of(collective, "double_binary_tree", n)).pieces_put, 2 * (n - 1));  // halves
      EXPECT_EQ(total(counts_of(collective, "one_shot", n)).pieces_read, n - 1);
    }
  }
}

TEST(Bytes, DirectSumsTouchEveryInputOnce) {
  for (int n = 2; n <= 64; ++n) {
    for (const Counts& c : counts_of(Collective::all_reduce, "two_shot", n)) {
      EXPECT_EQ(c.pieces_read, n - 1);  // of a piece that is 1/n
      EXPECT_EQ(c.pieces_written, n - 1);
      EXPECT_EQ(c.pieces_put, 0);
    }
    for (const Counts& c : counts_of(Collective::all_reduce, "published_two_shot", n)) {
      EXPECT_EQ(c.pieces_read, 2 * (n - 1));
      EXPECT_EQ(c.pieces_written + c.pieces_put, 0) << "of others' memory";
    }
    for (const Counts& c : counts_of(Collective::all_reduce, "one_shot", n)) EXPECT_EQ(c.pieces_read, n - 1);
    for (const Counts& c : counts_of(Collective::reduce_scatter, "direct", n)) EXPECT_EQ(c.pieces_read, n - 1);
  }
}

TEST(Bytes, AllToAllGatherAndScatterMoveEachBlockOnce) {
  for (int n = 2; n <= 64; ++n) {
    for (const char* algorithm : {"pairwise", "linear"}) {
      for (const Counts& c : counts_of(Collective::all_to_all, algorithm, n)) EXPECT_EQ(c.pieces_put, n - 1);
    }
    for (const Counts& c : counts_of(Collective::all_to_all, "direct", n)) EXPECT_EQ(c.pieces_read, n - 1);
    EXPECT_EQ(total(counts_of(Collective::gather, "linear", n)).pieces_put, n - 1);
    EXPECT_EQ(total(counts_of(Collective::scatter, "linear", n)).pieces_put, n - 1);
    EXPECT_EQ(total(counts_of(Collective::gather, "direct", n)).pieces_written, n - 1);
    EXPECT_EQ(total(counts_of(Collective::scatter, "direct", n)).pieces_read, n - 1);
  }
}

TEST(Bytes, BarrierIsLogNSignals) {
  for (int n = 2; n <= 64; ++n) {
    for (const Counts& c : counts_of(Collective::barrier, "dissemination", n)) {
      EXPECT_EQ(c.signals, std::bit_width(static_cast<unsigned>(n - 1)));
      EXPECT_EQ(c.pieces_put + c.pieces_read + c.pieces_written, 0);
    }
  }
}

}  // namespace
}  // namespace tutti::plan::bytes_test
