// A linear layer on a sequence that is cut over the ranks, which keeps only this rank's part of it for backward.
//
//   y = gathered_linear(x, weight, bias, comm, "mlp_in");   // = linear(gather_sequence(x, comm), weight, bias)
//
// Backward gathers x again, while the input's gradient is calculated, and reduce-scatters that gradient while the
// weight's is. Bytes: one all-gather more than gather_sequence() and linear(); memory: 1/N of the gathered input. When
// `weight` needs no gradient nothing is kept and nothing gathered again.
// Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, section 4.2.2.
// Shapes: x [time / N, ..., in], weight [out, in], bias [out] or undefined; y [time, ..., out].
// Types: all of one; under autocast they are cast first, so the cast is what is sent.
// Errors and threads: as regions.h. Limits: no gradients of gradients.
#pragma once

#include <torch/torch.h>

#include <string>

#include "tutti/tutti.hpp"

namespace tutti::training {

torch::Tensor gathered_linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                              const Communicator& comm, const std::string& layer = "");

}  // namespace tutti::training
