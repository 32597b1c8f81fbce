// Farewells that the hub (hub.h) has not told yet. The ranks of a communicator end it at about the same time: for a
// moment they are gathered, so that each hears of several at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "transport/bootstrap/local_rank.h"
#include "transport/bootstrap/message.h"

namespace tutti::bootstrap {

class PendingFarewells {
 public:
  using Clock = LocalRank::Clock;

  /// Errors: invalid_argument.
  Status add(int from, const Farewells& said, int ranks) {
    for (const int to : said.ranks) {
      if (to < 0 || to >= ranks) return invalid_argument("a farewell to an unknown rank");
    }
    if (pending_.empty()) due_ = Clock::now() + kGather;
    for (const int to : said.ranks) pending_[{to, said.scope, said.came}].push_back(from);
    return {};
  }

  /// When they are to be told; max(): there are none.
  Clock::time_point due() const { return pending_.empty() ? Clock::time_point::max() : due_; }

  /// All, which are to be told now: to whom, and what.
  std::vector<std::pair<int, Farewells>> take() {
    std::vector<std::pair<int, Farewells>> all;
    for (auto& [to, of] : std::exchange(pending_, {})) {
      const auto& [rank, scope, came] = to;
      all.emplace_back(rank, Farewells{scope, came, std::move(of)});
    }
    return all;
  }

 private:
  static constexpr std::chrono::milliseconds kGather{1};

  std::map<std::tuple<int, std::uint64_t, std::uint8_t>, std::vector<std::int32_t>> pending_;  // to whom, scope, came
  Clock::time_point due_{};
};

}  // namespace tutti::bootstrap
