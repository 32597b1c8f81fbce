// The collectives, sends and receives.

#include <cstddef>
#include <utility>

#include "nccl/group.h"

namespace tutti::nccl {
namespace {

/// The caller's arguments, where a collective has them.
struct Arguments {
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  ncclDataType_t type{};
  ncclRedOp_t op = ncclSum;
  int root = 0;
};

Outcome read(const char* function, Collective collective, const Arguments& arguments, ncclComm_t handle,
             Operation& operation) {
  operation.function = function;
  operation.collective = collective;
  operation.send = arguments.send;
  operation.recv = arguments.recv;
  operation.count = arguments.count;
  operation.root = arguments.root;
  if (Outcome outcome = find_comm(function, handle, operation.comm); !outcome.ok()) return outcome;
  if (Outcome outcome = operation.comm->settled(function); !outcome.ok()) return outcome;
  if (Outcome outcome = follows(function, *operation.comm); !outcome.ok()) return outcome;
  if (Outcome outcome = read_type(operation, arguments.type); !outcome.ok()) return outcome;
  if (Outcome outcome = read_op(operation, arguments.op); !outcome.ok()) return outcome;
  return check(operation);
}

ncclResult_t call(const char* function, Collective collective, const Arguments& arguments, ncclComm_t handle,
                  cudaStream_t stream, bool sends = false, const ncclCollConfig_t* config = nullptr) {
  return guarded(function, [&] {
    Operation operation;
    operation.stream = stream;
    operation.sends = sends;
    Outcome outcome = read_call_config(function, collective, config, operation.config);
    if (outcome.ok()) outcome = read(function, collective, arguments, handle, operation);
    return outcome.ok() ? submit(std::move(operation)) : refuse(outcome);
  });
}

/// A collective with a configuration; null: as without.
ncclResult_t call_with(const ncclCollConfig_t* config, const char* function, Collective collective,
                       const Arguments& arguments, ncclComm_t handle, cudaStream_t stream) {
  return call(function, collective, arguments, handle, stream, false, config);
}

}  // namespace

TUTTI_NCCL_DEFINE(ncclResult_t, ncclAllReduce,
                  (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                   cudaStream_t stream)) {
  return call("ncclAllReduce", Collective::all_reduce, {send, recv, count, type, op}, comm, stream);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclReduceScatter,
                  (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                   cudaStream_t stream)) {
  return call("ncclReduceScatter", Collective::reduce_scatter, {send, recv, count, type, op}, comm, stream);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclReduce,
                  (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                   ncclComm_t comm, cudaStream_t stream)) {
  return call("ncclReduce", Collective::reduce, {send, recv, count, type, op, root}, comm, stream);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclAllGather,
                  (const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                   cudaStream_t stream)) {
  return call("ncclAllGather", Collective::all_gather, {send, recv, count, type}, comm, stream);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclAlltoAll,
                  (const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                   cudaStream_t stream)) {
  return call("ncclAlltoAll", Collective::all_to_all, {send, recv, count, type}, comm, stream);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclBroadcast,
                  (const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                   cudaStream_t stream)) {
  return call("ncclBroadcast", Collective::broadcast, {send, recv, count, type, ncclSum, root}, comm, stream);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclBcast,
                  (void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream)) {
  return call("ncclBcast", Collective::broadcast, {buffer, buffer, count, type, ncclSum, root}, comm, stream);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclGather,
                  (const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                   cudaStream_t stream)) {
  return call("ncclGather", Collective::gather, {send, recv, count, type, ncclSum, root}, comm, stream);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclScatter,
                  (const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                   cudaStream_t stream)) {
  return call("ncclScatter", Collective::scatter, {send, recv, count, type, ncclSum, root}, comm, stream);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclSend,
                  (const void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                   cudaStream_t stream)) {
  return call("ncclSend", Collective::send_recv, {buffer, nullptr, count, type, ncclSum, peer}, comm, stream, true);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclRecv,
                  (void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)) {
  return call("ncclRecv", Collective::send_recv, {nullptr, buffer, count, type, ncclSum, peer}, comm, stream);
}

// ---- With a configuration ----

TUTTI_NCCL_DEFINE(ncclResult_t, ncclAllReduceConfig,
                  (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                   cudaStream_t stream, const ncclCollConfig_t* config)) {
  return call_with(config, "ncclAllReduceConfig", Collective::all_reduce, {send, recv, count, type, op}, comm, stream);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclReduceScatterConfig,
                  (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                   cudaStream_t stream, const ncclCollConfig_t* config)) {
  return call_with(config, "ncclReduceScatterConfig", Collective::reduce_scatter, {send, recv, count, type, op}, comm,
                   stream);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclReduceConfig,
                  (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                   ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config)) {
  return call_with(config, "ncclReduceConfig", Collective::reduce, {send, recv, count, type, op, root}, comm, stream);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclAllGatherConfig,
                  (const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                   cudaStream_t stream, const ncclCollConfig_t* config)) {
  return call_with(config, "ncclAllGatherConfig", Collective::all_gather, {send, recv, count, type}, comm, stream);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclAlltoAllConfig,
                  (const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                   cudaStream_t stream, const ncclCollConfig_t* config)) {
  return call_with(config, "ncclAlltoAllConfig", Collective::all_to_all, {send, recv, count, type}, comm, stream);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclBroadcastConfig,
                  (const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                   cudaStream_t stream, const ncclCollConfig_t* config)) {
  return call_with(config, "ncclBroadcastConfig", Collective::broadcast, {send, recv, count, type, ncclSum, root}, comm,
                   stream);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclGatherConfig,
                  (const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                   cudaStream_t stream, const ncclCollConfig_t* config)) {
  return call_with(config, "ncclGatherConfig", Collective::gather, {send, recv, count, type, ncclSum, root}, comm,
                   stream);
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclScatterConfig,
                  (const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                   cudaStream_t stream, const ncclCollConfig_t* config)) {
  return call_with(config, "ncclScatterConfig", Collective::scatter, {send, recv, count, type, ncclSum, root}, comm,
                   stream);
}

}  // namespace tutti::nccl
