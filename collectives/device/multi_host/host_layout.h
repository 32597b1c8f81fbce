// A layout of ranks on hosts, the same number on each. Ranks with the same local rank on all hosts are a cross-host
// group. Shared data crosses the network within these groups, and is put together within hosts (hierarchical_call.h).
// Pure.
//
//   ranks on hosts a a b b:   hosts {0 1} {2 3}, cross-host groups {0 2} {1 3}, step 1
//   ranks on hosts a b a b:   hosts {0 2} {1 3}, cross-host groups {0 1} {2 3}, step 2
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace tutti {

class HostLayout {
 public:
  /// `rank`'s view. `hosts`: that of each rank, equal numbers on the same host. Nothing where there is one host, or one
  /// rank on each, or where hosts have different numbers of ranks, or their ranks lie differently far apart: then
  /// `why_not` says so.
  static std::optional<HostLayout> of(std::span<const int> hosts, int rank, const char** why_not);

  int hosts() const { return static_cast<int>(ranks_of_host_.size()); }
  int local_size() const { return static_cast<int>(ranks_of_host_.front().size()); }
  int host() const { return host_; }
  int local_rank() const { return local_rank_; }
  int rank(int host, int place) const {
    return ranks_of_host_[static_cast<std::size_t>(host)][static_cast<std::size_t>(place)];
  }
  int host_of(int rank) const;
  int local_rank_of(int rank) const;
  /// Returns the distance from a rank of a host to the next one of that host; the same on all.
  int step() const { return step_; }
  /// Returns the ranks of this host, by place.
  const std::vector<int>& intra_host() const { return ranks_of_host_[static_cast<std::size_t>(host_)]; }
  /// Returns the ranks at this rank's place, by host.
  std::vector<int> cross_host() const;

 private:
  std::vector<std::vector<int>> ranks_of_host_;
  int host_ = 0;
  int local_rank_ = 0;
  int step_ = 1;
};

}  // namespace tutti
