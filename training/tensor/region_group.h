// The ranks of a tensor parallel region, in a form that autograd keeps from forward to backward, and their collectives.
// Part of regions.cc and gathered_linear.cc; a user never sees it.
//
// Both ends of each call lie in blocks of RegisteredPool::process(): a copy into one costs a fraction of what the
// library's staging of other memory between processes does. Tensors on a device stay there, and the calls are the
// current stream's.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>

#include "tutti/tutti.hpp"

namespace tutti::training {

/// A collective under way. The tensors that it reads and writes stay until it has ended, whatever is thrown meanwhile.
class InFlight {
 public:
  /// `region`: where errors say this rank was.
  InFlight(Work work, torch::Tensor in, torch::Tensor out, std::string region)
      : work_(std::move(work)), in_(std::move(in)), out_(std::move(out)), region_(std::move(region)) {}
  ~InFlight();
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  /// The result. Once.
  torch::Tensor wait();

 private:
  Work work_;
  torch::Tensor in_, out_;
  std::string region_;
};

struct RegionGroup : torch::CustomClassHolder {
  RegionGroup(Communicator communicator, std::string layer_name)
      : comm(std::move(communicator)), layer(std::move(layer_name)) {}
  std::string named(const char* call) const { return layer.empty() ? std::string(call) : layer + ": " + call; }

  // `call`: who errors say it was.
  /// Any shape to the same: the sum.
  torch::Tensor all_reduce(const torch::Tensor& x, const char* call);
  /// [...] to [ranks, ...].
  std::unique_ptr<InFlight> all_gather(const torch::Tensor& x, const char* call);
  /// [time, ...] to [time / ranks, ...]: this rank's part of the sum. REQUIRES: time is divisible by the ranks.
  std::unique_ptr<InFlight> reduce_scatter(const torch::Tensor& x, const char* call);

  Communicator comm;
  std::string layer;
};
using RegionGroupPointer = c10::intrusive_ptr<RegionGroup>;

/// Returns the group in saved_data["group"].
inline RegionGroupPointer region_group_of(torch::autograd::AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<RegionGroup>(context->saved_data["group"].toCapsule());
}

}  // namespace tutti::training
