// Collectives that gradients pass through: where activations enter and leave a tensor parallel region.
//
//   x = copy_to_region(x, comm);                              // every rank holds the same x
//   x = torch::linear(torch::gelu(torch::linear(x, a)), b);   // a: this rank's rows; b: this rank's columns
//   x = reduce_from_region(x, comm);                          // the sum over ranks, the same on every rank
//
// Each is the transpose of another, so that what one does forward is what the other does backward:
//
//   function             forward                              backward
//   copy_to_region       nothing                              all-reduce
//   reduce_from_region   all-reduce                           nothing
//   scatter_to_region    this rank's part of the last dim     all-gather on the last dimension
//   gather_from_region   all-gather on the last dimension     this rank's part of the last dimension
//   gather_sequence      all-gather on dimension 0            reduce-scatter on dimension 0
//   scatter_sequence     reduce-scatter on dimension 0        all-gather on dimension 0
//
// Source: the first four are f, g and their kin in Shoeybi et al., "Megatron-LM", 2019, section 3; the last two are g
//   and g-bar in Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022,
//   section 4.2.2.
// Meaning: behind reduce_from_region and gather_from_region every rank must compute the same, and the loss is that one
//   value, not the sum of the ranks' copies. An input of copy_to_region and scatter_to_region must be the same on all.
// Shapes: any, the same on all ranks. Sequences lie on dimension 0 ([time, rows, width]) because a rank's part is one
//   piece of memory then: no copies around the collective. On the last dimension a gather costs one copy.
// Bytes per element of the whole: all-reduce = all-gather + reduce-scatter, so the sequence form moves no more.
// Types: f32, f64, bf16, f16; any strides (an input that is not contiguous is copied first). Results are contiguous, in
//   blocks of RegisteredPool::process().
// One rank: every function returns its input.
// Gradients of gradients work. Threads: as tutti::Communicator; backward counts as use.
// Errors: tutti::Error that names rank, function, layer and sizes; the communicator is aborted with it, since the
//   others may be waiting in the collective. Whatever the collective throws.
// Limits: dense CPU tensors.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/tutti.hpp"

namespace tutti::training {

// `layer` is who errors say it was.
torch::Tensor copy_to_region(const torch::Tensor& x, const Communicator& comm, const std::string& layer = "");
torch::Tensor reduce_from_region(const torch::Tensor& x, const Communicator& comm, const std::string& layer = "");
torch::Tensor scatter_to_region(const torch::Tensor& x, const Communicator& comm, const std::string& layer = "");
torch::Tensor gather_from_region(const torch::Tensor& x, const Communicator& comm, const std::string& layer = "");
torch::Tensor gather_sequence(const torch::Tensor& x, const Communicator& comm, const std::string& layer = "");
torch::Tensor scatter_sequence(const torch::Tensor& x, const Communicator& comm, const std::string& layer = "");

/// For parameters that every rank holds but uses on its own part of the sequence (layer norms, biases): use what this
/// returns in their place, and their gradients are summed over the ranks. One all-reduce for all of them, when the last
/// of the gradients is there; one that is not used counts as zero. Gradients are sums before they reach .grad(), so
/// accumulation and data parallelism need to know nothing of it. The tensors are of one type; those that need no
/// gradient (the same on every rank) are left alone.
std::vector<torch::Tensor> sum_gradients(const std::vector<torch::Tensor>& parameters, const Communicator& comm,
                                         const std::string& layer = "");

/// Returns the core's name of a tensor's type. Errors as above.
DataType data_type_of(const torch::Tensor& tensor, const Communicator& comm, const std::string& who);

}  // namespace tutti::training
