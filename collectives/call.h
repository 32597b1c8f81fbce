// One call of a collective, as every implementation behind a Communicator receives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tutti/types.hpp"

namespace tutti {

/// One call of a collective, as the caller made it. Meaning of `count` per collective (as in NCCL):
///   all_reduce, reduce, broadcast  elements of the vector
///   all_gather, gather             elements that each rank gives
///   reduce_scatter, scatter        elements that each rank gets
///   all_to_all                     elements for each peer
///   all_to_allv                    send_counts etc. instead; 0
/// Buffers belong to the caller and must stay valid until the call (or its Work) is done.
struct Call {
  Collective collective = Collective::barrier;
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  double factor = 1.0;  // premul_sum: what this rank's contribution is multiplied by

  // all_to_allv, in elements, one entry per rank.
  const std::size_t* send_counts = nullptr;
  const std::size_t* send_offsets = nullptr;
  const std::size_t* recv_counts = nullptr;
  const std::size_t* recv_offsets = nullptr;

  bool deterministic = false;  // this call only; a communicator may ask for it for all its calls
  std::string_view algorithm;  // see CallOptions::algorithm; empty: the planner chooses
  Stream stream = nullptr;     // of a call on device memory
};

/// One message of a group of sends and receives.
struct Transfer {
  bool sending = false;
  int peer = 0;            // receiving: or kAnySource
  void* buffer = nullptr;  // read only when sending
  std::size_t count = 0;
  DataType type = DataType::u8;
  int tag = 0;              // not negative
  int* source = nullptr;    // receiving: becomes the sender's rank, when it is done; null: not asked for
  Stream stream = nullptr;  // of device memory
};

}  // namespace tutti
