// The rails that carry the messages between two ranks of different hosts: a rail is the k-th NIC of every host. The
// wire with rails (transport/verbs) and the cost model both use this rule. Pure functions.
//
// How: the ranks of a host share its rails evenly, in the order of both. The p-th of r ranks has the rails from p *
// rails / r up to where the next rank's begin, and at least one. With fewer rails than ranks, neighbours share one. If
// devices are named in their order on the bus and ranks get GPUs in that order, as usual, these rails are the near
// ones. Two ranks use the share of the lower one, on both hosts. If the hosts have equally many rails, rail k only ever
// meets rail k, so networks that are not joined serve too. Otherwise each host gives that share of its own rails, and
// both use the size of the smaller one. Lane k uses the k-th rail of the share, modulo its size.
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
  /// `hosts`: the host of each rank of the job.
  explicit RailShares(const std::vector<int>& hosts);
  /// Returns the shares of some of its ranks, which keep them. A rank's number is then its place in `members`.
  RailShares of_members(std::span<const int> members) const;

  /// REQUIRES: rails > 0.
  RailShare of(int rank, int rails) const;
  /// Returns the rails of `rank`'s host (of `rails`) that it uses for `other`, whose host has `others` rails. REQUIRES:
  /// these are two hosts.
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
