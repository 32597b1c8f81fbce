// Clipping by the norm of a whole gradient whose pieces lie on several ranks.
//
//   clip_grad_norm({slices, layer_norms}, {mesh.fsdp(), mesh.tp(), mesh.pp()}, /*largest=*/1.0);
//
// Each piece is counted once: a parameter that several ranks hold whole (a layer norm beside tensor parallel
//   layers, the embedding on the first and last stage of a pipeline) is `own` on one of them and a copy on the others.
//   Ranks that hold the same pieces (data parallel replicas) are simply not among the communicators.
// Arithmetic: sums of squares in f64, added along one communicator after the other, each in rank order, so all ranks
//   get the same bits; the factor is largest / (norm + 1e-6), as torch::nn::utils::clip_grad_norm_ has it. Only the
//   order of the f64 additions depends on how the model is cut: norms of two cuts agree within n 2^-53 (n: elements),
//   and the factor, rounded to f32 where gradients are f32, is hence nearly always the same to the bit.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "tutti/tutti.hpp"

namespace tutti::training {

struct ClippedParameters {
  std::vector<torch::Tensor> own;     // this rank counts them
  std::vector<torch::Tensor> copies;  // another rank counts them
};

/// Collective over `pieces` in turn. Multiplies the gradients of `own` and `copies` by the same factor, so that the
/// norm of the whole is at most `largest`; 0 only measures. Parameters without a gradient count as 0. Returns the norm
/// before: infinite or not a number when gradients are, and then nothing is scaled. Errors: invalid_argument for a
/// negative `largest`.
double clip_grad_norm(const ClippedParameters& parameters, const std::vector<Communicator>& pieces, double largest);

}  // namespace tutti::training
