// The reference is the whole GPT on one process. In f64 no logic error can hide behind rounding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/training/on_ranks.h"
#include "training/abort.h"
#include "training/tensor/gpt_tensor.h"

namespace tutti::training::tensor_gpt_test {
namespace {

using ::testing::HasSubstr;
using Tensors = std::vector<torch::Tensor>;

constexpr int kRows = 2, kTime = 24, kWidth = 24;

GptConfig config_of(double dropout = 0, bool bias = true) {  // all but the vocabulary divisible by 1, 2, 3, 4, 8
  GptConfig config;
  config.layers = 2;
  config.heads = 24;
  config.width = kWidth;
  config.context = kTime;
  config.vocabulary = 37;
  config.dropout = dropout;
  config.bias = bias;
  return config;
}

Gpt whole_gpt(const GptConfig& config, std::uint64_t seed = 1, torch::ScalarType type = torch::kFloat64) {
  torch::manual_seed(seed);
  Gpt gpt(config);
  gpt->to(type);
  const torch::NoGradGuard no_grad;  // biases and norms are born as zeros and ones, which would hide mistakes
  for (torch::Tensor& parameter : gpt->parameters()) {
    if (parameter.requires_grad()) parameter += 0.1 * torch::randn_like(parameter);
  }
  return gpt;
}

struct Batch {
  torch::Tensor tokens, targets;
};
Batch batch_of(const GptConfig& config, std::uint64_t seed = 2) {
  torch::manual_seed(seed);
  return {torch::randint(config.vocabulary, {kRows, kTime}, torch::kInt64),
          torch::randint(config.vocabulary, {kRows, kTime}, torch::kInt64)};
}

std::map<std::string, torch::Tensor> gradients_of(const Gpt& gpt) {
  std::map<std::string, torch::Tensor> result;
  for (const auto& item : gpt->named_parameters()) {
    if (item.value().requires_grad()) result[item.key()] = item.value().grad();
  }
  return result;
}

void expect_close(const Gpt& a, const Gpt& b, double tolerance, bool gradients) {
  for (const auto& item : b->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    const torch::Tensor other = a->named_parameters()[item.key()];
    EXPECT_LT((other - item.value()).abs().max().item<double>(), tolerance) << item.key();
    if (!gradients) continue;
    ASSERT_TRUE(other.grad().defined()) << item.key();
    EXPECT_LT((other.grad() - item.value().grad()).abs().max().item<double>(), tolerance) << item.key() << ".grad";
  }
}

struct Mode {
  int size;
  bool sequence_parallel;
  bool keep_gathered = false;
};
void PrintTo(const Mode& mode, std::ostream* out) {
  *out << mode.size << (mode.sequence_parallel ? "Sequence" : "") << (mode.keep_gathered ? "KeepGathered" : "");
}

class GptOnRanks : public ::testing::TestWithParam<Mode> {
 protected:
  TensorParallelOptions options() const { return {GetParam().sequence_parallel, GetParam().keep_gathered, 3}; }
};

// Activations and gradients are near 1 or below; each number is a sum of at most 24 * 2 * 96 products, in some 20 steps
// one behind the other: 20 * sqrt(4608) * 2^-53 = 1.5e-13 expected. A wrong term would show as 1e-3 or more.
TEST_P(GptOnRanks, EqualsTheWholeModelInF64) {
  const Mode mode = GetParam();
  for (const bool bias : {true, false}) {
    SCOPED_TRACE(::testing::Message() << "bias " << bias);
    const GptConfig config = config_of(0, bias);
    Gpt whole = whole_gpt(config);
    const Batch batch = batch_of(config);
    std::vector<Gpt> copies;
    for (int rank = 0; rank < mode.size; ++rank) copies.push_back(whole_gpt(config, rank == 0 ? 1 : 99));
    Tensors losses(copies.size()), logits(copies.size());
    const auto errors = on_ranks(mode.size, [&](int rank, Communicator comm) {
      const auto i = static_cast<std::size_t>(rank);
      TensorParallelGpt model(copies[i], comm, options());
      losses[i] = model->loss(batch.tokens, batch.targets);
      losses[i].backward();
      logits[i] = model->forward(batch.tokens);
      model->store(copies[i]);
    });
    ASSERT_EQ(errors, nothing(mode.size));
    const torch::Tensor loss = whole->loss(batch.tokens, batch.targets);
    loss.backward();
    const torch::Tensor joined = torch::cat(logits, -1);
    EXPECT_LT((joined.narrow(-1, 0, config.vocabulary) - whole->forward(batch.tokens)).abs().max().item<double>(),
              1e-12);
    EXPECT_TRUE((joined.slice(-1, config.vocabulary) == 0).all().item<bool>());  // the padding
    for (std::size_t i = 0; i < copies.size(); ++i) {
      EXPECT_NEAR(losses[i].item<double>(), loss.item<double>(), 1e-12);
      EXPECT_TRUE(torch::equal(losses[i], losses[0]));
      expect_close(copies[i], whole, 1e-12, /*gradients=*/true);
      for (const auto& [name, gradient] : gradients_of(copies[i])) {  // what all hold stays the same, to the bit
        EXPECT_TRUE(torch::equal(gradient, gradients_of(copies[0])[name])) << name;
      }
    }
  }
}

TEST_P(GptOnRanks, TrainsAsTheWholeModel) {
  const Mode mode = GetParam();
  constexpr int kSteps = 4;
  const GptConfig config = config_of();
  Gpt whole = whole_gpt(config);
  std::vector<Batch> batches;
  for (int step = 0; step < 2 * kSteps; ++step)
    batches.push_back(batch_of(config, static_cast<std::uint64_t>(10 + step)));
  const auto train = [&](auto& model) {
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      for (int micro = 0; micro < 2; ++micro) {  // accumulated
        const Batch& batch = batches[static_cast<std::size_t>(2 * step + micro)];
        (model->loss(batch.tokens, batch.targets) / 2).backward();
      }
      optimizer.step();
    }
  };
  std::vector<Gpt> copies;
  for (int rank = 0; rank < mode.size; ++rank) copies.push_back(whole_gpt(config));
  const auto errors = on_ranks(mode.size, [&](int rank, Communicator comm) {
    const auto i = static_cast<std::size_t>(rank);
    TensorParallelGpt model(copies[i], comm, options());
    train(model);
    model->store(copies[i]);
  });
  ASSERT_EQ(errors, nothing(mode.size));
  train(whole);
  for (Gpt& copy : copies) expect_close(copy, whole, 1e-12, /*gradients=*/false);
}

// f32: as above with 2^-24: 20 * sqrt(4608) * 2^-24 = 8e-5 if every step were at the scale of 1; what is compared is a
// mean over 48 tokens of numbers near 0.1, so 1e-5 leaves an order of magnitude.
TEST_P(GptOnRanks, Claim14EqualsOneProcessWithinTheTolerance) {
  const Mode mode = GetParam();
  const GptConfig config = config_of();
  Gpt whole = whole_gpt(config, 1, torch::kFloat32);
  const Batch batch = batch_of(config);
  std::vector<Gpt> copies;
  for (int rank = 0; rank < mode.size; ++rank) copies.push_back(whole_gpt(config, 1, torch::kFloat32));
  const auto errors = on_ranks(mode.size, [&](int rank, Communicator comm) {
    const auto i = static_cast<std::size_t>(rank);
    TensorParallelGpt model(copies[i], comm, options());
    model->loss(batch.tokens, batch.targets).backward();
    model->store(copies[i]);
  });
  ASSERT_EQ(errors, nothing(mode.size));
  whole->loss(batch.tokens, batch.targets).backward();
  for (Gpt& copy : copies) expect_close(copy, whole, 1e-5, /*gradients=*/true);
}

// With keep_gathered the sequence form moves the bytes of the all-reduces; without, one all-gather more for each of the
// two column parallel layers, in backward.
TEST_P(GptOnRanks, Claim14TwoAllReducesForwardAndTwoBackwardPerBlockAndTheSameBytesInTheSequenceForm) {
  const Mode mode = GetParam();
  const GptConfig config = config_of();
  Gpt whole = whole_gpt(config);
  Options ring;
  ring.algorithm = "ring";
  const auto size = static_cast<std::uint64_t>(mode.size);
  const bool alone = mode.size == 1, again = mode.sequence_parallel && !mode.keep_gathered;
  const auto errors = on_ranks(
      mode.size,
      [&](int, Communicator comm) {
        TensorParallelGpt model(whole, comm, options());
        const std::int64_t time = mode.sequence_parallel ? kTime / mode.size : kTime;  // 1/N between the blocks
        const torch::Tensor x = torch::ones({time, kRows, kWidth}, torch::kFloat64).requires_grad_();
        const Traffic start = comm.traffic();
        const torch::Tensor y = model->blocks()[0]->forward(x);
        const Traffic middle = comm.traffic();
        EXPECT_EQ(y.sizes(), x.sizes());
        y.sum().backward();
        const Traffic end = comm.traffic();
        // An all-reduce of S bytes puts 2 (N-1)/N S on links; so do an all-gather and a reduce-scatter of S.
        const std::uint64_t elements = kTime * kRows * kWidth, shared = 6 * kWidth;
        const auto all_reduce_bytes = [&](std::uint64_t count) {
          return 2 * (size - 1) * count * sizeof(double) / size;
        };
        EXPECT_EQ(middle.calls - start.calls, alone ? 0u : mode.sequence_parallel ? 4u : 2u);
        EXPECT_EQ(end.calls - middle.calls, alone ? 0u : again ? 7u : mode.sequence_parallel ? 5u : 2u);
        EXPECT_EQ(middle.bytes_put - start.bytes_put, 2 * all_reduce_bytes(elements));
        EXPECT_EQ(end.bytes_put - middle.bytes_put, (again ? 3 : 2) * all_reduce_bytes(elements) +
                                                        (mode.sequence_parallel ? all_reduce_bytes(shared) : 0));
      },
      ring);
  EXPECT_EQ(errors, nothing(mode.size));
}

// With dropout, what all ranks hold must get the same gradients on all: masks outside the regions are alike. Runs of
// one seed are alike to the bit, those of others differ; without training nothing is dropped.
TEST_P(GptOnRanks, DropoutKeepsTheRanksAlikeAndFollowsItsSeed) {
  const Mode mode = GetParam();
  const GptConfig config = config_of(0.3);
  const Batch batch = batch_of(config);
  const auto run = [&](std::uint64_t seed, bool training) {
    std::vector<Gpt> copies;
    for (int rank = 0; rank < mode.size; ++rank) {
      copies.push_back(whole_gpt(config));
      copies.back()->train(training);
    }
    Tensors losses(copies.size());
    const auto errors = on_ranks(mode.size, [&](int rank, Communicator comm) {
      const auto i = static_cast<std::size_t>(rank);
      TensorParallelGpt model(copies[i], comm, TensorParallelOptions{mode.sequence_parallel, mode.keep_gathered, seed});
      losses[i] = model->loss(batch.tokens, batch.targets);
      losses[i].backward();
      model->store(copies[i]);
    });
    EXPECT_EQ(errors, nothing(mode.size));
    for (std::size_t i = 0; i < copies.size(); ++i) {
      EXPECT_TRUE(torch::equal(losses[i], losses[0]));
      for (const auto& [name, gradient] : gradients_of(copies[i])) {
        EXPECT_TRUE(torch::equal(gradient, gradients_of(copies[0])[name])) << name;
      }
    }
    return losses[0].item<double>();
  };
  const double first = run(3, true);
  EXPECT_EQ(run(3, true), first);
  EXPECT_NE(run(4, true), first);
  const double still = run(3, false);
  EXPECT_NE(still, first);
  Gpt whole = whole_gpt(config);
  whole->eval();
  EXPECT_NEAR(whole->loss(batch.tokens, batch.targets).item<double>(), still, 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Tensor, GptOnRanks,
                         ::testing::Values(Mode{1, false}, Mode{2, false}, Mode{3, false}, Mode{4, false},
                                           Mode{8, false}, Mode{1, true}, Mode{2, true}, Mode{3, true}, Mode{4, true},
                                           Mode{8, true}, Mode{2, true, true}, Mode{3, true, true}),
                         ::testing::PrintToStringParamName());

TEST(TensorGpt, WhatCannotBeDividedIsNamed) {
  GptConfig config = config_of();
  config.heads = 3;
  Gpt heads = whole_gpt(config);
  for (const std::string& error : on_ranks(2, [&](int, Communicator comm) { TensorParallelGpt(heads, comm); })) {
    EXPECT_THAT(error, HasSubstr("block0.attention: 3 heads cannot be divided by 2 ranks"));
  }
  Gpt whole = whole_gpt(config_of());
  for (const std::string& error : on_ranks(4, [&](int, Communicator comm) {
         TensorParallelGpt model(whole, comm, TensorParallelOptions{.sequence_parallel = true});
         (void)model->forward(torch::zeros({1, 6}, torch::kInt64));
       })) {
    EXPECT_THAT(error, HasSubstr("6 steps of time cannot be used; expected [rows, time] with at most 24 steps, "
                                 "divisible by 4 ranks"));
  }
}

TEST(TensorGpt, ARankThatThrowsInForwardBringsTheOthersDown) {
  Gpt whole = whole_gpt(config_of());
  const auto errors = on_ranks(3, [&](int rank, Communicator comm) {
    TensorParallelGpt model(whole, comm);
    (void)model->forward(torch::zeros({1, 6}, rank == 1 ? torch::kFloat64 : torch::kInt64));
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("rank 1: TensorParallelGpt::forward: "));
}

/// Passes a tensor through; its backward throws.
struct Bomb : torch::autograd::Function<Bomb> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw std::runtime_error("boom");
  }
};

TEST(TensorGpt, ARankThatThrowsInBackwardBringsTheOthersDown) {
  const GptConfig config = config_of();
  Gpt whole = whole_gpt(config);
  const Batch batch = batch_of(config);
  const auto errors = on_ranks(3, [&](int rank, Communicator comm) {
    TensorParallelGpt model(whole, comm);
    or_abort(comm, "training step", [&] {
      const torch::Tensor loss = model->loss(batch.tokens, batch.targets);
      (rank == 2 ? Bomb::apply(loss) : loss).backward();
    });
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("rank 2: training step: boom"));
}

// Rank 1 leaves backward out in one step, and with it its regions: the next step has the same shapes.
TEST(TensorParallelGpt, T14ARegionThatOneRankLeavesOutIsFound) {
  for (const bool sequence : {false, true}) {
    Options options;
    options.timeout = std::chrono::seconds(20);
    const auto began = std::chrono::steady_clock::now();
    const GptConfig config = config_of();
    const Batch batch = batch_of(config);
    std::vector<Gpt> wholes;
    for (int rank = 0; rank < 2; ++rank) wholes.push_back(whole_gpt(config));
    const auto errors = on_ranks(
        2,
        [&](int rank, Communicator comm) {
          TensorParallelGpt model(wholes[static_cast<std::size_t>(rank)], comm, TensorParallelOptions{sequence});
          for (int step = 0; step < 3; ++step) {
            const torch::Tensor loss = model->loss(batch.tokens, batch.targets);
            if (rank == 1 && step == 1) continue;
            or_abort(comm, "step", [&] { loss.backward(); });
          }
        },
        options);
    EXPECT_THAT(errors[0], HasSubstr("this rank was in region "));
    EXPECT_THAT(errors[1], HasSubstr("this rank was at the beginning of forward pass 3"));
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
  }
}

}  // namespace
}  // namespace tutti::training::tensor_gpt_test
