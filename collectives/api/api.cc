// tutti.hpp: turns Status into exceptions and arguments into a Call; everything else is behind CommunicatorInterface.

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/options.h"
#include "collectives/call.h"
#include "collectives/calls/call_copy.h"
#include "collectives/communicator_interface.h"
#include "collectives/create.h"
#include "device/memory_kind.h"
#include "transport/cuda_ipc/device_memory.h"
#include "transport/shm/arena.h"
#include "tutti/tutti.hpp"

namespace tutti {

namespace {

void check(const Status& status) {
  if (!status.ok()) [[unlikely]] {
    throw Error(status.code(), status.message());
  }
}

template <class T>
T check(Result<T> result) {
  check(result.status());
  return result.take();
}

CommunicatorInterface& use(const std::shared_ptr<CommunicatorInterface>& impl) {
  if (impl == nullptr) [[unlikely]] {
    throw Error(Code::invalid_argument,
                "the Communicator is empty; make one by from_environment, from_unique_id or in_process");
  }
  return *impl;
}

// Between group_start and group_end. By thread, since one thread at a time uses a communicator.
struct Group {
  CommunicatorInterface* of = nullptr;
  int depth = 0;
  std::vector<CallCopy> calls;  // collectives on device memory
  std::vector<Transfer> transfers;
};

Group& group() {
  thread_local Group group;
  return group;
}

bool grouped(const CommunicatorInterface& impl, const Transfer& transfer) {
  Group& g = group();
  if (g.of != &impl) return false;
  g.transfers.push_back(transfer);
  return true;
}

/// Runs it; or notes it for the end of the group, when it is on device memory.
void run(const std::shared_ptr<CommunicatorInterface>& of, const Call& call) {
  CommunicatorInterface& impl = use(of);
  Group& g = group();
  if (g.of == &impl && device::any_on_device(call.send, call.recv)) {
    g.calls.emplace_back(call, impl.size());
    return;
  }
  check(impl.run(call));
}

Call make_call(Collective collective, const void* send, void* recv, std::size_t count, DataType type,
               const CallOptions& options) {
  Call call;
  call.collective = collective;
  call.send = send;
  call.recv = recv;
  call.count = count;
  call.type = type;
  call.deterministic = options.deterministic;
  call.factor = options.factor;
  call.algorithm = options.algorithm;
  call.stream = options.stream;
  return call;
}

Call reducing(Collective collective, const void* send, void* recv, std::size_t count, DataType type, ReduceOp op,
              int root, const CallOptions& options) {
  Call call = make_call(collective, send, recv, count, type, options);
  call.op = op;
  call.root = root;
  return call;
}

Call rooted(Collective collective, const void* send, void* recv, std::size_t count, DataType type, int root,
            const CallOptions& options) {
  return reducing(collective, send, recv, count, type, ReduceOp::sum, root, options);
}

Call uneven(const void* send, const std::size_t* send_counts, const std::size_t* send_offsets, void* recv,
            const std::size_t* recv_counts, const std::size_t* recv_offsets, DataType type,
            const CallOptions& options) {
  Call call = make_call(Collective::all_to_allv, send, recv, 0, type, options);
  call.send_counts = send_counts;
  call.send_offsets = send_offsets;
  call.recv_counts = recv_counts;
  call.recv_offsets = recv_offsets;
  return call;
}

Transfer sending(const void* buffer, std::size_t count, DataType type, int peer, int tag, Stream stream) {
  return {true, peer, const_cast<void*>(buffer), count, type, tag, nullptr, stream};
}

Transfer receiving(void* buffer, std::size_t count, DataType type, int peer, int tag, int* source, Stream stream) {
  return {false, peer, buffer, count, type, tag, source, stream};
}

/// Ends a group and runs its collectives; its messages, unless it lies inside another one, which has them then.
std::optional<std::vector<Transfer>> end_group(CommunicatorInterface& impl) {
  Group& g = group();
  if (g.depth == 0 || g.of != &impl) {
    throw Error(Code::invalid_argument,
                "group_end: no group is open on this communicator; expected group_start before");
  }
  if (--g.depth > 0) return std::nullopt;
  const Group ended = std::exchange(g, {});
  std::vector<Call> calls;
  for (const CallCopy& copy : ended.calls) calls.push_back(copy.call());
  if (!calls.empty()) check(impl.run_together(calls));
  return ended.transfers;
}

}  // namespace

Options::Options()
    : timeout(std::chrono::duration_cast<std::chrono::milliseconds>(options::duration(Option::timeout))),
      deterministic(options::flag(Option::deterministic)),
      memory_limit(options::bytes(Option::memory_limit)),
      algorithm(options::text(Option::algorithm)),
      backend(options::text(Option::backend)) {}

void Work::wait() { (void)wait(std::chrono::milliseconds::max()); }

bool Work::wait(std::chrono::milliseconds limit) {
  if (state_ == nullptr) return true;
  const auto nanoseconds =
      limit > std::chrono::hours(24 * 365) ? std::chrono::nanoseconds::max() : std::chrono::nanoseconds(limit);
  if (!state_->wait_for(nanoseconds)) return false;
  check(state_->status());
  return true;
}

bool Work::test() const { return state_ == nullptr || state_->wait_for(std::chrono::nanoseconds(0)); }

Code Work::status() const { return state_ == nullptr ? Code::ok : state_->status().code(); }

void Work::then(std::function<void(const Error*)> callback) const {
  const auto call = [](const Status& status, const std::function<void(const Error*)>& callback) {
    if (status.ok()) return callback(nullptr);
    const Error error(status.code(), status.message());
    callback(&error);
  };
  if (state_ == nullptr) return call({}, callback);
  // The state owns the callback until it is done, so this is no cycle for longer than that.
  state_->then([state = state_, callback = std::move(callback), call] { call(state->status(), callback); });
}

Communicator Communicator::from_environment(const Options& options) {
  return Communicator(check(create_from_environment(options)));
}

UniqueId Communicator::make_unique_id() { return check(create_unique_id()); }

Communicator Communicator::from_unique_id(const UniqueId& id, int rank, int size, const Options& options) {
  return Communicator(check(create_from_unique_id(id, rank, size, options)));
}

std::vector<Communicator> Communicator::in_process(int size, const Options& options) {
  std::vector<Communicator> all;
  for (auto& impl : check(create_in_process(size, options))) all.emplace_back(std::move(impl));
  return all;
}

int Communicator::rank() const { return use(impl_).rank(); }
int Communicator::size() const { return use(impl_).size(); }

void Communicator::all_reduce(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op,
                              const CallOptions& options) {
  run(impl_, reducing(Collective::all_reduce, send, recv, count, type, op, 0, options));
}

void Communicator::reduce_scatter(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op,
                                  const CallOptions& options) {
  run(impl_, reducing(Collective::reduce_scatter, send, recv, count, type, op, 0, options));
}

void Communicator::all_gather(const void* send, void* recv, std::size_t count, DataType type,
                              const CallOptions& options) {
  run(impl_, make_call(Collective::all_gather, send, recv, count, type, options));
}

void Communicator::broadcast(const void* send, void* recv, std::size_t count, DataType type, int root,
                             const CallOptions& options) {
  run(impl_, rooted(Collective::broadcast, send, recv, count, type, root, options));
}

void Communicator::reduce(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op, int root,
                          const CallOptions& options) {
  run(impl_, reducing(Collective::reduce, send, recv, count, type, op, root, options));
}

void Communicator::all_to_all(const void* send, void* recv, std::size_t count, DataType type,
                              const CallOptions& options) {
  run(impl_, make_call(Collective::all_to_all, send, recv, count, type, options));
}

void Communicator::all_to_allv(const void* send, const std::size_t* send_counts, const std::size_t* send_offsets,
                               void* recv, const std::size_t* recv_counts, const std::size_t* recv_offsets,
                               DataType type, const CallOptions& options) {
  run(impl_, uneven(send, send_counts, send_offsets, recv, recv_counts, recv_offsets, type, options));
}

void Communicator::gather(const void* send, void* recv, std::size_t count, DataType type, int root,
                          const CallOptions& options) {
  run(impl_, rooted(Collective::gather, send, recv, count, type, root, options));
}

void Communicator::scatter(const void* send, void* recv, std::size_t count, DataType type, int root,
                           const CallOptions& options) {
  run(impl_, rooted(Collective::scatter, send, recv, count, type, root, options));
}

void Communicator::barrier() { run(impl_, Call{}); }

void Communicator::send(const void* buffer, std::size_t count, DataType type, int peer, int tag, Stream stream) {
  const Transfer transfer = sending(buffer, count, type, peer, tag, stream);
  if (!grouped(use(impl_), transfer)) check(impl_->run_group({&transfer, 1}));
}

void Communicator::recv(void* buffer, std::size_t count, DataType type, int peer, int tag, int* source, Stream stream) {
  const Transfer transfer = receiving(buffer, count, type, peer, tag, source, stream);
  if (!grouped(use(impl_), transfer)) check(impl_->run_group({&transfer, 1}));
}

void Communicator::group_start() {
  Group& g = group();
  CommunicatorInterface& impl = use(impl_);
  if (g.depth > 0 && g.of != &impl) {
    throw Error(Code::invalid_argument,
                "group_start: this thread has a group open on another communicator; end that first");
  }
  g.of = &impl;
  ++g.depth;
}

void Communicator::group_end() {
  if (const auto transfers = end_group(use(impl_))) check(impl_->run_group(*transfers));
}

Work Communicator::group_end_async() {
  CommunicatorInterface& impl = use(impl_);
  if (group().depth > 1) {
    throw Error(Code::invalid_argument, "group_end_async: the group lies inside another one; expected group_end");
  }
  return Work(check(impl.start_group(*end_group(impl))));
}

Work Communicator::all_reduce_async(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op,
                                    const CallOptions& options) {
  return Work(check(use(impl_).start(reducing(Collective::all_reduce, send, recv, count, type, op, 0, options))));
}

Work Communicator::reduce_scatter_async(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op,
                                        const CallOptions& options) {
  return Work(check(use(impl_).start(reducing(Collective::reduce_scatter, send, recv, count, type, op, 0, options))));
}

Work Communicator::all_gather_async(const void* send, void* recv, std::size_t count, DataType type,
                                    const CallOptions& options) {
  return Work(check(use(impl_).start(make_call(Collective::all_gather, send, recv, count, type, options))));
}

Work Communicator::broadcast_async(const void* send, void* recv, std::size_t count, DataType type, int root,
                                   const CallOptions& options) {
  return Work(check(use(impl_).start(rooted(Collective::broadcast, send, recv, count, type, root, options))));
}

Work Communicator::reduce_async(const void* send, void* recv, std::size_t count, DataType type, ReduceOp op, int root,
                                const CallOptions& options) {
  return Work(check(use(impl_).start(reducing(Collective::reduce, send, recv, count, type, op, root, options))));
}

Work Communicator::all_to_all_async(const void* send, void* recv, std::size_t count, DataType type,
                                    const CallOptions& options) {
  return Work(check(use(impl_).start(make_call(Collective::all_to_all, send, recv, count, type, options))));
}

Work Communicator::all_to_allv_async(const void* send, const std::size_t* send_counts, const std::size_t* send_offsets,
                                     void* recv, const std::size_t* recv_counts, const std::size_t* recv_offsets,
                                     DataType type, const CallOptions& options) {
  return Work(
      check(use(impl_).start(uneven(send, send_counts, send_offsets, recv, recv_counts, recv_offsets, type, options))));
}

Work Communicator::gather_async(const void* send, void* recv, std::size_t count, DataType type, int root,
                                const CallOptions& options) {
  return Work(check(use(impl_).start(rooted(Collective::gather, send, recv, count, type, root, options))));
}

Work Communicator::scatter_async(const void* send, void* recv, std::size_t count, DataType type, int root,
                                 const CallOptions& options) {
  return Work(check(use(impl_).start(rooted(Collective::scatter, send, recv, count, type, root, options))));
}

Work Communicator::barrier_async() { return Work(check(use(impl_).start(Call{}))); }

Work Communicator::send_async(const void* buffer, std::size_t count, DataType type, int peer, int tag, Stream stream) {
  const Transfer transfer = sending(buffer, count, type, peer, tag, stream);
  return Work(check(use(impl_).start_group({&transfer, 1})));
}

Work Communicator::recv_async(void* buffer, std::size_t count, DataType type, int peer, int tag, int* source,
                              Stream stream) {
  const Transfer transfer = receiving(buffer, count, type, peer, tag, source, stream);
  return Work(check(use(impl_).start_group({&transfer, 1})));
}

Communicator Communicator::split(int color, int key, const std::string& name) const {
  return Communicator(check(use(impl_).split(color, key, name)));
}

Communicator Communicator::shrink() const { return Communicator(check(use(impl_).shrink())); }

void Communicator::open_device(int device) { check(use(impl_).open_device(device)); }

void Communicator::set_timeout(std::chrono::milliseconds timeout) { check(use(impl_).set_timeout(timeout)); }

void Communicator::abort(const std::string& reason) { use(impl_).abort(reason); }

Code Communicator::status(std::string* text) const {
  const Status status = use(impl_).status();
  if (text != nullptr) *text = status.message();
  return status.code();
}

Explanation Communicator::explain_last_call() const { return use(impl_).explain_last_call(); }
MemoryReport Communicator::memory() const { return use(impl_).memory(); }
Traffic Communicator::traffic() const { return use(impl_).traffic(); }
std::string Communicator::flight_recorder_text() const { return use(impl_).flight_recorder_text(); }
std::string Communicator::flight_recorder_json() const { return use(impl_).flight_recorder_json(); }

bool supports(Memory memory) noexcept { return memory == Memory::host || device::available().ok(); }

void* allocate(std::size_t bytes, Memory memory) {
  if (memory == Memory::device) return check(transport::allocate_device(bytes));
  return check(check(transport::Arena::process())->allocate(bytes));
}

void deallocate(void* pointer) noexcept {
  if (pointer == nullptr || transport::deallocate_device(pointer)) return;
  transport::Arena::deallocate(static_cast<std::byte*>(pointer));
}

const char* version() { return TUTTI_VERSION; }

}  // namespace tutti
