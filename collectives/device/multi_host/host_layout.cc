#include "collectives/device/multi_host/host_layout.h"

#include <algorithm>
#include <map>

namespace tutti {

std::optional<HostLayout> HostLayout::of(std::span<const int> hosts, int rank, const char** why_not) {
  HostLayout layout;
  std::map<int, std::size_t> row_of;  // by host, in the order of their first ranks
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    const auto [row, first] = row_of.emplace(hosts[r], layout.ranks_of_host_.size());
    if (first) layout.ranks_of_host_.emplace_back();
    layout.ranks_of_host_[row->second].push_back(static_cast<int>(r));
  }
  const std::size_t places = layout.ranks_of_host_.front().size();
  const auto refuse = [&](const char* why) {
    *why_not = why;
    return std::nullopt;
  };
  if (layout.ranks_of_host_.size() == 1) return refuse("there is one host");
  for (const std::vector<int>& row : layout.ranks_of_host_) {
    if (row.size() != places) return refuse("hosts have different numbers of ranks");
  }
  if (places == 1) return refuse("each host has one rank");
  layout.step_ = layout.ranks_of_host_.front()[1] - layout.ranks_of_host_.front()[0];
  for (const std::vector<int>& row : layout.ranks_of_host_) {
    for (std::size_t p = 1; p < places; ++p) {
      if (row[p] - row[p - 1] != layout.step_) return refuse("the hosts' ranks are not in one order");
    }
  }
  layout.host_ = layout.host_of(rank);
  layout.local_rank_ = layout.local_rank_of(rank);
  return layout;
}

int HostLayout::host_of(int rank) const {
  const auto found = std::find_if(ranks_of_host_.begin(), ranks_of_host_.end(), [rank](const std::vector<int>& row) {
    return std::find(row.begin(), row.end(), rank) != row.end();
  });
  return static_cast<int>(found - ranks_of_host_.begin());
}

int HostLayout::local_rank_of(int rank) const {
  const std::vector<int>& row = ranks_of_host_[static_cast<std::size_t>(host_of(rank))];
  return static_cast<int>(std::find(row.begin(), row.end(), rank) - row.begin());
}

std::vector<int> HostLayout::cross_host() const {
  std::vector<int> column;
  for (const std::vector<int>& row : ranks_of_host_) column.push_back(row[static_cast<std::size_t>(local_rank_)]);
  return column;
}

}  // namespace tutti
