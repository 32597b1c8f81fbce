// Hierarchical plans work within hosts and across them at the same time. Shown by the plans alone: they are walked
// where the network brings something only when no rank can go on without it. What moves within a host while it has a
// message under way is hidden behind the network; while there is none, the network rests.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/algorithms/table.h"
#include "collectives/plan/rename.h"
#include "collectives/plan/verify.h"

namespace tutti::plan::overlap_test {
namespace {

struct Moved {
  int within = 0;  // pieces put from rank to rank of a host
  int hidden = 0;  // of these, while the host had a message under way, to another host or from one
};

/// The messages that the network then brings.
enum class Network : std::uint8_t { all_that_is_under_way, the_oldest };

class Walk {
 public:
  Walk(const Plan& plan, const std::vector<int>& hosts, int rounds, Network network)
      : plan_(plan), hosts_(hosts), rounds_(rounds), network_(network) {}

  Moved run() {
    const int lanes = static_cast<int>(plan_.of_rank[0].lanes.size());
    cursors_.resize(static_cast<std::size_t>(plan_.ranks * lanes));
    while (true) {
      bool moved = false;
      for (int rank = 0; rank < plan_.ranks; ++rank) {
        for (int lane = 0; lane < lanes; ++lane) {
          moved |= go_on(cursors_[static_cast<std::size_t>(rank * lanes + lane)], rank, lane);
        }
      }
      if (moved) continue;
      if (under_way_.empty()) break;
      do {
        ++signals_[under_way_.front()];
        under_way_.pop_front();
      } while (network_ == Network::all_that_is_under_way && !under_way_.empty());
    }
    for (const Cursor& cursor : cursors_) EXPECT_EQ(cursor.round, rounds_);
    return moved_;
  }

 private:
  struct Cursor {
    int round = 0;
    std::size_t step = 0;
  };
  using Link = std::tuple<int, int, int, Channel>;  // from, to, lane

  int host_of(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }

  /// A lane until it must wait; whether it has moved.
  bool go_on(Cursor& at, int rank, int lane) {
    const std::vector<Step>& steps =
        plan_.of_rank[static_cast<std::size_t>(rank)].lanes[static_cast<std::size_t>(lane)].steps;
    const Cursor before = at;
    for (; at.round < rounds_; ++at.round, at.step = 0) {
      for (; at.step < steps.size(); ++at.step) {
        const Step& step = steps[at.step];
        const bool runs = step.guard == Guard::always || (step.guard == Guard::from_third_round && at.round >= 2) ||
                          (step.guard == Guard::until_third_to_last && at.round + 2 < rounds_);
        if (runs && !execute(step, rank, lane)) return at.round != before.round || at.step != before.step;
      }
    }
    return at.round != before.round || at.step != before.step;
  }

  bool execute(const Step& step, int rank, int lane) {
    if (step.kind == StepKind::wait) {
      int& signals = signals_[{step.peer, rank, lane, step.channel}];
      return signals > 0 && signals-- > 0;
    }
    const bool away = step.peer >= 0 && host_of(step.peer) != host_of(rank);
    if (step.kind == StepKind::signal) {
      const Link link{rank, step.peer, lane, step.channel};
      if (away) {
        under_way_.push_back(link);
      } else {
        ++signals_[link];
      }
    }
    if (step.kind == StepKind::put && !away) {
      moved_.within += step.sources[0].count;
      if (has_message(host_of(rank))) moved_.hidden += step.sources[0].count;
    }
    return true;
  }

  bool has_message(int host) const {
    for (const auto& [from, to, lane, channel] : under_way_) {
      if (channel == Channel::data && (host_of(from) == host || host_of(to) == host)) return true;
    }
    return false;
  }

  const Plan& plan_;
  const std::vector<int>& hosts_;
  const int rounds_;
  const Network network_;
  std::vector<Cursor> cursors_;
  std::map<Link, int> signals_;
  std::deque<Link> under_way_;  // to other hosts
  Moved moved_;
};

const std::vector<std::vector<int>> kEven = {
    {0, 0, 1, 1}, {0, 0, 1, 1, 2, 2, 3, 3}, {0, 0, 0, 0, 1, 1, 1, 1}, {2, 0, 1, 0, 1, 2}};
const std::vector<int> kUneven = {0, 0, 0, 1, 2, 2};

class Overlap : public ::testing::TestWithParam<Collective> {
 protected:
  static Plan build(const std::vector<int>& hosts) {
    return algorithms::find(GetParam(), "hierarchical")->build({GetParam(), static_cast<int>(hosts.size()), 0, hosts});
  }
  /// Half of the message in each of two lanes.
  static Plan two_lanes(const std::vector<int>& hosts) { return side_by_side({build(hosts), build(hosts)}); }
};

INSTANTIATE_TEST_SUITE_P(Hierarchical, Overlap,
                         ::testing::Values(Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                           Collective::broadcast, Collective::all_to_all),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// What a host does within has a part for each of the hosts, and all but one are done beside a message.
TEST_P(Overlap, OneOfAsManyPartsAsThereAreHostsIsSeen) {
  for (const std::vector<int>& hosts : kEven) {
    const int h = *std::max_element(hosts.begin(), hosts.end()) + 1;
    for (const Plan& plan : {build(hosts), two_lanes(hosts)}) {
      for (const int rounds : {1, 4}) {
        const Moved moved = Walk(plan, hosts, rounds, Network::all_that_is_under_way).run();
        EXPECT_GT(moved.within, 0);
        EXPECT_GE(h * moved.hidden, (h - 1) * moved.within) << ::testing::PrintToString(hosts) << ", " << rounds;
      }
    }
  }
  // Where a host of one rank has nothing to do within it, others have less to hide.
  const Moved moved = Walk(build(kUneven), kUneven, 1, Network::all_that_is_under_way).run();
  EXPECT_GT(3 * moved.hidden, moved.within);
}

// Of eight halves of a round the network sees one: before its first message, or after its last.
TEST_P(Overlap, LanesKeepTheNetworkAtWork) {
  for (const std::vector<int>& hosts : kEven) {
    const Moved moved = Walk(two_lanes(hosts), hosts, 4, Network::the_oldest).run();
    EXPECT_GE(8 * moved.hidden, 7 * moved.within) << ::testing::PrintToString(hosts);
  }
}

TEST_P(Overlap, TwoLanesAreProven) {
  std::vector<std::vector<int>> groupings = kEven;
  groupings.push_back(kUneven);
  for (const std::vector<int>& hosts : groupings) {
    const Plan plan = two_lanes(hosts);
    for (int rounds = 1; rounds <= 4; ++rounds) {
      for (const bool in_place : {false, true}) {
        const Status status = verify(plan, {.in_place = in_place, .rounds = rounds});
        EXPECT_TRUE(status.ok()) << ::testing::PrintToString(hosts) << ": " << status.message();
      }
    }
  }
}

}  // namespace
}  // namespace tutti::plan::overlap_test
