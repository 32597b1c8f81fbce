// The reference is the whole layer on one process, in f64.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tests/training/on_ranks.h"
#include "training/tensor/layers.h"
#include "training/tensor/regions.h"

namespace tutti::training::tensor_layers_test {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;
using Tensors = std::vector<torch::Tensor>;

// Sums of at most 96 products of values near 1, in three layers: the error is below 3 * 96 * 2^-53 * 10 = 3.2e-13. What
// is compared (sums over tokens among it) stays below 100 and is compared relative to its largest value.
constexpr double kTolerance = 1e-12;
constexpr std::int64_t kTime = 24;  // as width and heads: all divisible by 1, 2, 3, 4 and 8
constexpr int kHeads = 24;

double distance(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.sizes() != b.sizes()) return INFINITY;
  return (a - b).abs().max().item<double>() / std::max(1.0, b.abs().max().item<double>());
}

nn::Linear linear(int in, int out, bool bias = true) {
  nn::Linear layer(nn::LinearOptions(in, out).bias(bias));
  layer->to(torch::kFloat64);
  return layer;
}

struct Mode {
  int size;
  bool sequence_parallel;
};
void PrintTo(const Mode& mode, std::ostream* out) { *out << mode.size << (mode.sequence_parallel ? "Sequence" : ""); }

/// Splits and joins activations on dimension 0 under sequence parallelism.
torch::Tensor part(const torch::Tensor& x, const Mode& mode, int rank) {
  return mode.sequence_parallel ? x.chunk(mode.size, 0)[static_cast<std::size_t>(rank)] : x;
}
torch::Tensor joined(const Tensors& parts, const Mode& mode) {
  return mode.sequence_parallel ? torch::cat(parts, 0) : parts[0];
}

class LayersOnRanks : public ::testing::TestWithParam<Mode> {};

struct Pass {
  torch::Tensor output, input_gradient;
  std::vector<std::vector<WholeParameters>> wholes;  // of each rank
  std::vector<std::string> errors;
};

/// Makes a layer on each rank, runs `x` through it and backward with the gradient `weights`.
template <class Make>
Pass run(const Mode& mode, const torch::Tensor& x, const torch::Tensor& weights, Make&& make) {
  const auto count = static_cast<std::size_t>(mode.size);
  Tensors outputs(count), gradients(count);
  Pass result;
  result.wholes.resize(count);
  result.errors = on_ranks(mode.size, [&](int rank, Communicator comm) {
    const auto i = static_cast<std::size_t>(rank);
    auto layer = make(rank, comm);
    const torch::Tensor mine = part(x, mode, rank).detach().clone().requires_grad_();
    outputs[i] = layer->forward(mine);
    (outputs[i] * part(weights, mode, rank)).sum().backward();
    gradients[i] = mine.grad();
    if constexpr (requires { layer->query_key_value; }) {
      result.wholes[i] = {layer->query_key_value->whole(), layer->out->whole()};
    } else {
      result.wholes[i] = {layer->in->whole(), layer->out->whole()};
    }
  });
  if (result.errors == nothing(mode.size)) {
    result.output = joined(outputs, mode);
    result.input_gradient = joined(gradients, mode);
    for (const torch::Tensor& output : outputs) EXPECT_TRUE(mode.sequence_parallel || torch::equal(output, outputs[0]));
  }
  return result;
}

void expect_parameters(const Pass& run, const std::vector<nn::Linear>& wanted) {
  for (const auto& of_rank : run.wholes) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_TRUE(torch::equal(of_rank[i].weight, wanted[i]->weight));
      EXPECT_LT(distance(of_rank[i].weight.grad(), wanted[i]->weight.grad()), kTolerance);
      EXPECT_EQ(of_rank[i].bias.defined(), wanted[i]->bias.defined());
      if (!wanted[i]->bias.defined()) continue;
      EXPECT_TRUE(torch::equal(of_rank[i].bias, wanted[i]->bias));
      EXPECT_LT(distance(of_rank[i].bias.grad(), wanted[i]->bias.grad()), kTolerance);
    }
  }
}

