// Leave notices that the server has not sent on yet. The ranks of a communicator end it at about the same time: notices
// are gathered for a moment, so that each rank receives several in one message.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "transport/bootstrap/endpoint.h"
#include "transport/bootstrap/message.h"

namespace tutti::bootstrap {

class PendingLeaveNotices {
 public:
  using Clock = BootstrapEndpoint::Clock;

  /// Errors: invalid_argument.
  Status add(int from, const LeaveNotice& notice, int ranks) {
    for (const int to : notice.ranks) {
      if (to < 0 || to >= ranks) return invalid_argument("a leave notice to an unknown rank");
    }
    if (pending_.empty()) due_ = Clock::now() + kGather;
    for (const int to : notice.ranks) pending_[{to, notice.comm_id, notice.came}].push_back(from);
    return {};
  }

  /// Returns when they are to be sent; max(): there are none.
  Clock::time_point due() const { return pending_.empty() ? Clock::time_point::max() : due_; }

  /// Takes all: to which rank, and what.
  std::vector<std::pair<int, LeaveNotice>> take() {
    std::vector<std::pair<int, LeaveNotice>> all;
    for (auto& [to, from] : std::exchange(pending_, {})) {
      const auto& [rank, comm_id, came] = to;
      all.emplace_back(rank, LeaveNotice{comm_id, came, std::move(from)});
    }
    return all;
  }

 private:
  static constexpr std::chrono::milliseconds kGather{1};

  std::map<std::tuple<int, std::uint64_t, std::uint8_t>, std::vector<std::int32_t>> pending_;  // to, comm_id, came
  Clock::time_point due_{};
};

}  // namespace tutti::bootstrap
