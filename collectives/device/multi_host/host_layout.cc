#include "collectives/device/multi_host/host_layout.h"

#include <algorithm>
#include <map>

namespace tutti {

std::optional<HostLayout> HostLayout::of(std::span<const int> hosts, int rank, const char** why_not) {
  HostLayout grid;
  std::map<int, std::size_t> row_of;  // by host, in the order of their first ranks
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    const auto [row, first] = row_of.emplace(hosts[r], grid.rows_.size());
    if (first) grid.rows_.emplace_back();
    grid.rows_[row->second].push_back(static_cast<int>(r));
  }
  const std::size_t places = grid.rows_.front().size();
  const auto refuse = [&](const char* why) {
    *why_not = why;
    return std::nullopt;
  };
  if (grid.rows_.size() == 1) return refuse("there is one host");
  for (const std::vector<int>& row : grid.rows_) {
    if (row.size() != places) return refuse("hosts have different numbers of ranks");
  }
  if (places == 1) return refuse("each host has one rank");
  grid.step_ = grid.rows_.front()[1] - grid.rows_.front()[0];
  for (const std::vector<int>& row : grid.rows_) {
    for (std::size_t p = 1; p < places; ++p) {
      if (row[p] - row[p - 1] != grid.step_) return refuse("the hosts' ranks are not in one order");
    }
  }
  grid.host_ = grid.host_of(rank);
  grid.place_ = grid.place_of(rank);
  return grid;
}

int HostLayout::host_of(int rank) const {
  const auto found = std::find_if(rows_.begin(), rows_.end(), [rank](const std::vector<int>& row) {
    return std::find(row.begin(), row.end(), rank) != row.end();
  });
  return static_cast<int>(found - rows_.begin());
}

int HostLayout::place_of(int rank) const {
  const std::vector<int>& row = rows_[static_cast<std::size_t>(host_of(rank))];
  return static_cast<int>(std::find(row.begin(), row.end(), rank) - row.begin());
}

std::vector<int> HostLayout::column() const {
  std::vector<int> column;
  for (const std::vector<int>& row : rows_) column.push_back(row[static_cast<std::size_t>(place_)]);
  return column;
}

}  // namespace tutti