TEST_P(LayersOnRanks, AnMlpEqualsTheWholeOne) {
  const Mode mode = GetParam();
  for (const bool bias : {true, false}) {
    torch::manual_seed(1);
    nn::Linear in = linear(24, 96, bias), out = linear(96, 24, bias);
    nn::Linear other_in = linear(24, 96, bias), other_out = linear(96, 24, bias);  // on all ranks but 0: not looked at
    const torch::Tensor x = torch::randn({kTime, 2, 24}, torch::kFloat64).requires_grad_(),
                        weights = torch::randn_like(x);
    const torch::Tensor y = out->forward(torch::gelu(in->forward(x)));
    (y * weights).sum().backward();

    const Pass result = run(mode, x, weights, [&](int rank, const Communicator& comm) {
      return ParallelMlp(rank == 0 ? in : other_in, rank == 0 ? out : other_out, comm,
                         ParallelOptions{"mlp", mode.sequence_parallel});
    });
    ASSERT_EQ(result.errors, nothing(mode.size));
    EXPECT_LT(distance(result.output, y), kTolerance);
    EXPECT_LT(distance(result.input_gradient, x.grad()), kTolerance);
    expect_parameters(result, {in, out});
  }
}

TEST_P(LayersOnRanks, AttentionEqualsTheWholeOne) {
  const Mode mode = GetParam();
  for (const bool causal : {true, false}) {
    torch::manual_seed(2);
    nn::Linear query_key_value = linear(24, 72), out = linear(24, 24);
    const torch::Tensor x = torch::randn({kTime, 2, 24}, torch::kFloat64).requires_grad_(),
                        weights = torch::randn_like(x);
    const auto by_head = [](const torch::Tensor& t) { return t.view({kTime, 2, kHeads, 1}).permute({1, 2, 0, 3}); };
    const Tensors parts = query_key_value->forward(x).split(24, 2);
    const torch::Tensor heads =
        at::scaled_dot_product_attention(by_head(parts[0]), by_head(parts[1]), by_head(parts[2]), {}, 0.0, causal);
    const torch::Tensor y = out->forward(heads.permute({2, 0, 1, 3}).reshape({kTime, 2, 24}));
    (y * weights).sum().backward();

    const Pass result = run(mode, x, weights, [&](int, const Communicator& comm) {
      return ParallelAttention(query_key_value, out, kHeads, comm,
                               AttentionOptions{{"attention", mode.sequence_parallel}, 0, causal});
    });
    ASSERT_EQ(result.errors, nothing(mode.size));
    EXPECT_LT(distance(result.output, y), kTolerance);
    EXPECT_LT(distance(result.input_gradient, x.grad()), kTolerance);
    expect_parameters(result, {query_key_value, out});
  }
}

// The same numbers that each rank must draw, drawn by hand: seed + 2718 + rank, for its heads.
TEST_P(LayersOnRanks, DropoutInAttentionDrawsByRank) {
  const Mode mode = GetParam();
  constexpr std::uint64_t kSeed = 5;
  constexpr double kDropout = 0.4;
  torch::manual_seed(3);
  nn::Linear query_key_value = linear(24, 72), out = linear(24, 24);
  const torch::Tensor x = torch::randn({kTime, 2, 24}, torch::kFloat64).requires_grad_(),
                      weights = torch::randn_like(x);
  const std::int64_t mine = kHeads / mode.size;
  const Tensors parts = query_key_value->forward(x).split(24, 2);
  Tensors of_ranks;
  for (int rank = 0; rank < mode.size; ++rank) {
    const auto by_head = [&](const torch::Tensor& t) {
      return t.view({kTime, 2, kHeads, 1}).permute({1, 2, 0, 3}).slice(1, rank * mine, (rank + 1) * mine);
    };
    torch::manual_seed(kSeed + 2718 + static_cast<std::uint64_t>(rank));
    of_ranks.push_back(
        at::scaled_dot_product_attention(by_head(parts[0]), by_head(parts[1]), by_head(parts[2]), {}, kDropout, true));
  }
  const torch::Tensor y = out->forward(torch::cat(of_ranks, 1).permute({2, 0, 1, 3}).reshape({kTime, 2, 24}));
  (y * weights).sum().backward();

  const Pass result = run(mode, x, weights, [&](int rank, const Communicator& comm) {
    return ParallelAttention(query_key_value, out, kHeads, comm,
                             AttentionOptions{{"attention", mode.sequence_parallel}, kDropout, true},
                             std::make_shared<RandomStates>(kSeed, rank));
  });
  ASSERT_EQ(result.errors, nothing(mode.size));
  EXPECT_LT(distance(result.output, y), kTolerance);
  EXPECT_LT(distance(result.input_gradient, x.grad()), kTolerance);
  expect_parameters(result, {query_key_value, out});
}

