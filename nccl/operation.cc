#include "nccl/operation.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <string>

#include "nccl/device.h"
#include "nccl/scalar.h"

namespace tutti::nccl {
namespace {

constexpr std::array<DataType, ncclNumTypes> kTypes = {
    DataType::i8,  DataType::u8,  DataType::i32, DataType::u32,  DataType::i64,    DataType::u64,
    DataType::f16, DataType::f32, DataType::f64, DataType::bf16, DataType::f8e4m3, DataType::f8e5m2};
constexpr std::array<ReduceOp, ncclNumOps> kOps = {ReduceOp::sum, ReduceOp::prod, ReduceOp::max, ReduceOp::min,
                                                   ReduceOp::avg};

Outcome wrong(const Operation& operation, const std::string& what) {
  return {ncclInvalidArgument, fmt::format("{}: {}: {}", operation.function, operation.comm->who(), what)};
}

bool reads_send(const Operation& o) {
  if (o.is_message()) return o.sends;
  return (o.collective != Collective::broadcast && o.collective != Collective::scatter) || o.comm->rank() == o.root;
}

bool writes_recv(const Operation& o) {
  if (o.is_message()) return !o.sends;
  return (o.collective != Collective::reduce && o.collective != Collective::gather) || o.comm->rank() == o.root;
}

/// A scalar in memory is read now. Throws invalid_argument where a double does not hold it.
CallOptions options_of(const Operation& operation) {
  CallOptions options = options_of(operation.stream);
  options.algorithm = operation.config.algorithm;
  options.deterministic = operation.config.deterministic;
  if (!operation.scaling) return options;
  options.factor = operation.scaling->factor;
  if (operation.scaling->scalar == nullptr) return options;
  std::array<std::byte, 8> element{};
  read_scalar(element.data(), operation.scaling->scalar, size_of(operation.type), operation.stream);
  const std::optional<double> factor = value_of(operation.type, element.data());
  if (!factor) {
    throw Error(Code::invalid_argument, "the scalar is an integer that a double does not hold; expected at most 2^53");
  }
  options.factor = *factor;
  return options;
}

void add_message(const Operation& o) {
  if (o.sends) {
    send(o.comm->tutti(), o.send, o.count, o.type, o.root, o.stream);
  } else {
    recv(o.comm->tutti(), o.recv, o.count, o.type, o.root, o.stream);
  }
}

void run_or_throw(const Operation& o) {
  Communicator& c = o.comm->tutti();
  const CallOptions options = options_of(o);
  switch (o.collective) {
    case Collective::all_reduce: return c.all_reduce(o.send, o.recv, o.count, o.type, o.op, options);
    case Collective::reduce_scatter: return c.reduce_scatter(o.send, o.recv, o.count, o.type, o.op, options);
    case Collective::all_gather: return c.all_gather(o.send, o.recv, o.count, o.type, options);
    case Collective::broadcast: return c.broadcast(o.send, o.recv, o.count, o.type, o.root, options);
    case Collective::reduce: return c.reduce(o.send, o.recv, o.count, o.type, o.op, o.root, options);
    case Collective::all_to_all: return c.all_to_all(o.send, o.recv, o.count, o.type, options);
    case Collective::gather: return c.gather(o.send, o.recv, o.count, o.type, o.root, options);
    case Collective::scatter: return c.scatter(o.send, o.recv, o.count, o.type, o.root, options);
    case Collective::send_recv: return add_message(o);
    case Collective::all_to_allv:
    case Collective::barrier: break;  // NCCL has neither
  }
}

template <class Body>
Outcome outcome_from(Comm& comm, const char* function, Body&& body) {
  const Progress::Caller caller(comm.progress());
  try {
    body();
    return {};
  } catch (...) {
    Outcome outcome = outcome_of_current_exception(function);
    comm.progress().note(outcome);
    return outcome;
  }
}

}  // namespace

Outcome read_type(Operation& operation, ncclDataType_t type) {
  if (type < 0 || type >= ncclNumTypes) {
    return wrong(operation, fmt::format("datatype is {}; expected 0 to {}", static_cast<int>(type), ncclNumTypes - 1));
  }
  operation.type = kTypes[static_cast<std::size_t>(type)];
  return {};
}

Outcome read_op(Operation& operation, ncclRedOp_t op) {
  if (op >= 0 && op < ncclNumOps) {
    operation.op = kOps[static_cast<std::size_t>(op)];
    return {};
  }
  operation.scaling = operation.comm->operators().find(op);
  if (!operation.scaling) {
    return wrong(operation, fmt::format("op is {:#x}; expected 0 to {}, or an operator that was made with this "
                                        "communicator and not destroyed",
                                        static_cast<unsigned>(op), ncclNumOps - 1));
  }
  if (operation.scaling->type != operation.type) {
    return wrong(operation, fmt::format("op was made for {} and the datatype is {}; expected the same",
                                        name_of(operation.scaling->type), name_of(operation.type)));
  }
  operation.op = ReduceOp::premul_sum;
  return {};
}

Outcome check(const Operation& o) {
  const int size = o.comm->size();
  if ((o.is_message() || has_root(o.collective)) && (o.root < 0 || o.root >= size)) {
    return wrong(o, fmt::format("{} is {}; expected 0 to {}", o.is_message() ? "peer" : "root", o.root, size - 1));
  }
  const std::size_t most = SIZE_MAX / 2 / size_of(o.type) / static_cast<std::size_t>(size);
  if (o.count > most) return wrong(o, fmt::format("count is {}; at most {} elements fit in memory", o.count, most));
  if (o.count == 0) return {};
  if (o.send == nullptr && reads_send(o)) {
    return wrong(o, fmt::format("sendbuff is null; expected {} elements", o.count));
  }
  if (o.recv == nullptr && writes_recv(o)) {
    return wrong(o, fmt::format("recvbuff is null; expected room for {} elements", o.count));
  }
  return {};
}

Outcome run(const Operation& operation) {
  return outcome_from(*operation.comm, operation.function, [&] { run_or_throw(operation); });
}

Work start(const Operation& o) {
  Communicator& c = o.comm->tutti();
  const CallOptions options = options_of(o);
  switch (o.collective) {
    case Collective::all_reduce: return c.all_reduce_async(o.send, o.recv, o.count, o.type, o.op, options);
    case Collective::reduce_scatter: return c.reduce_scatter_async(o.send, o.recv, o.count, o.type, o.op, options);
    case Collective::all_gather: return c.all_gather_async(o.send, o.recv, o.count, o.type, options);
    case Collective::broadcast: return c.broadcast_async(o.send, o.recv, o.count, o.type, o.root, options);
    case Collective::reduce: return c.reduce_async(o.send, o.recv, o.count, o.type, o.op, o.root, options);
    case Collective::all_to_all: return c.all_to_all_async(o.send, o.recv, o.count, o.type, options);
    case Collective::gather: return c.gather_async(o.send, o.recv, o.count, o.type, o.root, options);
    case Collective::scatter: return c.scatter_async(o.send, o.recv, o.count, o.type, o.root, options);
    case Collective::send_recv:
    case Collective::all_to_allv:
    case Collective::barrier: break;
  }
  return {};
}

Outcome run_batch(std::span<const Operation> collectives, std::span<const Operation> messages) {
  const Operation& first = collectives.empty() ? messages.front() : collectives.front();
  const bool one = collectives.empty() || collectives.size() + messages.size() == 1;
  const char* function = one ? first.function : "ncclGroupEnd";
  Outcome outcome = outcome_from(*first.comm, function, [&] { first.comm->tutti().group_start(); });
  if (!outcome.ok()) return outcome;
  for (const std::span<const Operation> operations : {collectives, messages}) {
    for (const Operation& operation : operations) {
      const Outcome noted = run(operation);
      if (outcome.ok()) outcome = noted;
    }
  }
  const Outcome ended = outcome_from(*first.comm, function, [&] { first.comm->tutti().group_end(); });
  return outcome.ok() ? ended : outcome;
}

Work start_messages(std::span<const Operation> messages) {
  messages.front().comm->tutti().group_start();
  for (const Operation& message : messages) add_message(message);
  return messages.front().comm->tutti().group_end_async();
}

}  // namespace tutti::nccl
