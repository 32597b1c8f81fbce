// What the tests of DistributedDataParallel train, and how they compare. The reference is always one process that
// computes each rank's gradients in turn, adds them in rank order and divides; DDP must give the same bits.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/training/bits.h"
#include "training/ddp/ddp.h"

namespace tutti::training {

using Tensors = std::vector<torch::Tensor>;

/// Sizes that divide by nothing, a buffer, and a parameter that tests may freeze or leave out.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(torch::ScalarType type = torch::kFloat32) {
    first = register_module("first", torch::nn::Linear(7, 31));
    middle = register_module("middle", torch::nn::Linear(31, 29));
    last = register_module("last", torch::nn::Linear(29, 3));
    extra = register_parameter("extra", torch::randn({3}));
    scale = register_buffer("scale", torch::rand({1}));
    to(type);
    count = register_buffer("count", torch::randint(100, {2}, torch::kInt64));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::tanh(first->forward(x));
    x = torch::tanh(middle->forward(x)) * scale;
    x = last->forward(x);
    return use_extra ? x * extra : x;
  }
  torch::Tensor loss(const torch::Tensor& x) { return forward(x).pow(2).mean(); }

  torch::nn::Linear first = nullptr, middle = nullptr, last = nullptr;
  torch::Tensor extra, scale, count;
  bool use_extra = true;
};
TORCH_MODULE(Net);

/// `random` numbers of torch are shared by all threads; a test draws what it needs before it starts them.
inline Net make_net(std::uint64_t seed, torch::ScalarType type = torch::kFloat32) {
  torch::manual_seed(seed);
  return Net(type);
}

inline torch::Tensor rows_of(int rank, int micro = 0, torch::ScalarType type = torch::kFloat32) {
  torch::manual_seed(static_cast<std::uint64_t>(1000 + 10 * rank + micro));
  return torch::randn({5, 7}).to(type);
}

inline Tensors gradients_of(const torch::nn::Module& module) {
  Tensors result;
  for (const torch::Tensor& parameter : module.parameters()) {
    if (parameter.requires_grad()) result.push_back(parameter.grad().clone());
  }
  return result;
}

inline void zero_gradients(torch::nn::Module& module) {
  for (torch::Tensor& parameter : module.parameters()) {
    if (parameter.requires_grad()) parameter.mutable_grad() = torch::zeros_like(parameter);
  }
}

/// Adds in the order of `shards`, in f32 at least, divides by their number and rounds once: what an average is.
inline Tensors average(const std::vector<Tensors>& shards) {
  Tensors result;
  for (std::size_t i = 0; i < shards[0].size(); ++i) {
    const torch::ScalarType type = shards[0][i].scalar_type();
    const torch::ScalarType wide = type == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
    torch::Tensor sum = shards[0][i].to(wide).clone();
    for (std::size_t s = 1; s < shards.size(); ++s) sum += shards[s][i].to(wide);
    result.push_back(sum.div_(static_cast<double>(shards.size())).to(type));
  }
  return result;
}

inline void expect_same_bits(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << "tensor " << i;
}

inline DdpOptions small_buckets() {
  DdpOptions options;
  options.first_bucket_bytes = 64;  // several buckets even for these small models
  options.bucket_bytes = 1024;
  options.deterministic = true;
  return options;
}

}  // namespace tutti::training
