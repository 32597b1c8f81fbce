#include "topology/rails.h"

#include <algorithm>
#include <cstddef>
#include <map>

namespace tutti::topology {

RailShares::RailShares(const std::vector<int>& hosts) {
  std::map<int, int> ranks;
  for (const int host : hosts) places_.push_back({static_cast<int>(places_.size()), ranks[host]++, 0});
  for (Place& place : places_) place.ranks = ranks[hosts[static_cast<std::size_t>(place.rank)]];
}

RailShares RailShares::of_members(std::span<const int> members) const {
  RailShares result({});
  for (const int member : members) result.places_.push_back(places_[static_cast<std::size_t>(member)]);
  return result;
}

RailShare RailShares::of(int rank, int rails) const {
  const Place& place = places_[static_cast<std::size_t>(rank)];
  const int first = place.before * rails / place.ranks;
  return {first, std::max((place.before + 1) * rails / place.ranks - first, 1)};
}

RailShare RailShares::between(int rank, int rails, int other, int others) const {
  const bool is_lower = places_[static_cast<std::size_t>(rank)].rank < places_[static_cast<std::size_t>(other)].rank;
  const int lower = is_lower ? rank : other;
  RailShare share = of(lower, rails);
  share.count = std::min(share.count, of(lower, others).count);
  return share;
}

}  // namespace tutti::topology
