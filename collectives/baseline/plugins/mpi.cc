// An MPI library behind CommunicatorInterface. Compiled once against Open MPI and once against MPICH
// (TUTTI_MPI_NAME says which). Its settings are the library's own defaults.
#include <fmt/format.h>
#include <mpi.h>

#include <climits>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collectives/baseline/plugins/ordered_communicator.h"
#include "collectives/baseline/plugins/plugin.h"

namespace tutti {
namespace {

constexpr const char* kName = TUTTI_MPI_NAME;

/// From MPI_Init to MPI_Finalize; held by every communicator.
class Session {
 public:
  ~Session() { MPI_Finalize(); }

  static Result<std::shared_ptr<Session>> get() {
    static std::mutex mutex;
    static std::weak_ptr<Session> present;
    const std::lock_guard lock(mutex);
    if (auto session = present.lock()) return session;
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized != 0) {
      return unsupported(fmt::format("backend {}: MPI was finalized already and cannot start again", kName));
    }
    // Serialized is enough: one thread at a time makes calls. Multiple would put locks into the measured path.
    int provided = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
      return unsupported(fmt::format("backend {}: MPI_Init_thread failed", kName));
    }
    auto session = std::shared_ptr<Session>(new Session);
    present = session;
    return session;
  }

 private:
  Session() = default;
};

/// MPI_DATATYPE_NULL where the standard has none to compute with.
MPI_Datatype arithmetic(DataType type) {
  switch (type) {
    case DataType::i8: return MPI_INT8_T;
    case DataType::u8: return MPI_UINT8_T;
    case DataType::i32: return MPI_INT32_T;
    case DataType::u32: return MPI_UINT32_T;
    case DataType::i64: return MPI_INT64_T;
    case DataType::u64: return MPI_UINT64_T;
    case DataType::f32: return MPI_FLOAT;
    case DataType::f64: return MPI_DOUBLE;
    case DataType::f16:
    case DataType::bf16:
    case DataType::f8e4m3:
    case DataType::f8e5m2: break;
  }
  return MPI_DATATYPE_NULL;
}

/// Any type of the same width serves to move data.
MPI_Datatype movable(DataType type) {
  const MPI_Datatype same = arithmetic(type);
  if (same != MPI_DATATYPE_NULL) return same;
  return size_of(type) == 2 ? MPI_UINT16_T : MPI_UINT8_T;
}

MPI_Op operation(ReduceOp op) {
  switch (op) {
    case ReduceOp::prod: return MPI_PROD;
    case ReduceOp::min: return MPI_MIN;
    case ReduceOp::max: return MPI_MAX;
    case ReduceOp::band: return MPI_BAND;
    case ReduceOp::bor: return MPI_BOR;
    case ReduceOp::bxor: return MPI_BXOR;
    case ReduceOp::sum:
    case ReduceOp::avg:  // a sum, and then a pass that divides
    case ReduceOp::premul_sum: break;
  }
  return MPI_SUM;
}

