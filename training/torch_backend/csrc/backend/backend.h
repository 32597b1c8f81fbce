// c10d::Backend over Tutti: what torch.distributed calls for a group whose backend is "tutti".
//
//   c10::intrusive_ptr<TuttiBackend> backend = create_backend(store, rank, size, options);   // creation.h
//   backend->allreduce(tensors)->wait();
//
// Synchronous calls (opts.asyncOp is false, as for dist.all_reduce(x)) run on the caller's thread; the Work is done
//   when they return, and errors are thrown by the call. Others run on the thread of the group's communicator, in the
//   order of the calls; their errors are thrown by wait().
// Two communicators per group: collectives, and sends and receives (point_to_point.h), so that neither waits for the
//   other.
// Devices: what is in device memory goes into a stream, the caller's current one, or for calls that are not synchronous
//   one of the group's own behind it (streams.h). Its Work is done when the stream has come there.
// Tensors: dense, all of a call on one device; any strides, any size, 0 dimensions too. Memory of allocateTensor, which
//   tutti::allocate gave, is reached by the peers without a copy; any other works as well.
// Timeouts: of the group, or of one call (opts.timeout, as dist.barrier(timeout=...) gives it). A call that is late
//   ends the group on all ranks, with a sentence that says so; one in the background when it is waited for. Sums of
//   sparse tensors, and calls in a stream, have the group's.
// Sequence numbers: of collectives, so that they are the same on all ranks; messages are counted apart.
// Threads: any. Lifetime: destroying it ends what is under way on this group with an error on all ranks; shutdown()
//   first waits for it. Copies in a forked child refuse every call.
// Errors: errors.h.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "csrc/backend/call.h"
#include "csrc/execution/channel.h"
#include "csrc/execution/point_to_point.h"
#include "csrc/execution/work.h"

namespace tutti_torch {

class TuttiBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using TensorList = std::vector<at::Tensor>;

  struct Options final : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout) : c10d::Backend::Options("tutti", timeout) {}
  };

  TuttiBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, tutti::Communicator collectives,
               tutti::Communicator transfers, c10::intrusive_ptr<Options> options);

  const std::string getBackendName() const override { return "tutti"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }

  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  void setSequenceNumberForGroup() override {}  // every rank counts its calls from 0
  uint64_t getSequenceNumberForGroup() override { return sequence_.load(); }
  /// Creation has connected all ranks; this lets messages of a CUDA device go by kernels, where they would go through
  /// the host's memory. Torch calls it on all ranks of a group that is made for one device (device_id).
  void eagerConnectSingleDevice(at::Device device) override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  bool supportsTensorAlloc(c10::DeviceIndex index) override { return index < 0; }  // the host has no index

  // lifecycle.cc
  /// `ranks` of this group form one of their own, in that order; null on the others. All ranks call it.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  /// Sets the timeout of calls that begin after it.
  void setTimeout(std::chrono::milliseconds timeout) override;
  c10d::ErrorType getError() override;
  /// Ends what is under way, on all ranks, and every call to come. Returns at once.
  void abort() override;
  void abort_because(const std::string& reason);
  /// Waits until what was started is done, then leaves the group: peers still in a call get their answers all the same.
  /// While Python handles an exception it waits two seconds, then aborts.
  void shutdown() override;
  /// The ranks that do not come within the timeout are named, on all ranks. Rank 0 asks the store for each.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  Channel& collectives() { return *collectives_; }
  Channel& transfers() { return transfers_.channel(); }

  // point_to_point.cc
  WorkPtr send(TensorList& tensors, int peer, int tag) override;
  WorkPtr recv(TensorList& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(TensorList& tensors, int tag) override;
  void startCoalescing() override { transfers_.start_batch(++messages_); }
  WorkPtr endCoalescing() override { return transfers_.finish_batch(); }

  // collectives.cc
  WorkPtr broadcast(TensorList& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(TensorList& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(TensorList& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(TensorList& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  // gathers.cc
  WorkPtr allgather(std::vector<TensorList>& outputs, TensorList& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<TensorList>& outputs, TensorList& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<TensorList>& outputs, TensorList& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(TensorList& outputs, std::vector<TensorList>& inputs, const c10d::ScatterOptions& options) override;

  // reduce_scatter.cc
  WorkPtr reduce_scatter(TensorList& outputs, std::vector<TensorList>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                          const c10d::ReduceScatterOptions& options) override;

  // all_to_all.cc
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(TensorList& outputs, TensorList& inputs, const c10d::AllToAllOptions& options) override;

 private:
  Call call_of(c10d::OpType type, const char* title) const;
  /// sparse.cc
  WorkPtr allreduce_of_sparse(const at::Tensor& tensor, const c10d::ReduceOp& op);
  /// Starts the call as the caller's options say: on this thread or in the background, within a timeout of its own or
  /// the group's.
  template <class CallOptions>
  WorkPtr launch(Call call, const CallOptions& options) {
    return launch(std::move(call), options.asyncOp, options.timeout);
  }
  WorkPtr launch(Call call, bool asynchronous, std::chrono::milliseconds timeout);
  /// Puts the call into a stream: the current one, or one beside it.
  WorkPtr launch_on_device(Call call, bool asynchronous);

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<Options> options_;
  std::optional<c10::Device> bound_;  // the device that the group was made for
  const std::shared_ptr<Channel> collectives_;
  PointToPoint transfers_;
  SideStreams streams_;  // of collectives on devices that are not synchronous
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<std::uint64_t> messages_{0};
  std::atomic<std::uint64_t> monitored_barriers_{0};
};

}  // namespace tutti_torch
