// Finds a rank that is a step behind the others: a loss that reaches no parameter starts no exchange, so that this
// rank's next backward would join the others' last one. It finds one that is a pass ahead, too, by one more backward.
//
// How: each rank counts its steps without an exchange, and knows whether its gradients were zeroed since the last
//   exchange, by whatever zero_grad(). In a pass that communicates all ranks compare both, by an all-gather of 8 bytes
//   that runs beside the exchange of gradients.
// Limits: a step without an exchange is seen where zero_grad() of the strategy begins it, not the optimiser's own.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tutti/tutti.hpp"

namespace tutti::training {

class StepCheck {
 public:
  StepCheck(Communicator communicator, std::vector<torch::Tensor> parameters);
  ~StepCheck();
  StepCheck(const StepCheck&) = delete;
  StepCheck& operator=(const StepCheck&) = delete;

  /// A step begins. The one before was without an exchange where none came since, although the optimiser changed a
  /// parameter or is one whose changes are never seen.
  void on_zero_grad();
  /// Behind steps that some ranks made for others: what a rank began before is none of its own.
  void leave_step() { is_in_step_ = false; }
  /// A gradient that is exchanged.
  void on_gradient() { has_exchanged_ = true; }
  /// A gradient is not what the last exchange left, but for what backward has added.
  void on_touched_gradient() { is_zeroed_ = true; }

  /// Collective. Starts the comparison. `counts`: false for a rank without steps of its own.
  void start(bool counts);
  /// Waits for it. Returns what differs, the same on every rank; empty: nothing.
  std::string finish();

 private:
  std::uint64_t versions() const;
  std::string difference(std::size_t a, std::size_t b) const;

  Communicator comm_;
  std::vector<torch::Tensor> parameters_;
  bool is_in_step_ = false;
  bool has_exchanged_ = false;
  bool sees_changes_ = false;  // that the optimiser makes
  bool is_zeroed_ = true;      // since the last comparison
  std::uint64_t versions_at_zero_ = 0;
  std::uint64_t steps_without_ = 0;  // since the last comparison
  std::vector<std::uint64_t> of_ranks_;
  Work work_;
};

}  // namespace tutti::training
