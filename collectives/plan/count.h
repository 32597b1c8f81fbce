// What a plan does, in numbers: to compare with the textbook, and for the planner's prices.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/plan/plan.h"

namespace tutti::plan {

/// The counts of one rank, in one run of the body (one round). Bytes are pieces times the size of a piece.
struct Counts {
  std::int64_t steps = 0;
  std::int64_t messages = 0;         // puts
  std::int64_t pieces_put = 0;       // by put, to whomever
  std::int64_t pieces_put_away = 0;  // ... of these to another host
  std::int64_t pieces_read = 0;      // from peers' memory, by copy and reduce
  std::int64_t pieces_written = 0;   // to peers' memory, by copy and reduce
  std::int64_t pieces_reduced = 0;   // operands beyond the first of each sum
  std::int64_t signals = 0;          // data signals
};

/// Returns the counts of every rank. `host_of_rank`: as in a PlanRequest; empty: one host.
std::vector<Counts> count(const Plan& plan, const std::vector<int>& host_of_rank = {});

/// Field by field.
Counts total(const std::vector<Counts>& counts);

}  // namespace tutti::plan
