// The names of collectives and algorithms, as options take them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"
#include "collectives/algorithms/table.h"
#include "collectives/planner/selection.h"

namespace tutti::cli {

inline std::optional<Collective> collective_of(const std::string& name) {
  for (int i = 0; i < kCollectives; ++i) {
    if (name == name_of(static_cast<Collective>(i))) return static_cast<Collective>(i);
  }
  return std::nullopt;
}

/// The algorithm that TUTTI_ALGORITHM names, where it can serve, as a communicator takes it; else nothing.
inline std::string_view preferred_for(const planner::Demand& demand) {
  const std::string& preferred = options::text(Option::algorithm);
  const algorithms::Algorithm* row = algorithms::find(demand.collective, preferred);
  return row != nullptr && planner::why_not(*row, demand).empty() ? std::string_view(preferred) : std::string_view();
}

/// The rows that both names fit; an empty name fits all.
inline std::vector<const algorithms::Algorithm*> rows_of(const std::string& collective, const std::string& algorithm) {
  std::vector<const algorithms::Algorithm*> rows;
  for (const algorithms::Algorithm& row : algorithms::table()) {
    if (!collective.empty() && collective != name_of(row.collective)) continue;
    if (!algorithm.empty() && algorithms::current_name(algorithm) != row.name) continue;
    rows.push_back(&row);
  }
  return rows;
}

/// "all_reduce: one_shot two_shot ...", a line for each collective.
inline std::string all_names() {
  std::string text;
  const Collective* last = nullptr;
  for (const algorithms::Algorithm& row : algorithms::table()) {
    if (last == nullptr || *last != row.collective) text += std::string("\n  ") + name_of(row.collective) + ":";
    last = &row.collective;
    text += std::string(" ") + row.name;
  }
  return text;
}

}  // namespace tutti::cli
