// What a plan makes of its inputs, to the bit: its steps one after the other, each piece whole, by the scalar
// reference. No rounds, strips or express cells, no threads: a second way to the same numbers.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "collectives/executor/prepared.h"
#include "collectives/executor/uneven.h"

namespace tutti::testing {

/// The buffers of one rank. The output is written; in place it is the input too.
struct OracleRank {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  double factor = 1.0;
  const executor::UnevenPieces* uneven = nullptr;  // of an all_to_allv
};

/// False when the plan hangs.
bool run_by_reference(const std::shared_ptr<const plan::Plan>& plan, const executor::Shape& shape,
                      std::span<const OracleRank> ranks);

}  // namespace tutti::testing
