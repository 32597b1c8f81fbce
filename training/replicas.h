// Copies of one model on all ranks: made equal, and checked to be.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "training/model_form.h"
#include "training/tensors.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

/// Lifetime: the module must outlive this. Threads: as Communicator. Errors are sentences that begin with `owner`, the
/// class for which this works.
class Replicas {
 public:
  /// Collective. Gives every rank rank 0's parameters and buffers. Errors: invalid_argument when the ranks' models
  /// differ in names, types or shapes, or a tensor is not a dense one.
  Replicas(const torch::nn::Module& module, Communicator communicator, std::string owner);

  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  bool has_buffers() const { return !buffers_.empty(); }

  /// Collective.
  void broadcast_buffers(int root);
  /// Aborts the communicator and throws the name of what has changed since this was made: model_form.h. Not collective.
  void check_unchanged();
  /// Collective. Throws, on every rank, the name of the first tensor whose bytes differ from rank 0's, and the rank.
  void check_equal();

 private:
  void check_usable(const NamedTensor& item) const;
  void check_same_model();
  void broadcast(std::vector<NamedTensor>& tensors, int root);
  const NamedTensor& item(std::size_t index) const;
  /// `values` has one entry for each parameter, then each buffer. On all ranks: the first in which a rank differs.
  void compare(const std::vector<std::uint64_t>& values, const char* difference);
  template <class Value>
  std::vector<std::uint64_t> of_each(Value&& value) const;

  Communicator comm_;
  std::string owner_;
  std::vector<NamedTensor> parameters_;
  std::vector<NamedTensor> buffers_;
  ModelForm form_;
};

/// Collective. Copies that optimisers change on each rank by themselves: where one multiplies and adds at once and
/// another does not, they part by a rounding in each step. Errors: invalid_argument, when PyTorch calculates by other
/// instructions on another rank's CPU.
void check_same_instructions(const std::vector<NamedTensor>& parameters, Communicator comm, const std::string& owner);

}  // namespace tutti::training
