// The one table of all algorithms. What the planner chooses from, what `tutti verify` proves, what options may name.
#pragma once

#include <string_view>
#include <vector>

#include "collectives/algorithms/algorithms.h"

namespace tutti::algorithms {

struct Algorithm {
  Collective collective;
  const char* name;       // unique within the collective
  const char* summary;    // one line
  bool needs_load_store;  // reads or writes peers' memory other than by put
  bool opens_peers;       // ... and that is their input or output, so these must be reachable too
  bool rank_order;        // same bits as every other such algorithm: serves deterministic mode
  bool in_place;          // send == recv is served
  bool uses_hosts;        // looks at host_of_rank
  plan::Plan (*build)(const PlanRequest& request);  // REQUIRES: serves(*this, request)
};

/// All rows, grouped by collective. The order is stable within a release; the flight recorder shows the index.
const std::vector<Algorithm>& table();

/// Returns the name of today for one that an earlier version had ("staged_direct" is "linear"); any other as it is. The
/// first old name of a process gets a line on standard error. Old names are accepted for one release.
std::string_view current_name(std::string_view name);

/// Returns the row of this name, or of this old name; else null.
const Algorithm* find(Collective collective, std::string_view name);

/// Whether build(request) makes a right plan: the collectives agree, and root and hosts are within bounds.
bool serves(const Algorithm& algorithm, const PlanRequest& request);

}  // namespace tutti::algorithms
