// Collectives on tensors wherever they lie: their memory, their order beside computation, and when they have ended.
//
//   torch::Tensor x = empty_communicable({rows, width}, torch::kFloat32, device);
//   comm.all_reduce(x.data_ptr(), x.data_ptr(), count, type, ReduceOp::sum, in_stream_of(x));   // as a kernel would
//
//   TensorWork work = side_stream.start(x.device(), [&] { return comm.all_reduce_async(..., in_stream_of(x)); });
//   ...                                                                        // computation, at the same time
//   work.wait();
//
// On the CPU a started call runs on the communicator's thread, and wait() is its. On another device a call belongs to a
//   stream, and so does its end: wait() makes the current stream wait and returns at once. What went wrong there, the
//   calls that follow say, and Communicator::status().
// Memory on a device: what a started call uses must be kept until wait(), as on the CPU; from then on it is the current
//   stream's, and may be freed as any tensor.
// Why not CUDA's own names: one source then serves LibTorch with and without CUDA.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <utility>

#include "tutti/tutti.hpp"

namespace tutti::training {

/// Whether ranks can tell each other what is in it: dense, in host memory or a GPU's.
bool is_communicable(const torch::Tensor& tensor);

/// Memory for what travels: RegisteredPool::process()'s on the CPU, LibTorch's own on a device. Contents: anything.
torch::Tensor empty_communicable(at::IntArrayRef sizes, torch::ScalarType type, c10::Device device);

/// The options of a call on this tensor: in the current stream of its device.
CallOptions in_stream_of(const torch::Tensor& tensor, CallOptions options = {});

/// The calling thread's current device, where it is not the CPU.
void make_current(c10::Device device);

/// Waits until the device has done the work of its current stream; returns at once on the CPU.
void wait_for(c10::Device device);

/// A started call on tensors.
class TensorWork {
 public:
  TensorWork() = default;
  explicit TensorWork(Work work) : work_(std::move(work)) {}
  /// Stands for all that has been put into the stream until now.
  explicit TensorWork(const c10::Stream& stream);

  /// See above. Throws the call's error, as far as it is known then.
  void wait();
  /// Whether it has ended.
  bool test() const { return end_ ? end_->query() : work_.test(); }
  explicit operator bool() const { return end_ != nullptr || static_cast<bool>(work_); }

 private:
  Work work_;                              // on the CPU
  std::shared_ptr<const c10::Event> end_;  // on a device
};

/// A stream beside the current one, made when it is first used. One thread at a time.
class SideStream {
 public:
  /// `start` makes calls, and returns the work of the last one. On a device that happens in this stream, behind what
  /// the current one holds by now.
  template <class Start>
  TensorWork start(c10::Device device, Start&& start) {
    if (device.is_cpu()) return TensorWork(std::forward<Start>(start)());
    const StreamScope scope(of(device));
    Work work = std::forward<Start>(start)();
    work.wait();  // it is in the stream
    return TensorWork(scope.stream());
  }

 private:
  /// Makes another stream current for its lifetime, behind the work of the one that was current.
  class StreamScope {
   public:
    explicit StreamScope(const c10::Stream& stream);
    ~StreamScope();
    StreamScope(const StreamScope&) = delete;
    StreamScope& operator=(const StreamScope&) = delete;
    const c10::Stream& stream() const { return stream_; }

   private:
    const c10::Stream stream_, before_;
  };
  const c10::Stream& of(c10::Device device);

  std::optional<c10::Stream> stream_;
};

}  // namespace tutti::training
