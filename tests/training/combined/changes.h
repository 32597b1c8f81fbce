// What the tests of changes after wrapping change, and how a step is made. A change is either followed, so that all is
// as in one process, or refused on every rank in one sentence.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/training/on_ranks.h"

namespace tutti::training {

using Tensors = std::vector<torch::Tensor>;

/// Lets tests do to any module's parameters what its own methods can.
struct OpenModule : torch::nn::Module {
  static auto& parameters_of(torch::nn::Module& module) { return module.*(&OpenModule::parameters_); }
};

/// Four linear layers, which are units, two of them of one shape; a frozen parameter, and a buffer.
struct ChangedNetImpl : torch::nn::Module {
  ChangedNetImpl() {
    first = register_module("first", torch::nn::Linear(7, 12));
    left = register_module("left", torch::nn::Linear(12, 12));
    right = register_module("right", torch::nn::Linear(12, 12));
    last = register_module("last", torch::nn::Linear(12, 3));
    fixed = register_parameter("fixed", torch::randn({3}), /*requires_grad=*/false);
    scale = register_buffer("scale", torch::rand({3}) + 0.5);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::tanh(first->forward(x));
    x = torch::tanh(left->forward(x)) + torch::sigmoid(right->forward(x));
    x = last->forward(x) + fixed;
    return x * scale.clone();  // the graph keeps a copy, which no broadcast writes to: a pass may run again
  }
  torch::Tensor loss(const torch::Tensor& x) { return forward(x).pow(2).mean(); }

  torch::nn::Linear first = nullptr, left = nullptr, right = nullptr, last = nullptr;
  torch::Tensor fixed, scale;
};
TORCH_MODULE(ChangedNet);

/// In f64 no mistake hides behind rounding.
inline ChangedNet changed_net() {
  torch::manual_seed(3);
  ChangedNet net;
  net->to(torch::kFloat64);
  return net;
}

inline torch::Tensor changed_rows(int rank) {
  torch::manual_seed(static_cast<std::uint64_t>(100 + rank));
  return torch::randn({5, 7}, torch::kFloat64);
}

enum class Zeroing { by_strategy, to_none, to_zero };

/// From the second step on. Either all ranks make it, or rank 1 alone.
struct Change {
  const char* name = "";
  std::function<void(torch::nn::Module&)> make = [](torch::nn::Module&) {};  // of the module, once
  Zeroing zeroing = Zeroing::by_strategy;
  bool in_closure = false;  // of the optimiser's step
  int passes = 1;           // backward passes before the optimiser's step
  bool of_one_graph = false;
  std::function<void(torch::Tensor& held)> touch = {};  // first.weight as the optimiser holds it, before its step
};

constexpr std::size_t kTouched = 1;  // behind the module's own parameter

/// Whether hooks that changes add do something: the reference runs all ranks' passes in one thread.
inline thread_local bool hooks_act = true;

/// Who makes steps: a rank, or one process for all.
struct Trainer {
  std::function<torch::Tensor(const Change&)> backward;  // as often as the change says
  std::function<void()> zero_grad;                       // the strategy's
  torch::optim::Optimizer& optimizer;
};

inline torch::Tensor run_backward(const std::function<torch::Tensor()>& loss_of, const Change& change) {
  torch::Tensor loss;
  for (int pass = 0; pass < change.passes; ++pass) {
    if (pass == 0 || !change.of_one_graph) loss = loss_of();
    loss.backward({}, /*keep_graph=*/change.of_one_graph);
  }
  return loss;
}

inline torch::Tensor passes_of_step(Trainer& trainer, const Change& change) {
  if (change.zeroing == Zeroing::by_strategy) {
    trainer.zero_grad();
  } else {
    trainer.optimizer.zero_grad(change.zeroing == Zeroing::to_none);
  }
  return trainer.backward(change);
}

inline void make_step(Trainer& trainer, const Change& change) {
  if (change.in_closure) {
    trainer.optimizer.step([&] { return passes_of_step(trainer, change); });
    return;
  }
  passes_of_step(trainer, change);
  if (change.touch) change.touch(trainer.optimizer.param_groups()[0].params()[kTouched]);
  trainer.optimizer.step();
}

constexpr int kChangedRanks = 2, kStepsAfterChange = 3;

inline torch::optim::SGD changed_optimizer(const Tensors& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1));
}

/// Communicators whose errors say so when they come by waiting.
inline Options short_options() {
  Options options;
  options.timeout = std::chrono::seconds(20);
  return options;
}

/// All ranks end in the sentence, and none by a deadline.
inline void expect_sentence(const std::vector<std::string>& errors, const std::string& words) {
  EXPECT_THAT(errors, ::testing::Each(::testing::HasSubstr(words)));
  EXPECT_THAT(errors, ::testing::Each(::testing::Not(::testing::HasSubstr("timed out"))));
}

}  // namespace tutti::training
