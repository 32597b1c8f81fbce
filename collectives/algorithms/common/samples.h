// Requests that together show an algorithm in all its cases; for the proof (`tutti verify`) and the tests.
#pragma once

#include <vector>

#include "collectives/algorithms/table.h"

namespace tutti::algorithms {

/// Returns requests for `ranks` ranks: every root up to 8 ranks, a first, second, middle and last one beyond. For an
/// algorithm that looks at hosts also even, uneven, interleaved and single-rank groupings. One request for all others.
std::vector<PlanRequest> sample_requests(const Algorithm& algorithm, int ranks);

}  // namespace tutti::algorithms
