// The reference is always the same function without checkpoint: outputs, gradients and random state must have its bits.
#include "training/checkpointing/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>

#include "tests/training/checkpointing/checkpoint_parts.h"
#include "training/precision/autocast.h"

namespace tutti::training::checkpoint_test {
namespace {

using ::testing::HasSubstr;

TEST(Checkpoint, Claim22GradientsHaveTheSameBitsDropoutIncluded) {
  expect_same_with_and_without([](bool with) {
    std::vector<CheckpointedPart> parts{CheckpointedPart(1), CheckpointedPart(2), CheckpointedPart(3)};
    torch::manual_seed(4);
    torch::Tensor input = torch::randn({5, 7}, torch::requires_grad());
    torch::Tensor x = input;
    for (CheckpointedPart& part : parts) x = run(part, x, with);
    const torch::Tensor noise = torch::rand({5, 7});  // the generator goes on between forward and backward
    (x * noise).pow(2).sum().backward();
    Tensors result{x.detach(), input.grad()};
    for (CheckpointedPart& part : parts) {
      EXPECT_EQ(part->runs, with ? 2 : 1);
      for (torch::Tensor& gradient : all_gradients_of(*part)) result.push_back(gradient);
    }
    return result;
  });
}

/// The class of inputs and outputs that are lists.
struct ListPart : torch::nn::Module {
  ListPart() {
    torch::manual_seed(5);
    table = register_module("table", torch::nn::Embedding(11, 4));
    used = register_parameter("used", torch::randn({4}));
    unused = register_parameter("unused", torch::randn({4}));
    frozen = register_parameter("frozen", torch::randn({4}), /*requires_grad=*/false);
  }
  /// Tokens, a mask or nothing, and an offset.
  Tensors forward(const Tensors& inputs, double factor) {
    torch::Tensor x = table->forward(inputs[0]) * used * factor + frozen + inputs[2];
    if (inputs[1].defined()) x = x * inputs[1];
    return {x.exp(), x.argmax(-1), x.sin(), inputs[2]};
  }
  torch::nn::Embedding table = nullptr;
  torch::Tensor used, unused, frozen;
};

TEST(Checkpoint, ListsOfInputsAndOutputsOfAllKinds) {
  for (const bool masked : {false, true}) {
    for (const int use : {1, 2, 3, 4}) {  // which outputs the loss uses: exp, sin, both, the input that is handed on
      SCOPED_TRACE(::testing::Message() << "masked " << masked << ", use " << use);
      expect_same_with_and_without([&](bool with) {
        ListPart part;
        const torch::Tensor tokens = torch::randint(11, {3, 5}, torch::kInt64);
        const torch::Tensor mask = masked ? torch::rand({3, 5, 4}) : torch::Tensor();
        const torch::Tensor offset = torch::randn({4}, torch::requires_grad());
        const double factor = 1.5;
        const auto function = [&part, factor](const Tensors& inputs) { return part.forward(inputs, factor); };
        const Tensors inputs{tokens, mask, offset};
        const Tensors outputs = with ? checkpoint(part, function, inputs) : function(inputs);
        torch::Tensor loss = torch::zeros({});
        if (use & 1) loss = loss + outputs[0].sum();
        if (use & 2) loss = loss + outputs[2].sum();
        if (use & 4) loss = loss + (outputs[3] * 2).sum();
        loss.backward();
        EXPECT_FALSE(outputs[1].requires_grad());
        Tensors result{outputs[0].detach(), outputs[1], offset.grad()};
        for (torch::Tensor& gradient : all_gradients_of(part)) result.push_back(gradient);
        return result;
      });
    }
  }
}

TEST(Checkpoint, Nested) {
  expect_same_with_and_without([](bool with) {
    struct Pair : torch::nn::Module {
      Pair() {
        first = register_module("first", CheckpointedPart(1));
        second = register_module("second", CheckpointedPart(2));
      }
      CheckpointedPart first = nullptr, second = nullptr;
    };
    Pair pair;
    const torch::Tensor x = torch::ones({5, 7});  // needs no gradient: the parameters do
    const auto both = [&](const torch::Tensor& input) { return run(pair.second, run(pair.first, input, with), with); };
    (with ? checkpoint(pair, both, x) : both(x)).pow(2).sum().backward();
    // Forward, the outer part's second run, its own second run.
    EXPECT_EQ(pair.first->runs, with ? 3 : 1);
    return all_gradients_of(pair);
  });
}

TEST(Checkpoint, WithoutGradientsItJustCalls) {
  CheckpointedPart part(1);
  const torch::Tensor x = torch::ones({2, 7});
  {
    torch::NoGradGuard no_grad;
    EXPECT_FALSE(run(part, x, true).requires_grad());
  }
  for (torch::Tensor& parameter : part->parameters()) parameter.set_requires_grad(false);
  EXPECT_FALSE(run(part, x, true).requires_grad());
  EXPECT_EQ(part->runs, 2);
}

TEST(Checkpoint, TiedParametersInsideAndOutside) {
  struct Tied : torch::nn::Module {
    Tied() {
      weight = register_parameter("weight", torch::tensor({0.3f, -1.7f, 2.1f}));
      register_parameter("alias", weight);
    }
    torch::Tensor weight;
  };
  expect_same_with_and_without([](bool with) {
    Tied tied;
    const auto function = [&tied](const torch::Tensor& x) { return (x * tied.weight).sin(); };
    const torch::Tensor x = torch::rand({3});
    const torch::Tensor y = with ? checkpoint(tied, function, x) : function(x);
    (y * tied.weight).sum().backward();
    return all_gradients_of(tied);
  });
}

TEST(Checkpoint, HooksOfAParameterRunOncePerPass) {
  CheckpointedPart part(1);
  int calls = 0;
  part->in->weight.register_hook([&](const torch::Tensor& gradient) {
    ++calls;
    return gradient * 2;
  });
  run(part, torch::ones({2, 7}), true).sum().backward();
  EXPECT_EQ(calls, 1);
  run(part, torch::ones({2, 7}), true).sum().backward();
  EXPECT_EQ(calls, 2);
}

TEST(Checkpoint, RunningStatisticsChangeOnce) {
  expect_same_with_and_without([](bool with) {
    torch::nn::BatchNorm1d norm(7);
    const torch::Tensor x = torch::randn({9, 7});
    for (int step = 0; step < 3; ++step) {
      auto function = [norm](const torch::Tensor& input) mutable { return norm->forward(input); };
      (with ? checkpoint(*norm, function, x) : function(x)).pow(3).sum().backward();
    }
    Tensors result = all_gradients_of(*norm);
    for (const torch::Tensor& buffer : norm->buffers()) result.push_back(buffer);
    return result;
  });
}

TEST(Checkpoint, RetainGraphAndGradientsOfSomeOnly) {
  expect_same_with_and_without([](bool with) {
    CheckpointedPart part(1);
    const torch::Tensor x = torch::randn({5, 7}, torch::requires_grad());
    const torch::Tensor loss = run(part, x, with).pow(2).sum();
    Tensors result = torch::autograd::grad({loss}, {part->in->weight}, {}, /*retain_graph=*/true);
    result.push_back(torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true)[0]);
    EXPECT_FALSE(part->in->weight.grad().defined());
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    for (torch::Tensor& gradient : all_gradients_of(*part)) result.push_back(gradient);
    return result;
  });
}

TEST(Checkpoint, WhatWouldLoseAGradientIsRefused) {
  CheckpointedPart part(1);
  const torch::Tensor x = torch::ones({2, 7});
  const torch::Tensor stranger = torch::ones({7}, torch::requires_grad());
  EXPECT_EQ(
      message_of([&] {
        checkpoint(
            *part, [&](const torch::Tensor& y) { return part->forward(y) * stranger; }, x)
            .sum()
            .backward();
      }),
      "checkpoint: the function uses a trained tensor of shape [7] that is neither an input nor a parameter of the "
      "module; its gradient would be lost, so pass it as an input");
  const torch::Tensor from_outside = part->in->weight.sum() * 2;
  EXPECT_THAT(message_of([&] {
                checkpoint(
                    *part, [&](const torch::Tensor& y) { return part->forward(y) * from_outside; }, x)
                    .sum()
                    .backward();
              }),
              HasSubstr("checkpoint: the function uses a tensor from outside (MulBackward"));
  EXPECT_THAT(message_of([&] {
                const torch::Tensor loss = run(part, x, true).sum();
                torch::autograd::grad({loss}, {part->in->weight}, {}, {}, /*create_graph=*/true);
              }),
              HasSubstr("checkpoint: backward with create_graph is not supported"));
  EXPECT_THAT(message_of([&] {
                const torch::Tensor loss = run(part, x, true).sum();
                {
                  torch::NoGradGuard no_grad;
                  part->in->bias += 1;
                }
                loss.backward();
              }),
              HasSubstr("modified by an inplace operation"));
}

TEST(Checkpoint, ASecondRunThatDiffersIsRefused) {
  CheckpointedPart part(1);
  const torch::Tensor x = torch::ones({2, 7});
  int calls = 0;
  EXPECT_EQ(message_of([&] {
              checkpoint(
                  *part, [&](const torch::Tensor& y) { return part->forward(y).slice(0, calls++); }, x)
                  .sum()
                  .backward();
            }),
            "checkpoint: output 0 was Float [2, 7] in forward and Float [1, 7] when run again in backward");
  CheckpointedPart drawing(1, /*own_generator=*/true);
  CheckpointOptions options;  // that do not name it
  options.check_outputs = true;
  EXPECT_THAT(message_of([&] {
                checkpoint(
                    *drawing, [&](const torch::Tensor& y) { return drawing->forward(y); }, x, options)
                    .sum()
                    .backward();
              }),
              HasSubstr("draws from a generator that is not in CheckpointOptions"));
  options.generators = {*drawing->generator};
  EXPECT_EQ(message_of([&] {
              checkpoint(
                  *drawing, [&](const torch::Tensor& y) { return drawing->forward(y); }, x, options)
                  .sum()
                  .backward();
            }),
            "");
}

// Backward outside of the region, as it should be, and inside.
TEST(Checkpoint, UnderAutocast) {
  for (const bool backward_inside : {false, true}) {
    expect_same_with_and_without([&](bool with) {
      CheckpointedPart first(1), second(2);
      torch::Tensor loss;
      {
        const Autocast autocast(torch::kBFloat16);
        const torch::Tensor x = run(first, torch::ones({5, 7}), with);
        loss = run(second, x, with).pow(2).sum();
        if (backward_inside) loss.backward();
      }
      if (!backward_inside) loss.backward();
      Tensors result = all_gradients_of(*first);
      for (torch::Tensor& gradient : all_gradients_of(*second)) result.push_back(gradient);
      return result;
    });
  }
}

TEST(Checkpoint, ItsFirstRunLeavesNoCastWithoutGradientBehind) {
  CheckpointedPart part(1);
  const auto gradient = [&](bool also_outside) {
    part->zero_grad();
    torch::manual_seed(2);  // the same dropout
    torch::Tensor loss;
    {
      const Autocast autocast(torch::kBFloat16);
      loss = run(part, torch::ones({5, 7}), true).sum();
      if (also_outside) loss = loss + part->out->forward(torch::ones({5, 31})).sum();
    }
    loss.backward();
    return part->out->weight.grad().clone();
  };
  // The use outside adds 5 ones to each element: no rounding but that of the other summand and the sum, far below 0.1.
  EXPECT_LT((gradient(true) - gradient(false) - 5).abs().max().item<double>(), 0.1);
}

/// Counts activations (outputs of layers) that are alive, through weak references to their memory.
struct Live {
  void add(const torch::Tensor& tensor) {
    memory.emplace_back(tensor.storage().getWeakStorageImpl());
    peak = std::max(peak, count());
  }
  int count() const {
    int alive = 0;
    for (const auto& reference : memory) alive += reference.use_count() > 0;
    return alive;
  }
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> memory;
  int peak = 0;
};

struct Chain : torch::nn::Module {
  explicit Chain(int layers) {
    for (int i = 0; i < layers; ++i) {
      weights.push_back(register_parameter("weight" + std::to_string(i), torch::full({64}, 0.9 + 0.01 * i)));
    }
  }
  /// Layers [begin, end). tanh keeps its output, and the product of the next layer the same one: one activation each.
  torch::Tensor forward(torch::Tensor x, int begin, int end) {
    for (int i = begin; i < end; ++i) {
      x = torch::tanh(x * weights[static_cast<std::size_t>(i)]);
      live.add(x);
      ++runs;
    }
    return x;
  }
  Tensors weights;
  Live live;
  int runs = 0;
};

// n layers in sqrt(n) segments keep about 2 sqrt(n) of n activations, for one more forward.
TEST(Checkpoint, Claim22TwiceTheSquareRootOfTheActivationsForOneMoreForward) {
  constexpr int kSide = 8, kLayers = kSide * kSide;
  Chain whole(kLayers), parts(kLayers);
  const torch::Tensor input = torch::linspace(-1, 1, 64);

  torch::Tensor y = whole.forward(input, 0, kLayers);
  EXPECT_EQ(whole.live.count(), kLayers);
  y.sum().backward();
  EXPECT_EQ(whole.live.peak, kLayers);

  torch::Tensor x = input;
  for (int begin = 0; begin < kLayers; begin += kSide) {
    x = checkpoint(
        parts, [&parts, begin](const torch::Tensor& z) { return parts.forward(z, begin, begin + kSide); }, x);
  }
  EXPECT_EQ(parts.live.count(), kSide);  // the inputs of all segments but the first, and the last output
  x.sum().backward();
  EXPECT_LE(parts.live.peak, 2 * kSide);
  EXPECT_EQ(parts.runs, 2 * kLayers);
  EXPECT_EQ(whole.runs, kLayers);
  expect_same(all_gradients_of(parts), all_gradients_of(whole));
  x = torch::Tensor();
  EXPECT_EQ(parts.live.count(), 0);
}

}  // namespace
}  // namespace tutti::training::checkpoint_test