class MpiCommunicator final : public OrderedCommunicator {
 public:
  MpiCommunicator(std::shared_ptr<Session> session, MPI_Comm comm)
      : OrderedCommunicator(kName), session_(std::move(session)), comm_(comm) {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  ~MpiCommunicator() override {
    stop();
    MPI_Comm_free(&comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Result<std::shared_ptr<CommunicatorInterface>> split(int color, int key, const std::string& name) override {
    MPI_Comm part = MPI_COMM_NULL;
    TUTTI_TRY(outcome(MPI_Comm_split(comm_, color < 0 ? MPI_UNDEFINED : color, key, &part), "split"));
    if (part == MPI_COMM_NULL) return std::shared_ptr<CommunicatorInterface>();
    if (!name.empty()) TUTTI_TRY(outcome(MPI_Comm_set_name(part, name.c_str()), "split"));
    return std::shared_ptr<CommunicatorInterface>(std::make_shared<MpiCommunicator>(session_, part));
  }

 private:
  Status execute(const Call& call) override;
  Status execute_group(std::span<const Transfer> transfers) override;
  int reduce(const Call& call, MPI_Datatype type, MPI_Op op);
  int reduce_scatter(const Call& call, MPI_Datatype type, MPI_Op op);
  int all_to_allv(const Call& call, const void* send, MPI_Datatype type);
  int most_tag() const;

  Status outcome(int code, const char* what) const {
    if (code == MPI_SUCCESS) return {};
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, text, &length);
    return {Code::system, fmt::format("rank {}: backend {}: {}: {}", rank_, kName, what, text)};
  }

  const std::shared_ptr<Session> session_;
  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<char> block_;  // a vector that a call in place needs beside its buffer
  std::vector<int> counts_;  // all_to_allv: four lists
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
};

Status MpiCommunicator::execute(const Call& call) {
  const MPI_Datatype type = reduces(call.collective) ? arithmetic(call.type) : movable(call.type);
  if (type == MPI_DATATYPE_NULL) return lacks(fmt::format("{} of {}", name_of(call.collective), name_of(call.type)));
  if (call.count > INT_MAX) return lacks(fmt::format("{} of {} elements", name_of(call.collective), call.count));
  if (!call.algorithm.empty()) return lacks("a choice of algorithm");

  const int n = static_cast<int>(call.count);
  const MPI_Op op = operation(call.op);
  const bool in_place = is_in_place(call, rank_);
  const bool root = rank_ == call.root;
  const void* send = in_place ? MPI_IN_PLACE : call.send;
  int code = MPI_SUCCESS;
  std::size_t to_divide = 0;
  switch (call.collective) {
    case Collective::all_reduce:
      code = MPI_Allreduce(send, call.recv, n, type, op, comm_);
      to_divide = call.count;
      break;
    case Collective::reduce:
      code = reduce(call, type, op);
      to_divide = root ? call.count : 0;
      break;
    case Collective::reduce_scatter:
      code = reduce_scatter(call, type, op);
      to_divide = call.count;
      break;
    case Collective::all_gather: code = MPI_Allgather(send, n, type, call.recv, n, type, comm_); break;
    case Collective::broadcast:
      if (root && !in_place && n > 0) std::memcpy(call.recv, call.send, call.count * size_of(call.type));
      code = MPI_Bcast(call.recv, n, type, call.root, comm_);
      break;
    case Collective::all_to_all: code = MPI_Alltoall(send, n, type, call.recv, n, type, comm_); break;
    case Collective::all_to_allv: code = all_to_allv(call, send, type); break;
    case Collective::gather:
      code = MPI_Gather(root ? send : call.send, n, type, call.recv, n, type, call.root, comm_);
      break;
    case Collective::scatter:
      code = MPI_Scatter(call.send, n, type, root && in_place ? MPI_IN_PLACE : call.recv, n, type, call.root, comm_);
      break;
    case Collective::barrier: code = MPI_Barrier(comm_); break;
    case Collective::send_recv: return lacks("send_recv outside a group");
  }
  TUTTI_TRY(outcome(code, name_of(call.collective)));
  if (reduces(call.collective) && call.op == ReduceOp::avg) divide(call.recv, to_divide, call.type, size_);
  return {};
}

int MpiCommunicator::reduce(const Call& call, MPI_Datatype type, MPI_Op op) {
  const void* send = call.send;
  if (rank_ == call.root && is_in_place(call, rank_)) {
    send = MPI_IN_PLACE;
#if defined(MPICH_VERSION)
    // MPICH 4.0 reads from MPI_IN_PLACE as from an address when the root is not rank 0 and the vector is long.
    if (call.root != 0) {
      block_.resize(call.count * size_of(call.type));
      if (!block_.empty()) std::memcpy(block_.data(), call.recv, block_.size());
      send = block_.data();
    }
#endif
  }
  return MPI_Reduce(send, call.recv, static_cast<int>(call.count), type, op, call.root, comm_);
}

int MpiCommunicator::reduce_scatter(const Call& call, MPI_Datatype type, MPI_Op op) {
  const int n = static_cast<int>(call.count);
  if (!is_in_place(call, rank_)) return MPI_Reduce_scatter_block(call.send, call.recv, n, type, op, comm_);
  // MPI's in-place form leaves the result at the start of the buffer and destroys the rest; ours writes this rank's
  // block only. So it goes through a block, as a user has to do it.
  block_.resize(call.count * size_of(call.type));
  const int code = MPI_Reduce_scatter_block(call.send, block_.data(), n, type, op, comm_);
  if (code == MPI_SUCCESS && !block_.empty()) std::memcpy(call.recv, block_.data(), block_.size());
  return code;
}

int MpiCommunicator::all_to_allv(const Call& call, const void* send, MPI_Datatype type) {
  const std::size_t* lists[4] = {call.send_counts, call.send_offsets, call.recv_counts, call.recv_offsets};
  counts_.clear();
  for (const std::size_t* list : lists) {
    for (int i = 0; i < size_; ++i) {
      if (list[i] > INT_MAX) return MPI_ERR_COUNT;
      counts_.push_back(static_cast<int>(list[i]));
    }
  }
  const int* at = counts_.data();
  return MPI_Alltoallv(send, at, at + size_, type, call.recv, at + 2 * size_, at + 3 * size_, type, comm_);
}

Status MpiCommunicator::execute_group(std::span<const Transfer> transfers) {
  requests_.assign(transfers.size(), MPI_REQUEST_NULL);
  statuses_.resize(transfers.size());
  for (const Transfer& transfer : transfers) {
    if (transfer.count > INT_MAX) return lacks(fmt::format("a message of {} elements", transfer.count));
    if (transfer.tag > most_tag()) return lacks(fmt::format("tag {} (it has 0 to {})", transfer.tag, most_tag()));
  }
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& t = transfers[i];
    const int n = static_cast<int>(t.count);
    const MPI_Datatype type = movable(t.type);
    const int source = t.peer == kAnySource ? MPI_ANY_SOURCE : t.peer;
    TUTTI_TRY(t.sending ? outcome(MPI_Isend(t.buffer, n, type, t.peer, t.tag, comm_, &requests_[i]), "send")
                        : outcome(MPI_Irecv(t.buffer, n, type, source, t.tag, comm_, &requests_[i]), "recv"));
  }
  TUTTI_TRY(outcome(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), statuses_.data()), "send_recv"));
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    if (transfers[i].source != nullptr) *transfers[i].source = statuses_[i].MPI_SOURCE;
  }
  return {};
}

int MpiCommunicator::most_tag() const {
  int* most = nullptr;
  int found = 0;
  MPI_Comm_get_attr(comm_, MPI_TAG_UB, static_cast<void*>(&most), &found);
  return found != 0 ? *most : 32767;  // the least that the standard allows
}

}  // namespace
}  // namespace tutti

void tutti_baseline_open(const tutti::BaselineSettings& settings,
                         std::shared_ptr<tutti::CommunicatorInterface>& communicator, tutti::Status& status) {
  using namespace tutti;
  auto session = Session::get();
  if (!session.ok()) {
    status = session.status();
    return;
  }
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  auto opened = std::make_shared<MpiCommunicator>(session.take(), comm);
  if (opened->rank() != settings.rank || opened->size() != settings.size) {
    status =
        unsupported(fmt::format("backend {}: MPI says rank {} of {}, expected rank {} of {}; start the ranks with "
                                "this library's own mpirun",
                                kName, opened->rank(), opened->size(), settings.rank, settings.size));
    return;
  }
  communicator = std::move(opened);
}