TEST_P(LayersOnRanks, AnEmbeddingEqualsTheWholeOneToTheBit) {
  const Mode mode = GetParam();
  torch::manual_seed(4);
  nn::Embedding whole(36, 8);
  const torch::Tensor tokens = torch::randint(36, {kTime, 5}, torch::kInt64);
  const torch::Tensor weights = torch::randint(-4, 5, {kTime, 5, 8}).to(torch::kFloat32);
  const torch::Tensor y = whole->forward(tokens);
  (y * weights).sum().backward();
  const auto count = static_cast<std::size_t>(mode.size);
  Tensors outputs(count);
  std::vector<WholeParameters> wholes(count);
  const auto errors = on_ranks(mode.size, [&](int rank, Communicator comm) {
    const auto i = static_cast<std::size_t>(rank);
    VocabularyParallelEmbedding layer(whole, comm, ParallelOptions{"token", mode.sequence_parallel});
    EXPECT_EQ(layer->weight.size(0), (36 + mode.size - 1) / mode.size);  // padded where it cannot be divided
    outputs[i] = layer->forward(tokens);
    (outputs[i] * part(weights, mode, rank)).sum().backward();
    wholes[i] = layer->whole();
  });
  ASSERT_EQ(errors, nothing(mode.size));
  EXPECT_TRUE(torch::equal(joined(outputs, mode), y));  // all but one of the terms of each sum are zero
  for (const WholeParameters& parameters : wholes) {
    EXPECT_TRUE(torch::equal(parameters.weight, whole->weight));
    EXPECT_TRUE(torch::equal(parameters.weight.grad(), whole->weight.grad()));  // sums of small integers
  }
}

INSTANTIATE_TEST_SUITE_P(Tensor, LayersOnRanks,
                         ::testing::Values(Mode{1, false}, Mode{2, false}, Mode{3, false}, Mode{4, false},
                                           Mode{8, false}, Mode{1, true}, Mode{2, true}, Mode{3, true}, Mode{4, true},
                                           Mode{8, true}),
                         ::testing::PrintToStringParamName());

TEST(TensorLayers, AColumnParallelLayerOfTwoGroupsGivesASliceOfEach) {
  nn::Linear whole = linear(1, 12, false);
  {
    const torch::NoGradGuard no_grad;
    whole->weight.copy_(torch::arange(12).view({12, 1}));
  }
  const double wanted[3][4] = {{0, 1, 6, 7}, {2, 3, 8, 9}, {4, 5, 10, 11}};
  const auto errors = on_ranks(3, [&](int rank, Communicator comm) {
    ColumnParallelLinear layer(whole, comm, ParallelOptions{}, 2);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(layer->weight[i][0].item<double>(), wanted[rank][i]);
    EXPECT_TRUE(torch::equal(layer->whole().weight, whole->weight));
  });
  EXPECT_EQ(errors, nothing(3));
}

