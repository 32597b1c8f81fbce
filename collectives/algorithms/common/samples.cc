#include "collectives/algorithms/common/samples.h"

#include <set>

namespace tutti::algorithms {
namespace {

std::set<int> sample_roots(Collective collective, int ranks) {
  if (!has_root(collective)) return {0};
  if (ranks > 8) return {0, 1, ranks / 2, ranks - 1};
  std::set<int> roots;
  for (int root = 0; root < ranks; ++root) roots.insert(root);
  return roots;
}

std::set<std::vector<int>> sample_groupings(int ranks) {
  static constexpr int kUneven[] = {0, 0, 0, 1, 2, 2};  // hosts of 3, 1 and 2 ranks
  std::vector<int> pairs, uneven, interleaved, big_and_small, single;
  for (int r = 0; r < ranks; ++r) {
    pairs.push_back(r / 2);
    uneven.push_back(r / 6 * 3 + kUneven[r % 6]);
    interleaved.push_back(r % 3);
    big_and_small.push_back(r < ranks - 2 ? 0 : 1);
    single.push_back(ranks - r);
  }
  return {{}, pairs, uneven, interleaved, big_and_small, single};
}

}  // namespace

std::vector<PlanRequest> sample_requests(const Algorithm& algorithm, int ranks) {
  std::vector<PlanRequest> requests;
  for (const int root : sample_roots(algorithm.collective, ranks)) {
    const auto groupings = algorithm.uses_hosts ? sample_groupings(ranks) : std::set<std::vector<int>>{{}};
    for (const std::vector<int>& hosts : groupings) requests.push_back({algorithm.collective, ranks, root, hosts});
  }
  return requests;
}

}  // namespace tutti::algorithms
