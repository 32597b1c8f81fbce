// What the tests of FullyShardedDataParallel train. The reference is one process, as in ddp_nets.h.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/training/ddp/ddp_nets.h"
#include "training/fsdp/fsdp.h"

namespace tutti::training {

struct FsdpBlockImpl : torch::nn::Module {
  explicit FsdpBlockImpl(std::int64_t width, std::int64_t inner) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", torch::nn::Linear(width, inner));
    down = register_module("down", torch::nn::Linear(inner, width));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return x + down->forward(torch::tanh(up->forward(norm->forward(x))));
  }

  torch::nn::LayerNorm norm = nullptr;
  torch::nn::Linear up = nullptr, down = nullptr;
};
TORCH_MODULE(FsdpBlock);

/// Blocks between two layers of the root unit, which also has a weight that is used at both ends and a scalar.
struct FsdpNetImpl : torch::nn::Module {
  FsdpNetImpl(int block_count, std::int64_t width, std::int64_t inner) {
    in = register_module("in", torch::nn::Linear(7, width));
    for (int i = 0; i < block_count; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), FsdpBlock(width, inner)));
    }
    scale = register_parameter("scale", torch::tensor(1.5F));
    extra = register_parameter("extra", torch::randn({3, 2}));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = in->forward(x);
    for (FsdpBlock& block : blocks) x = block->forward(x);
    x = torch::matmul(x, in->weight) * scale;  // tied
    return use_extra ? x * extra.sum() : x;
  }
  torch::Tensor loss(const torch::Tensor& x) { return forward(x).pow(2).mean(); }

  torch::nn::Linear in = nullptr;
  std::vector<FsdpBlock> blocks;
  torch::Tensor scale, extra;
  bool use_extra = true;
};
TORCH_MODULE(FsdpNet);

/// Rows that divide by no number of ranks; parameters small enough to be packed, and (inner of 600) some that are not.
inline FsdpNet make_fsdp_net(std::uint64_t seed, int blocks = 3, std::int64_t width = 31, std::int64_t inner = 600) {
  torch::manual_seed(seed);
  return FsdpNet(blocks, width, inner);
}

inline Tensors full_parameters(FullyShardedDataParallel& fsdp) {
  Tensors result;
  for (std::size_t i = 0; i < fsdp.parameters().size(); ++i) result.push_back(fsdp.full_parameter(i));
  return result;
}

/// Returns the gradients of the trained ones.
inline Tensors full_gradients(FullyShardedDataParallel& fsdp) {
  Tensors result;
  for (std::size_t i = 0; i < fsdp.parameters().size(); ++i) {
    if (fsdp.parameters()[i].grad().defined()) result.push_back(fsdp.full_gradient(i));
  }
  return result;
}

inline FsdpOptions in_rank_order(Sharding sharding, Reshard reshard = Reshard::all_but_root) {
  FsdpOptions options;
  options.sharding = sharding;
  options.reshard = reshard;
  options.deterministic = true;
  return options;
}

/// Steps of one process that computes each rank's gradients in turn, adds them in rank order and divides.
template <class Optimizer>
void train_reference(FsdpNet& reference, Optimizer& optimizer, const std::vector<torch::Tensor>& rows, int steps,
                     double largest_norm = 0) {
  torch::set_num_threads(1);  // as on_ranks(): MKL's bits depend on it
  for (int step = 0; step < steps; ++step) {
    std::vector<Tensors> shards;
    for (const torch::Tensor& x : rows) {
      zero_gradients(*reference);
      reference->loss(x).backward();
      shards.push_back(gradients_of(*reference));
    }
    const Tensors mean = average(shards);
    std::size_t i = 0;
    for (torch::Tensor& parameter : reference->parameters()) {
      if (parameter.requires_grad()) parameter.mutable_grad() = mean[i++];
    }
    if (largest_norm > 0) torch::nn::utils::clip_grad_norm_(reference->parameters(), largest_norm);
    optimizer.step();
  }
}

}  // namespace tutti::training
