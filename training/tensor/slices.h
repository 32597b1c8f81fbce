// How a parameter is cut over the ranks, and put together again.
//
//   torch::Tensor mine = take_slice(whole_weight, Cut{0}, comm, "mlp_in");   // rows of rank 0's weight
//   torch::Tensor whole = join_slices(mine, Cut{0}, comm, "mlp_in");         // the same on every rank
//
// All calls are collective. Results need no gradient and share no memory with the argument.
// Errors: tutti::Error that names rank, layer and sizes; the communicator is aborted with it.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>

#include "tutti/tutti.hpp"

namespace tutti::training {

/// Dimension `dim` holds `groups` equal groups, each of which is cut into one slice per rank, in rank order. Groups are
/// for q, k and v that lie in one matrix: a rank gets its heads of each.
struct Cut {
  std::int64_t dim = 0;
  std::int64_t groups = 1;
  /// Size of the dimension in the whole, which the ranks then need not divide: slices are of ceil(extent / ranks), what
  /// lies past the end is zero. One group only. 0: slices fit without padding.
  std::int64_t extent = 0;
};

/// This rank's slice of rank 0's `whole`. The others' values are not looked at; no rank receives more than its slice.
torch::Tensor take_slice(const torch::Tensor& whole, const Cut& cut, const Communicator& comm,
                         const std::string& layer);
torch::Tensor join_slices(const torch::Tensor& slice, const Cut& cut, const Communicator& comm,
                          const std::string& layer);
/// Rank 0's `whole`.
torch::Tensor take_copy(const torch::Tensor& whole, const Communicator& comm, const std::string& layer);

}  // namespace tutti::training
