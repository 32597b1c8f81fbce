// The ranks of a tensor parallel region, in a form that autograd keeps from forward to backward. Part of regions.cc and
// gathered_linear.cc; a user never sees it.
#pragma once

#include <torch/torch.h>

#include <string>
#include <utility>

#include "tutti/tutti.hpp"

namespace tutti::training {

struct RegionGroup : torch::CustomClassHolder {
  RegionGroup(Communicator communicator, std::string layer_name)
      : comm(std::move(communicator)), layer(std::move(layer_name)) {}
  std::string named(const char* call) const { return layer.empty() ? std::string(call) : layer + ": " + call; }
  Communicator comm;
  std::string layer;
};
using RegionGroupPointer = c10::intrusive_ptr<RegionGroup>;

/// From saved_data["group"].
inline RegionGroupPointer region_group_of(torch::autograd::AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<RegionGroup>(context->saved_data["group"].toCapsule());
}

}  // namespace tutti::training
