// Plans by algorithm and root, so that calls of another size need not build them again. Bounded: the oldest goes first.
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/algorithms/table.h"

namespace tutti::planner {

/// Returns the bytes that a plan takes, estimated.
std::size_t bytes_of(const plan::Plan& plan);

class PlanCache {
 public:
  PlanCache(int ranks, std::vector<int> host_of_rank) : ranks_(ranks), host_of_rank_(std::move(host_of_rank)) {}

  std::shared_ptr<const plan::Plan> get(const algorithms::Algorithm& algorithm, Collective collective, int root);
  /// Bytes that the cached plans take, estimated.
  std::size_t memory() const { return bytes_; }

 private:
  struct Entry {
    const algorithms::Algorithm* algorithm;
    int root;
    std::size_t bytes;
    std::shared_ptr<const plan::Plan> plan;
  };

  int ranks_;
  std::vector<int> host_of_rank_;
  std::deque<Entry> entries_;
  std::size_t bytes_ = 0;
};

}  // namespace tutti::planner
