// One call of a collective, a send or a receive: checked, then run at once or started with others.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "nccl/abi.h"
#include "nccl/call_config.h"
#include "nccl/comm.h"
#include "tutti/tutti.hpp"

namespace tutti::nccl {

struct Operation {
  const char* function = "";  // "ncclAllReduce"
  std::shared_ptr<Comm> comm;
  Collective collective{};  // send_recv: a message, with `root` as its peer
  const void* send = nullptr;
  void* recv = nullptr;  // of a message: null when it is sent
  std::size_t count = 0;
  DataType type{};
  ReduceOp op = ReduceOp::sum;
  std::optional<Scaling> scaling;
  CallConfig config;
  int root = 0;
  cudaStream_t stream = nullptr;
  bool sends = false;  // a message's direction

  bool is_message() const { return collective == Collective::send_recv; }
};

/// The caller's numbers as an operation's. Errors: ncclInvalidArgument, when they are none of NCCL's.
Outcome read_type(Operation& operation, ncclDataType_t type);
/// REQUIRES: read_type() first.
Outcome read_op(Operation& operation, ncclRedOp_t op);

/// Everything that can be wrong with one rank's call alone. Errors: ncclInvalidArgument; and what settled() says.
Outcome check(const Operation& operation);

/// Runs it; returns when it is done.
Outcome run(const Operation& operation);
/// Starts a collective. Throws tutti::Error.
Work start(const Operation& operation);
/// Runs the operations of one communicator: its collectives in their order (on device memory in as few launches as can
/// be), then its messages, all at the same time.
Outcome run_batch(std::span<const Operation> collectives, std::span<const Operation> messages);
/// Messages of one communicator, all at the same time. Throws tutti::Error.
Work start_messages(std::span<const Operation> messages);

}  // namespace tutti::nccl
