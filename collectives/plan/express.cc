#include "collectives/plan/express.h"

#include <algorithm>
#include <cstddef>

namespace tutti::plan {

std::optional<SlotSenders> express_senders(const Plan& plan) {
  if (opens_peers(plan) || (plan.slots != 0 && plan.published != 0) || plan.published > 1) return std::nullopt;
  const auto n = static_cast<std::size_t>(plan.ranks);
  SlotSenders senders(n, std::vector<int>(static_cast<std::size_t>(plan.slots), -1));
  for (std::size_t rank = 0; rank < n; ++rank) {
    if (plan.of_rank[rank].lanes.size() != 1) return std::nullopt;
    std::vector<bool> signalled(n);
    std::vector<bool> waited(n);
    std::vector<bool> put(n);
    for (const Step& s : plan.of_rank[rank].lanes.front().steps) {
      if (s.guard != Guard::always) continue;  // never runs in a single round
      if (s.kind == StepKind::signal || s.kind == StepKind::wait) {
        std::vector<bool>& met = s.kind == StepKind::signal ? signalled : waited;
        const auto peer = static_cast<std::size_t>(s.peer);
        if (met[peer]) return std::nullopt;
        met[peer] = true;
      }
      for (const Range& range : s.sources) {
        if (!is_user(range.space) && range.count != 1) return std::nullopt;
      }
      for (const Range& range : s.destinations) {
        if (is_user(range.space)) continue;
        const auto to = static_cast<std::size_t>(range.rank);
        if (range.space == Space::published) {
          if (std::find(signalled.begin(), signalled.end(), true) != signalled.end()) return std::nullopt;
          continue;
        }
        int& sender = senders[to][static_cast<std::size_t>(range.first)];
        if (to == rank || range.count != 1 || signalled[to] || put[to] || sender >= 0) return std::nullopt;
        put[to] = true;
        sender = static_cast<int>(rank);
      }
    }
  }
  return senders;
}

}  // namespace tutti::plan
