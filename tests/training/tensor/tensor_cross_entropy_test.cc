// The reference is torch's cross entropy of whole logits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/training/on_ranks.h"
#include "training/tensor/cross_entropy.h"

namespace tutti::training::tensor_cross_entropy_test {
namespace {

using ::testing::HasSubstr;
using Tensors = std::vector<torch::Tensor>;

constexpr std::int64_t kVocabulary = 24;  // divisible by 1, 2, 3, 4 and 8

struct Outcome {
  Tensors losses, gradients;  // of each rank; gradients joined
  torch::Tensor gradient;
  std::vector<std::uint64_t> forward_calls, backward_calls, bytes;
  std::vector<std::string> errors;
};

Outcome run(int size, const torch::Tensor& logits, const torch::Tensor& targets,
            const CrossEntropyOptions& options = {}) {
  const auto count = static_cast<std::size_t>(size);
  Outcome outcome{Tensors(count),
                  Tensors(count),
                  {},
                  std::vector<std::uint64_t>(count),
                  std::vector<std::uint64_t>(count),
                  std::vector<std::uint64_t>(count),
                  {}};
  outcome.errors = on_ranks(size, [&](int rank, Communicator comm) {
    const auto i = static_cast<std::size_t>(rank);
    const torch::Tensor mine = logits.chunk(size, -1)[i].detach().clone().requires_grad_();
    const Traffic start = comm.traffic();
    outcome.losses[i] = vocabulary_parallel_cross_entropy(mine, targets, comm, options);
    const Traffic middle = comm.traffic();
    (outcome.losses[i] * 3).backward();
    outcome.forward_calls[i] = middle.calls - start.calls;
    outcome.bytes[i] = middle.bytes_put - start.bytes_put;
    outcome.backward_calls[i] = comm.traffic().calls - middle.calls;
    outcome.gradients[i] = mine.grad();
  });
  if (outcome.errors == nothing(size)) outcome.gradient = torch::cat(outcome.gradients, -1);
  return outcome;
}

struct Reference {
  torch::Tensor loss, gradient;
};
Reference reference(const torch::Tensor& logits, const torch::Tensor& targets, std::int64_t ignore_index = -100) {
  const torch::Tensor leaf = logits.detach().clone().requires_grad_();
  const torch::Tensor loss = torch::cross_entropy_loss(leaf.reshape({-1, logits.size(-1)}), targets.reshape(-1), {},
                                                       at::Reduction::Mean, ignore_index);
  (loss * 3).backward();
  return {loss.detach(), leaf.grad()};
}

double distance(const torch::Tensor& a, const torch::Tensor& b) {
  return (a.to(torch::kFloat64) - b.to(torch::kFloat64)).abs().max().item<double>();
}

// f64, losses below 40: each log of a sum of 24 terms and each sum of tokens is off by a few dozen units of 2^-53 of
// its value at most, in all below 100 * 40 * 2^-53 = 4.4e-13.
constexpr double kTolerance = 1e-12;

class CrossEntropyOnRanks : public ::testing::TestWithParam<int> {};

TEST_P(CrossEntropyOnRanks, EqualsThatOfWholeLogits) {
  const int size = GetParam();
  torch::manual_seed(1);
  const torch::Tensor logits = torch::randn({5, 7, kVocabulary}, torch::kFloat64) * 5;
  const torch::Tensor targets = torch::randint(kVocabulary, {5, 7}, torch::kInt64);
  const Outcome outcome = run(size, logits, targets);
  ASSERT_EQ(outcome.errors, nothing(size));
  const Reference wanted = reference(logits, targets);
  for (const torch::Tensor& loss : outcome.losses) {
    EXPECT_LT(distance(loss, wanted.loss), kTolerance);
    EXPECT_TRUE(torch::equal(loss, outcome.losses[0]));  // to the bit on all ranks
  }
  EXPECT_LT(distance(outcome.gradient, wanted.gradient), kTolerance);
}

TEST_P(CrossEntropyOnRanks, ExchangesThreeNumbersPerTokenAndNothingInBackward) {
  const int size = GetParam();
  torch::manual_seed(2);
  const torch::Tensor targets = torch::randint(kVocabulary, {512}, torch::kInt64);
  const Outcome outcome = run(size, torch::randn({512, kVocabulary}), targets);
  ASSERT_EQ(outcome.errors, nothing(size));
  const auto others = static_cast<std::uint64_t>(size - 1);
  for (std::size_t i = 0; i < outcome.losses.size(); ++i) {
    EXPECT_EQ(outcome.forward_calls[i], size > 1 ? 1u : 0u);
    EXPECT_EQ(outcome.backward_calls[i], 0u);
    EXPECT_LE(outcome.bytes[i], others * 512 * 3 * sizeof(float));
  }
}

TEST_P(CrossEntropyOnRanks, IgnoredTargetsCountNowhere) {
  const int size = GetParam();
  torch::manual_seed(3);
  torch::Tensor logits = torch::randn({16, kVocabulary}, torch::kFloat64);
  for (const std::int64_t ignore_index : {std::int64_t{-100}, std::int64_t{3}}) {
    torch::Tensor targets = torch::randint(4, kVocabulary, {16}, torch::kInt64);
    targets[0] = targets[7] = targets[15] = ignore_index;
    logits[7].fill_(std::numeric_limits<double>::quiet_NaN());  // whatever it holds
    const Outcome outcome = run(size, logits, targets, {ignore_index, {}});
    ASSERT_EQ(outcome.errors, nothing(size));
    const Reference wanted = reference(logits.nan_to_num(), targets, ignore_index);
    for (const torch::Tensor& loss : outcome.losses) EXPECT_LT(distance(loss, wanted.loss), kTolerance);
    EXPECT_LT(distance(outcome.gradient, wanted.gradient), kTolerance);
  }
}

TEST_P(CrossEntropyOnRanks, DividesByTheTrueCountThatIsGiven) {
  const int size = GetParam();
  torch::manual_seed(4);
  const torch::Tensor logits = torch::randn({16, kVocabulary}, torch::kFloat64);
  const torch::Tensor targets = torch::randint(kVocabulary, {16}, torch::kInt64);
  const Outcome outcome = run(size, logits, targets, {-100, 40.0});
  ASSERT_EQ(outcome.errors, nothing(size));
  const Reference wanted = reference(logits, targets);
  for (const torch::Tensor& loss : outcome.losses) EXPECT_LT(distance(loss, wanted.loss * 16 / 40), kTolerance);
  EXPECT_LT(distance(outcome.gradient, wanted.gradient * 16 / 40), kTolerance);
}

TEST_P(CrossEntropyOnRanks, HoldsForHugeAndForImpossibleLogits) {
  const int size = GetParam();
  torch::manual_seed(5);
  torch::Tensor logits = torch::randn({8, kVocabulary});
  const torch::Tensor targets = torch::randint(1, kVocabulary, {8}, torch::kInt64);
  logits.slice(0, 0, 2) += 1e4;  // exponentials would overflow
  const double infinity = std::numeric_limits<double>::infinity();
  logits.slice(0, 2, 5).slice(1, 0, kVocabulary - 1) = -infinity;  // whole ranks have nothing that is possible
  torch::Tensor possible = targets.clone();
  possible.slice(0, 2, 5) = kVocabulary - 1;
  const Outcome outcome = run(size, logits, possible);
  ASSERT_EQ(outcome.errors, nothing(size));
  const Reference wanted = reference(logits.to(torch::kFloat64), possible);
  // f32, but what is near 1e4 is only subtracted from its like, which is exact: about 100 units of 2^-24 of losses
  // below 10, and of gradients, at most 3 / 8.
  for (const torch::Tensor& loss : outcome.losses) EXPECT_LT(distance(loss, wanted.loss), 1000 * std::ldexp(1, -24));
  EXPECT_LT(distance(outcome.gradient, wanted.gradient), 3.0 / 8 * 100 * std::ldexp(1, -24));
}

TEST_P(CrossEntropyOnRanks, SumsHalfTypesInF32) {
  const int size = GetParam();
  torch::manual_seed(6);
  const torch::Tensor targets = torch::randint(kVocabulary, {32}, torch::kInt64);
  for (const torch::ScalarType type : {torch::kBFloat16, torch::kFloat16}) {
    const torch::Tensor logits = torch::randn({32, kVocabulary}).to(type);
    const Outcome outcome = run(size, logits, targets);
    ASSERT_EQ(outcome.errors, nothing(size));
    EXPECT_EQ(outcome.losses[0].scalar_type(), torch::kFloat32);
    EXPECT_EQ(outcome.gradient.scalar_type(), type);
    const Reference wanted = reference(logits.to(torch::kFloat64), targets);
    // The loss is of f32: about 100 units of 2^-24 of a value near 4.
    EXPECT_LT(distance(outcome.losses[0], wanted.loss), 100 * 4 * std::ldexp(1, -24));
    // Gradients, at most 3 / 32, are rounded once, to the 8 (bf16) or 11 bits of the type: by 2^-8 or 2^-11 of them,
    // and a little more for f32.
    const double unit = type == torch::kBFloat16 ? std::ldexp(1.01, -8) : std::ldexp(1.01, -11);
    EXPECT_LT(distance(outcome.gradient, wanted.gradient), 3.0 / 32 * unit);
  }
}

// The last ranks have entries that are none of the vocabulary, one of them (with 8 ranks) nothing else.
TEST_P(CrossEntropyOnRanks, PaddingHasNoShareInTheSoftmax) {
  const int size = GetParam();
  torch::manual_seed(7);
  constexpr std::int64_t kReal = 21;
  torch::Tensor logits = torch::randn({16, kVocabulary}, torch::kFloat64);
  logits.slice(1, kReal) = 1e30;  // whatever it holds
  const torch::Tensor targets = torch::randint(kReal, {16}, torch::kInt64);
  CrossEntropyOptions options;
  options.vocabulary = kReal;
  const Outcome outcome = run(size, logits, targets, options);
  ASSERT_EQ(outcome.errors, nothing(size));
  const Reference wanted = reference(logits.slice(1, 0, kReal), targets);
  for (const torch::Tensor& loss : outcome.losses) EXPECT_LT(distance(loss, wanted.loss), kTolerance);
  EXPECT_LT(distance(outcome.gradient.slice(1, 0, kReal), wanted.gradient), kTolerance);
  EXPECT_TRUE((outcome.gradient.slice(1, kReal) == 0).all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Tensor, CrossEntropyOnRanks, ::testing::Values(1, 2, 3, 4, 8),
                         ::testing::PrintToStringParamName());

TEST(TensorCrossEntropy, NothingButIgnoredTargetsIsNotANumber) {
  const Outcome outcome = run(2, torch::zeros({3, kVocabulary}), torch::full({3}, -100, torch::kInt64));
  EXPECT_EQ(outcome.errors, nothing(2));
  EXPECT_TRUE(std::isnan(outcome.losses[0].item<double>()));
}

TEST(TensorCrossEntropy, ATargetOutsideTheVocabularyIsNamed) {
  torch::Tensor targets = torch::zeros({3}, torch::kInt64);
  targets[2] = kVocabulary;
  const Outcome outcome = run(2, torch::zeros({3, kVocabulary}), targets);
  for (const std::string& error : outcome.errors) {
    EXPECT_THAT(error, HasSubstr("vocabulary_parallel_cross_entropy: target 24 of token 2 is neither in a vocabulary "
                                 "of 24 nor ignore_index -100"));
    EXPECT_THAT(error, HasSubstr("rank "));
  }
}

TEST(TensorCrossEntropy, SizesThatDoNotFitAreNamed) {
  const Outcome outcome = run(2, torch::zeros({3, kVocabulary}), torch::zeros({4}, torch::kInt64));
  for (const std::string& error : outcome.errors) {
    EXPECT_THAT(error, HasSubstr("logits of sizes [3, 12] and targets of sizes [4] and type Long do not fit"));
  }
}

}  // namespace
}  // namespace tutti::training::tensor_cross_entropy_test
