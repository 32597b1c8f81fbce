// Which rails carry what passes between two ranks of different hosts: a rail is the k-th NIC of every host. The wire
// that has rails (transport/verbs) and the model that prices plans both ask here. Pure.
//
// The rule. Ranks share the rails of their host evenly, in the order of both: of r ranks the p-th has the rails from
// p * rails / r on, to where the next one's begin, one at least; so with fewer rails than ranks neighbours have one
// together. Where devices are named in their order on the bus, and ranks are given GPUs in theirs, as usual, these are
// the near ones. Two ranks go by the share of the lower one, on both hosts: so where hosts have equally many, rail k
// only ever meets rail k, and networks that join no others serve. Else each host gives that share of its own, of which
// both use as many as the smaller one has. Lane k goes by the k-th of the share, around.
#pragma once

#include <span>
#include <vector>

namespace tutti::topology {

struct RailShare {
  int first = 0;
  int count = 1;

  int of_lane(int lane) const { return first + lane % count; }
  bool has(int rail) const { return first <= rail && rail < first + count; }
};

class RailShares {
 public:
  /// The host of each rank of the job.
  explicit RailShares(const std::vector<int>& hosts);
  /// Returns the rails of some of its ranks, which are numbered by their place in `members`: they keep what they share.
  RailShares of_members(std::span<const int> members) const;

  /// REQUIRES: rails > 0.
  RailShare of(int rank, int rails) const;
  /// Those of `rank`'s host, which has `rails`, by which it and `other` go, whose host has `others`. REQUIRES: these
  /// are two hosts.
  RailShare between(int rank, int rails, int other, int others) const;

 private:
  struct Place {
    int rank = 0;    // in the job
    int before = 0;  // ranks of its host that are lower
    int ranks = 0;   // of its host
  };
  std::vector<Place> places_;
};

}  // namespace tutti::topology