TEST(TensorLayers, FrozenParametersAndTypesStay) {
  torch::manual_seed(1);
  nn::Linear whole(4, 4);
  whole->to(torch::kBFloat16);
  whole->weight.set_requires_grad(false);
  const auto errors = on_ranks(2, [&](int, Communicator comm) {
    for (const bool column : {true, false}) {
      ColumnParallelLinear a(whole, comm);
      RowParallelLinear b(whole, comm);
      const torch::Tensor weight = column ? a->weight : b->weight, bias = column ? a->bias : b->bias;
      EXPECT_FALSE(weight.requires_grad());
      EXPECT_TRUE(bias.requires_grad());
      EXPECT_EQ(weight.scalar_type(), torch::kBFloat16);
      EXPECT_FALSE((column ? a->whole() : b->whole()).weight.requires_grad());
    }
  });
  EXPECT_EQ(errors, nothing(2));
}

TEST(TensorLayers, WhatCannotBeDividedIsNamed) {
  const auto expect = [](int size, const char* text, const std::function<void(Communicator)>& body) {
    for (const std::string& error : on_ranks(size, [&](int, Communicator comm) { body(comm); })) {
      EXPECT_THAT(error, HasSubstr(text));
      EXPECT_THAT(error, HasSubstr("rank "));
    }
  };
  expect(3, "block2.mlp_in: dimension 0 of sizes [8, 4] cannot be divided by 3 ranks",
         [](Communicator comm) { ColumnParallelLinear(linear(4, 8), comm, ParallelOptions{"block2.mlp_in"}); });
  expect(2, "RowParallelLinear: dimension 1 of sizes [4, 7] cannot be divided by 2 ranks",
         [](Communicator comm) { RowParallelLinear(linear(7, 4), comm); });
  expect(2, "ParallelAttention: 3 heads cannot be divided by 2 ranks",
         [](Communicator comm) { ParallelAttention(linear(6, 18), linear(6, 6), 3, comm); });
  expect(2, "18 outputs of query_key_value, 8 inputs of out and 2 heads do not fit",
         [](Communicator comm) { ParallelAttention(linear(6, 18), linear(8, 6), 2, comm); });
  expect(2, "ParallelAttention: dropout 0.5 needs random states", [](Communicator comm) {
    ParallelAttention(linear(6, 18), linear(6, 6), 2, comm, AttentionOptions{{}, 0.5, true});
  });
  expect(2, "padding_idx", [](Communicator comm) {
    VocabularyParallelEmbedding(nn::Embedding(nn::EmbeddingOptions(4, 4).padding_idx(0)), comm);
  });
}

TEST(TensorLayers, AnIndexOutsideTheVocabularyOnOneRankIsNamedOnAll) {
  const nn::Embedding whole(6, 4);
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    VocabularyParallelEmbedding layer(whole, comm, ParallelOptions{"token"});
    (void)layer->forward(torch::full({3}, rank == 1 ? 6 : 0, torch::kInt64));
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("rank 1: token: index 6 is not in a vocabulary of 6"));
  }
}

class TensorRandom : public ::testing::Test {
 protected:
  /// Numbers that a generator of this seed gives.
  static torch::Tensor numbers(std::uint64_t seed, std::int64_t count) {
    return torch::rand({count}, at::detail::createCPUGenerator(seed));
  }
};

TEST_F(TensorRandom, StatesGoOnWhereTheyStoppedAndTheDefaultGeneratorIsLeftAlone) {
  torch::manual_seed(9);
  RandomStates states(100, 3);
  torch::Tensor inside, outside;
  {
    const auto guard = states.use(RandomRegion::inside);
    inside = torch::rand({5});
  }
  const torch::Tensor normal = torch::rand({2});
  {
    const auto guard = states.use(RandomRegion::outside);
    outside = torch::rand({5});
  }
  {
    const auto guard = states.use(RandomRegion::inside);
    inside = torch::cat({inside, torch::rand({5})});
  }
  EXPECT_TRUE(torch::equal(inside, numbers(100 + 2718 + 3, 10)));
  EXPECT_TRUE(torch::equal(outside, numbers(100, 5)));
  EXPECT_TRUE(torch::equal(torch::cat({normal, torch::rand({3})}), numbers(9, 5)));
  RandomStates again(100, 3);
  const auto guard = again.use(RandomRegion::inside);
  EXPECT_TRUE(torch::equal(inside, torch::cat({torch::rand({5}), torch::rand({5})})));
}

