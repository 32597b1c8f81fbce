// NCCL behind CommunicatorInterface. Calls on device memory are the stream's, as with Tutti, and in it when they
// return, started ones too; host memory goes by way of the GPU, and such a call is done when it returns. Tutti's own
// libnccl.so.2 serves too, on host memory where there is no GPU.
//
// Ranks meet over a file in the temporary directory with rank 0's id in it, which is gone as soon as all are connected:
// so they are on one host.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/backoff.h"
#include "base/clock.h"
#include "collectives/baseline/plugins/nccl_device.h"
#include "collectives/baseline/plugins/nccl_library.h"
#include "collectives/baseline/plugins/ordered_communicator.h"
#include "collectives/baseline/plugins/plugin.h"
#include "device/memory_kind.h"

namespace tutti {
namespace {

using nccl::ncclComm_t;
using nccl::ncclDataType_t;
using nccl::ncclRedOp_t;

ncclDataType_t type_of(DataType type) {
  constexpr std::array<ncclDataType_t, kDataTypes> types = {
      nccl::ncclInt8,    nccl::ncclUint8,   nccl::ncclInt32,      nccl::ncclUint32,
      nccl::ncclInt64,   nccl::ncclUint64,  nccl::ncclFloat16,    nccl::ncclBfloat16,
      nccl::ncclFloat32, nccl::ncclFloat64, nccl::ncclFloat8e4m3, nccl::ncclFloat8e5m2};
  return types[static_cast<std::size_t>(type)];
}

/// REQUIRES: one that NCCL has by itself.
ncclRedOp_t op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::prod: return nccl::ncclProd;
    case ReduceOp::min: return nccl::ncclMin;
    case ReduceOp::max: return nccl::ncclMax;
    case ReduceOp::avg: return nccl::ncclAvg;
    default: return nccl::ncclSum;
  }
}

/// The elements that this rank's call reads and writes. all_to_allv is messages, and has none here.
struct Extents {
  std::size_t send = 0;
  std::size_t recv = 0;
};

Extents extents_of(const Call& call, int rank, int size) {
  const std::size_t one = call.count;
  const std::size_t all = call.count * static_cast<std::size_t>(size);
  const bool root = rank == call.root;
  switch (call.collective) {
    case Collective::all_reduce: return {one, one};
    case Collective::reduce: return {one, root ? one : 0};
    case Collective::broadcast: return {root ? one : 0, one};
    case Collective::all_gather: return {one, all};
    case Collective::reduce_scatter: return {all, one};
    case Collective::gather: return {one, root ? all : 0};
    case Collective::scatter: return {root ? all : 0, one};
    case Collective::all_to_all: return {all, all};
    case Collective::all_to_allv:
    case Collective::barrier:
    case Collective::send_recv: break;
  }
  return {};
}

class NcclCommunicator final : public OrderedCommunicator {
 public:
  /// Takes `comm` over, which is on this GPU (-1: on none). Errors: what NCCL says.
  static Result<std::shared_ptr<CommunicatorInterface>> create(const NcclLibrary& nccl, ncclComm_t comm, int gpu);
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<std::shared_ptr<CommunicatorInterface>> split(int color, int key, const std::string& name) override;
  Status status() const override;

 private:
  NcclCommunicator(const NcclLibrary& nccl, ncclComm_t comm, int gpu)
      : OrderedCommunicator("nccl"), nccl_(nccl), comm_(comm), gpu_(gpu), staging_(gpu) {}
  bool scales() const override { return true; }
  bool goes_into_a_stream(const Call& call) const override { return device::any_on_device(call.send, call.recv); }
  bool goes_into_a_stream(std::span<const Transfer> transfers) const override;
  Status execute(const Call& call) override;
  Status execute_group(std::span<const Transfer> transfers) override;

  // On memory that NCCL takes.
  Status dispatch(const Call& call);
  Status exchange(std::span<const Transfer> transfers);

  Status all_to_allv(const Call& call);
  Status barrier();
  /// Whether NCCL cannot take it as it is; without a GPU everything is the host's, and taken.
  bool is_staged(const void* buffer) const { return gpu_ >= 0 && !device::kind_of(buffer).on_device(); }
  Status check(nccl::ncclResult_t result, const char* function) const { return nccl_.check(result, rank_, function); }

  const NcclLibrary& nccl_;
  const ncclComm_t comm_;
  const int gpu_;
  int rank_ = 0;
  int size_ = 1;
  NcclStaging staging_;
};

