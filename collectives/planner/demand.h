// What a call demands of an algorithm, made from the call in one place.
#pragma once

#include <cstddef>
#include <string_view>

#include "collectives/call.h"
#include "collectives/planner/selection.h"

namespace tutti::planner {

struct DemandOptions {
  bool deterministic = false;  // of the communicator; a call may ask for it too
  /// Names of the communicator's option. They hold where they can serve; names of the call are a demand.
  std::string_view preferred;
  bool load_store = true;
  bool buffers_open = true;
  int lanes = 64;
};

/// `bytes`: of the largest buffer of the call.
inline Demand demand_of(const Call& call, int ranks, std::size_t bytes, const DemandOptions& options) {
  Demand demand;
  demand.collective = call.collective;
  demand.ranks = ranks;
  demand.bytes = bytes;
  demand.deterministic = call.deterministic || options.deterministic;
  demand.load_store = options.load_store;
  demand.buffers_open = options.buffers_open;
  demand.lanes = options.lanes;
  demand.algorithm = call.algorithm;
  if (demand.algorithm.empty() && !options.preferred.empty()) {
    const algorithms::Algorithm* row = algorithms::find(call.collective, options.preferred);
    if (row != nullptr && why_not(*row, demand).empty()) demand.algorithm = options.preferred;
  }
  return demand;
}

}  // namespace tutti::planner
