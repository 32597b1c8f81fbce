// Gradients of one model on their way through buckets: counts them as backward produces them, starts each bucket's
// exchange when it is complete, and waits for all at the end of backward. Knows nothing of forward.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "training/ddp/bucket.h"
#include "training/ddp/ddp.h"
#include "training/ddp/step_check.h"
#include "training/streams.h"
#include "training/tensors.h"

namespace tutti::training {

class Reducer {
 public:
  /// `trained`: the parameters that require gradients, the same on every rank. `before_pass` runs when a pass that
  /// communicates begins, and `after_pass` at its end. Errors: invalid_argument for a type that cannot be added up, and
  /// for a parameter that has a gradient hook already.
  Reducer(std::vector<NamedTensor> trained, Communicator communicator, const DdpOptions& options,
          std::function<void()> before_pass, std::function<void()> after_pass);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  void zero_grad();
  /// Takes part in one pass of the others' with gradients of zero; their mean arrives here, too.
  void shadow_pass();
  /// Ends the step after such passes, on every rank.
  void leave_step() { steps_.leave_step(); }
  /// Exchanges what the gradients hold, as at the end of a backward pass.
  void average_now();
  const std::vector<Bucket>& buckets() const { return layout_; }
  const DdpStats& stats() const { return stats_; }
  std::vector<std::string> unused() const;
  int* no_sync_depth() { return &no_sync_depth_; }

 private:
  class Hook;
  struct Parameter {
    NamedTensor item;
    torch::Tensor gradient;  // lies in its bucket; undefined for a parameter without elements
    std::size_t bucket = 0;
    std::uint64_t version = 0;       // of the gradient at the end of the last pass that communicated
    bool ready = false;              // has its gradient in the pass under way, or is known to get none
    bool used = false;               // got a gradient since the last pass that communicated
    bool unused_in_pass = false;     // was not, in that pass
    bool unused_everywhere = false;  // nor on any other rank
  };
  struct LiveBucket {
    std::shared_ptr<void> memory;
    GradientBucket view;
    std::size_t pending = 0;  // gradients still missing in the pass under way
    TensorWork work;
  };

  void make_buckets(const DdpOptions& options);
  void clear_gradients();
  void on_gradient(std::size_t index);
  void look_at_gradient(const Parameter& parameter, std::uint64_t additions);
  void take_gradient(Parameter& parameter);
  void open_pass(int task);
  void begin_pass();
  void mark_ready(Parameter& parameter);
  void start_complete_buckets();
  void close_pass();
  void pass_without_backward();
  void take_used_before();
  void take_unused();
  void give_back_unused();
  void check_steps();
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void fail_for_missing_gradients();
  void drain() noexcept;

  Communicator comm_;
  const UnusedParameters unused_mode_;
  std::unique_ptr<CommunicationHook> hook_;
  std::function<void()> before_pass_;
  std::function<void()> after_pass_;
  StepCheck steps_;
  std::vector<Parameter> parameters_;  // in order of registration
  std::vector<Bucket> layout_;
  std::vector<LiveBucket> live_;
  SideStream side_;  // of the exchanges, where gradients are on a device
  // UnusedParameters::fixed: what no rank uses, after the first pass of all; what this rank does not, after its own
  // first.
  bool unused_everywhere_is_known_ = false;
  bool unused_are_known_ = false;
  bool shadow_ = false;
  int no_sync_depth_ = 0;
  bool pass_open_ = false;
  int pass_task_ = -1;    // the engine's number of the backward pass under way
  std::size_t next_ = 0;  // first bucket not started in it
  DdpStats stats_;
};

}  // namespace tutti::training