Result<std::shared_ptr<CommunicatorInterface>> NcclCommunicator::create(const NcclLibrary& nccl, ncclComm_t comm,
                                                                        int gpu) {
  std::shared_ptr<NcclCommunicator> made(new NcclCommunicator(nccl, comm, gpu));
  TUTTI_TRY(nccl.check(nccl.ncclCommUserRank(comm, &made->rank_), -1, "ncclCommUserRank"));
  TUTTI_TRY(nccl.check(nccl.ncclCommCount(comm, &made->size_), -1, "ncclCommCount"));
  return std::shared_ptr<CommunicatorInterface>(std::move(made));
}

NcclCommunicator::~NcclCommunicator() {
  stop();
  nccl_.ncclCommDestroy(comm_);
}

Result<std::shared_ptr<CommunicatorInterface>> NcclCommunicator::split(int color, int key,
                                                                       const std::string& /*name*/) {
  drain();
  ncclComm_t child = nullptr;
  TUTTI_TRY(on_gpu(gpu_, [&] {
    return check(nccl_.ncclCommSplit(comm_, color < 0 ? nccl::kSplitNoColor : color, key, &child, nullptr),
                 "ncclCommSplit");
  }));
  if (child == nullptr) return std::shared_ptr<CommunicatorInterface>();
  return create(nccl_, child, gpu_);
}

