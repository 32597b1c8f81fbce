// For the tests of activation checkpointing: a part with dropout, and comparisons to the bit.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "training/checkpointing/checkpoint.h"

namespace tutti::training {

using Tensors = std::vector<torch::Tensor>;

/// Undefined tensors are equal to undefined ones only.
inline void expect_same(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].defined(), b[i].defined()) << "tensor " << i;
    EXPECT_TRUE(!a[i].defined() || torch::equal(a[i], b[i])) << "tensor " << i;
  }
}

/// Two layers with dropout between, from LibTorch's generator or one of its own.
struct CheckpointedPartImpl : torch::nn::Module {
  explicit CheckpointedPartImpl(std::uint64_t seed, bool own_generator = false) {
    torch::manual_seed(seed);
    in = register_module("in", torch::nn::Linear(7, 31));
    out = register_module("out", torch::nn::Linear(31, 7));
    if (own_generator) generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    ++runs;
    const torch::Tensor y = torch::gelu(in->forward(x));
    const torch::Tensor keep = at::empty_like(y).bernoulli_(0.7, generator);
    return x + out->forward(y * keep);
  }
  CheckpointOptions options() const {
    CheckpointOptions result;
    if (generator) {
      result.default_generators = false;
      result.generators = {*generator};
    }
    return result;
  }
  torch::nn::Linear in = nullptr, out = nullptr;
  std::optional<at::Generator> generator;
  int runs = 0;
};
TORCH_MODULE(CheckpointedPart);

inline torch::Tensor run(CheckpointedPart part, const torch::Tensor& x, bool with_checkpoint) {
  if (!with_checkpoint) return part->forward(x);
  return checkpoint(
      *part, [part](const torch::Tensor& input) mutable { return part->forward(input); }, x, part->options());
}

inline Tensors all_gradients_of(const torch::nn::Module& module) {
  Tensors result;
  for (const torch::Tensor& parameter : module.parameters()) result.push_back(parameter.grad());
  return result;
}

/// Runs body(with_checkpoint) from the same random state without and with, and compares what it returns.
inline void expect_same_with_and_without(const std::function<Tensors(bool)>& body) {
  torch::set_num_threads(1);
  torch::manual_seed(77);
  Tensors without = body(false);
  without.push_back(torch::rand({3}));  // where the generator stands
  torch::manual_seed(77);
  Tensors with = body(true);
  with.push_back(torch::rand({3}));
  expect_same(without, with);
}

inline std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace tutti::training