TEST_F(TensorRandom, AGeneratorsStateGivesTheSameNumbersAgain) {
  RandomStates states(1, 0);
  const auto draw = [&](RandomRegion region) {
    const auto guard = states.use(region);
    return torch::randn({7});
  };
  (void)draw(RandomRegion::inside);
  std::vector<at::Generator> generators = states.generators();
  std::vector<torch::Tensor> kept;
  for (const at::Generator& generator : generators) kept.push_back(generator.get_state());
  const torch::Tensor inside = draw(RandomRegion::inside), outside = draw(RandomRegion::outside);
  for (std::size_t i = 0; i < kept.size(); ++i) generators[i].set_state(kept[i]);
  EXPECT_TRUE(torch::equal(draw(RandomRegion::inside), inside));
  EXPECT_TRUE(torch::equal(draw(RandomRegion::outside), outside));
}

TEST_F(TensorRandom, ASecondGuardOfAThreadIsRefused) {
  RandomStates states(1, 0);
  {
    const auto guard = states.use(RandomRegion::inside);
    EXPECT_THROW((void)states.use(RandomRegion::outside), Error);
  }
  const auto guard = states.use(RandomRegion::outside);
}

// Masks of 4 ranks that draw at the same time: outside all alike; inside unlike, each with the right share, and no two
// more alike than chance has it. Five standard deviations each.
TEST_F(TensorRandom, DropoutIsAlikeOutsideAndIndependentInside) {
  constexpr int kRanks = 4;
  constexpr std::int64_t kCount = 40000;
  constexpr double kDropout = 0.3;
  Tensors inside(kRanks), outside(kRanks);
  const auto errors = on_ranks(kRanks, [&](int rank, Communicator) {
    RandomStates states(11, rank);
    const auto i = static_cast<std::size_t>(rank);
    Tensors in, out;
    for (int piece = 0; piece < 10; ++piece) {
      {
        const auto guard = states.use(RandomRegion::outside);
        out.push_back(torch::dropout(torch::ones({kCount / 10}), kDropout, true) > 0);
      }
      const auto guard = states.use(RandomRegion::inside);
      in.push_back(torch::dropout(torch::ones({kCount / 10}), kDropout, true) > 0);
    }
    inside[i] = torch::cat(in).to(torch::kFloat64);
    outside[i] = torch::cat(out).to(torch::kFloat64);
  });
  ASSERT_EQ(errors, nothing(kRanks));
  const double deviation = std::sqrt(kDropout * (1 - kDropout) / kCount);
  EXPECT_NEAR(outside[0].mean().item<double>(), 1 - kDropout, 5 * deviation);
  for (std::size_t a = 0; a < kRanks; ++a) {
    EXPECT_TRUE(torch::equal(outside[a], outside[0]));
    EXPECT_NEAR(inside[a].mean().item<double>(), 1 - kDropout, 5 * deviation);
    for (std::size_t b = 0; b < a; ++b) {  // the correlation of independent masks has the deviation 1 / sqrt(count)
      const double correlation = ((inside[a] - (1 - kDropout)) * (inside[b] - (1 - kDropout))).mean().item<double>() /
                                 (kDropout * (1 - kDropout));
      EXPECT_NEAR(correlation, 0, 5 / std::sqrt(double{kCount})) << a << " and " << b;
    }
  }
}

}  // namespace
}  // namespace tutti::training::tensor_layers_test