Status NcclCommunicator::status() const {
  nccl::ncclResult_t state = nccl::ncclSuccess;
  TUTTI_TRY(check(nccl_.ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError"));
  return state == nccl::ncclInProgress ? Status() : check(state, "ncclCommGetAsyncError");
}

/// No buffer's worth of data: one element of each rank, on the host, so that it is done when it returns.
Status NcclCommunicator::barrier() {
  const float mine = 0;
  float all = 0;
  return execute({.collective = Collective::all_reduce,
                  .send = &mine,
                  .recv = &all,
                  .count = 1,
                  .type = DataType::f32,
                  .op = ReduceOp::max});
}

Status NcclCommunicator::all_to_allv(const Call& call) {
  std::vector<Transfer> transfers;
  const std::size_t bytes = size_of(call.type);
  for (int r = 0; r < size_; ++r) {
    auto* recv = static_cast<char*>(call.recv) + call.recv_offsets[r] * bytes;
    auto* send = const_cast<char*>(static_cast<const char*>(call.send)) + call.send_offsets[r] * bytes;
    transfers.push_back({true, r, send, call.send_counts[r], call.type, 0, nullptr, call.stream});
    transfers.push_back({false, r, recv, call.recv_counts[r], call.type, 0, nullptr, call.stream});
  }
  return execute_group(transfers);
}

Status NcclCommunicator::dispatch(const Call& call) {
  const auto stream = static_cast<nccl::cudaStream_t>(call.stream);
  const ncclDataType_t type = type_of(call.type);
  ncclRedOp_t op = op_of(call.op);
  if (call.op == ReduceOp::premul_sum) {
    // Of a type whose every value a double holds, or is made from.
    if (call.type != DataType::f32 && call.type != DataType::f64) {
      return lacks(fmt::format("{} of {} with premul_sum", name_of(call.collective), name_of(call.type)));
    }
    float narrow = static_cast<float>(call.factor);
    double wide = call.factor;
    void* scalar = call.type == DataType::f32 ? static_cast<void*>(&narrow) : &wide;
    TUTTI_TRY(check(nccl_.ncclRedOpCreatePreMulSum(&op, scalar, type, nccl::ncclScalarHostImmediate, comm_),
                    "ncclRedOpCreatePreMulSum"));
  }
  Status status;
  switch (call.collective) {
    case Collective::all_reduce:
      status = check(nccl_.ncclAllReduce(call.send, call.recv, call.count, type, op, comm_, stream), "ncclAllReduce");
      break;
    case Collective::reduce_scatter:
      status = check(nccl_.ncclReduceScatter(call.send, call.recv, call.count, type, op, comm_, stream),
                     "ncclReduceScatter");
      break;
    case Collective::reduce:
      status =
          check(nccl_.ncclReduce(call.send, call.recv, call.count, type, op, call.root, comm_, stream), "ncclReduce");
      break;
    case Collective::all_gather:
      return check(nccl_.ncclAllGather(call.send, call.recv, call.count, type, comm_, stream), "ncclAllGather");
    case Collective::broadcast:
      return check(nccl_.ncclBroadcast(call.send, call.recv, call.count, type, call.root, comm_, stream),
                   "ncclBroadcast");
    case Collective::all_to_all:
      return check(nccl_.ncclAlltoAll(call.send, call.recv, call.count, type, comm_, stream), "ncclAlltoAll");
    case Collective::gather:
      return check(nccl_.ncclGather(call.send, call.recv, call.count, type, call.root, comm_, stream), "ncclGather");
    case Collective::scatter:
      return check(nccl_.ncclScatter(call.send, call.recv, call.count, type, call.root, comm_, stream), "ncclScatter");
    case Collective::all_to_allv: return all_to_allv(call);
    case Collective::barrier: return barrier();
    case Collective::send_recv: return lacks("send_recv outside a group");
  }
  if (call.op == ReduceOp::premul_sum) TUTTI_TRY(check(nccl_.ncclRedOpDestroy(op, comm_), "ncclRedOpDestroy"));
  return status;
}

Status NcclCommunicator::execute(const Call& call) {
  const char* name = name_of(call.collective);
  if (is_bitwise(call.op)) return lacks(fmt::format("{} of {} with {}", name, name_of(call.type), name_of(call.op)));
  if (!call.algorithm.empty()) return lacks(fmt::format("algorithm '{}'", call.algorithm));
  const bool exchange = call.collective == Collective::all_to_all || call.collective == Collective::all_to_allv;
  if (exchange && call.send == call.recv && call.send != nullptr) return lacks(std::string(name) + " in place");
  const Extents extents = extents_of(call, rank_, size_);
  const std::size_t width = size_of(call.type);
  std::vector<NcclStaging::Buffer> staged;
  if (extents.send > 0 && is_staged(call.send)) {
    staged.push_back({.host = const_cast<void*>(call.send), .bytes = extents.send * width});
  }
  if (extents.recv > 0 && is_staged(call.recv)) {
    staged.push_back({.host = call.recv, .bytes = extents.recv * width, .written = true});
  }
  if (staged.empty()) return dispatch(call);
  if (extents.send > 0 && extents.recv > 0 && staged.size() == 1) {
    return lacks(fmt::format("{} from {} to {}", name, device::print(device::kind_of(call.send)),
                             device::print(device::kind_of(call.recv))));
  }
  return staging_.run(staged, [&](Stream stream) {
    Call there = call;
    there.stream = stream;
    there.send = there.recv = nullptr;
    for (const NcclStaging::Buffer& buffer : staged) {
      if (buffer.written) {
        there.recv = buffer.on_gpu;
      } else {
        there.send = buffer.on_gpu;
      }
    }
    return dispatch(there);
  });
}

bool NcclCommunicator::goes_into_a_stream(std::span<const Transfer> transfers) const {
  return std::any_of(transfers.begin(), transfers.end(),
                     [](const Transfer& t) { return device::kind_of(t.buffer).on_device(); });
}

Status NcclCommunicator::execute_group(std::span<const Transfer> transfers) {
  std::vector<Transfer> there(transfers.begin(), transfers.end());
  std::vector<NcclStaging::Buffer> staged;
  std::vector<std::size_t> whose;  // of each staged buffer, in `there`
  for (std::size_t i = 0; i < there.size(); ++i) {
    const Transfer& t = there[i];
    if (t.tag != 0) return lacks("a message with a tag");
    if (!t.sending && t.peer == kAnySource) return lacks("a receive from any source");
    if (t.count == 0 || !is_staged(t.buffer)) continue;
    staged.push_back({.host = t.buffer, .bytes = t.count * size_of(t.type), .written = !t.sending});
    whose.push_back(i);
  }
  if (staged.empty()) return exchange(there);
  return staging_.run(staged, [&](Stream stream) {
    for (std::size_t i = 0; i < staged.size(); ++i) {
      there[whose[i]].buffer = staged[i].on_gpu;
      there[whose[i]].stream = stream;
    }
    return exchange(there);
  });
}

Status NcclCommunicator::exchange(std::span<const Transfer> transfers) {
  TUTTI_TRY(check(nccl_.ncclGroupStart(), "ncclGroupStart"));
  Status first;
  for (const Transfer& t : transfers) {
    const auto stream = static_cast<nccl::cudaStream_t>(t.stream);
    const nccl::ncclResult_t result = t.sending
                                          ? nccl_.ncclSend(t.buffer, t.count, type_of(t.type), t.peer, comm_, stream)
                                          : nccl_.ncclRecv(t.buffer, t.count, type_of(t.type), t.peer, comm_, stream);
    if (first.ok()) first = check(result, t.sending ? "ncclSend" : "ncclRecv");
  }
  const Status end = check(nccl_.ncclGroupEnd(), "ncclGroupEnd");
  return first.ok() ? end : first;
}

// ---- Bootstrap ----

std::filesystem::path id_file(const std::string& job) {
  return std::filesystem::temp_directory_path() /
         fmt::format("tutti_nccl_{}_{:016x}", geteuid(), std::hash<std::string>{}(job));
}

/// Rank 0's duty, also when connecting fails: to leave no file.
class IdFile {
 public:
  explicit IdFile(std::filesystem::path path) : path_(std::move(path)) { remove(); }
  ~IdFile() { remove(); }
  IdFile(const IdFile&) = delete;
  IdFile& operator=(const IdFile&) = delete;

  /// Writes the id at once as a whole, readable by this user alone.
  Status write(const nccl::ncclUniqueId& id) {
    const std::string draft = path_.string() + ".draft";
    const mode_t before = ::umask(0077);
    std::ofstream file(draft, std::ios::binary | std::ios::trunc);
    ::umask(before);
    file.write(id.internal, sizeof(id.internal));
    file.close();
    if (!file || std::rename(draft.c_str(), path_.c_str()) != 0) {
      return system_error("backend nccl: rank 0 could not write " + path_.string(), errno);
    }
    return {};
  }

 private:
  void remove() const {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  const std::filesystem::path path_;
};

Result<nccl::ncclUniqueId> read_id(const BaselineSettings& settings) {
  const std::filesystem::path path = id_file(settings.job);
  const std::int64_t deadline = now_ns() + std::chrono::nanoseconds(settings.timeout).count();
  for (Backoff backoff(std::chrono::milliseconds(1));; backoff.sleep()) {
    struct stat about {};
    nccl::ncclUniqueId id{};
    if (::stat(path.c_str(), &about) == 0 && about.st_uid == geteuid()) {
      std::ifstream file(path, std::ios::binary);
      if (file.read(id.internal, sizeof(id.internal))) return id;
    }
    if (now_ns() > deadline) {
      return Status(Code::timeout,
                    fmt::format("rank {}: backend nccl: rank 0 has not left its id in {} within {:.1f} s",
                                settings.rank, path.string(), std::chrono::duration<double>(settings.timeout).count()));
    }
  }
}

Status init(const NcclLibrary& nccl, const BaselineSettings& settings, ncclComm_t& comm) {
  const auto join = [&](const nccl::ncclUniqueId& id) {
    return nccl.check(nccl.ncclCommInitRank(&comm, settings.size, id, settings.rank), settings.rank,
                      "ncclCommInitRank");
  };
  if (settings.rank != 0) {
    TUTTI_ASSIGN(const nccl::ncclUniqueId id, read_id(settings));
    return join(id);
  }
  nccl::ncclUniqueId id{};
  IdFile file(id_file(settings.job));
  TUTTI_TRY(nccl.check(nccl.ncclGetUniqueId(&id), 0, "ncclGetUniqueId"));
  TUTTI_TRY(file.write(id));
  return join(id);  // returns when all have come
}

Result<std::shared_ptr<CommunicatorInterface>> connect(const BaselineSettings& settings) {
  TUTTI_ASSIGN(const NcclLibrary* nccl, nccl_library());
  TUTTI_ASSIGN(const int gpu, choose_gpu(settings.rank));
  ncclComm_t comm = nullptr;
  TUTTI_TRY(on_gpu(gpu, [&] { return init(*nccl, settings, comm); }));
  return NcclCommunicator::create(*nccl, comm, gpu);
}

}  // namespace
}  // namespace tutti

void tutti_baseline_open(const tutti::BaselineSettings& settings,
                         std::shared_ptr<tutti::CommunicatorInterface>& communicator, tutti::Status& status) {
  try {
    tutti::Result<std::shared_ptr<tutti::CommunicatorInterface>> made = tutti::connect(settings);
    if (made.ok()) {
      communicator = made.take();
    } else {
      status = made.status();
    }
  } catch (const std::exception& error) {
    status = tutti::Status(tutti::Code::system,
                           fmt::format("rank {}: backend nccl: connecting: {}", settings.rank, error.what()));
  }
}
