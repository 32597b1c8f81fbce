// One call of Tutti, as data: what a collective of torch comes down to (one or more of them).
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "csrc/tensors/types.h"
#include "tutti/tutti.hpp"

namespace tutti_torch {

/// Counts and offsets of an all_to_allv, in elements, one entry per rank.
struct Splits {
  std::vector<std::size_t> send_counts;
  std::vector<std::size_t> send_offsets;
  std::vector<std::size_t> recv_counts;
  std::vector<std::size_t> recv_offsets;
};

/// `count` as tutti.hpp has it for each collective. Does not keep the memory alive.
struct Operation {
  tutti::Collective kind = tutti::Collective::barrier;
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  tutti::DataType type = tutti::DataType::u8;
  tutti::ReduceOp op = tutti::ReduceOp::sum;
  double factor = 1.0;
  int root = 0;
  std::shared_ptr<const Splits> splits;
  tutti::Stream stream = nullptr;  // of device memory
};

/// Carries it out on this thread. Throws tutti::Error.
void run(tutti::Communicator& communicator, const Operation& operation);
/// Starts it on the communicator's own thread. Throws tutti::Error.
tutti::Work start(tutti::Communicator& communicator, const Operation& operation);

}  // namespace tutti_torch
