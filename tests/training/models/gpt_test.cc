#include "training/models/gpt.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tutti::training::gpt_test {
namespace {

TEST(Gpt, HasTheParametersOfTheModelItFollows) {
  GptConfig config;
  config.vocabulary = 65;  // the character set of nanoGPT's example
  EXPECT_EQ(Gpt(config)->parameter_count(), 809856);
  config.vocabulary = 256;
  EXPECT_EQ(Gpt(config)->parameter_count(), 809856 + (256 - 65) * 128);
}

TEST(Gpt, StartsAsIgnorantAsAnEvenGuess) {
  torch::manual_seed(1);
  Gpt model{GptConfig{}};
  const torch::Tensor tokens = torch::randint(256, {8, 64}, torch::kInt64);
  // Logits at the start: sums of 128 products of a normalised activation (deviation 1) and a weight (deviation 0.02),
  // so of deviation 0.02 * sqrt(128) = 0.23. The loss exceeds ln 256 by about half their variance, 0.026; the mean over
  // 512 tokens adds a noise of 0.23 / sqrt(512) = 0.01. Five deviations of it, and the excess twice over: 0.1.
  EXPECT_NEAR(model->loss(tokens, torch::randint(256, {8, 64}, torch::kInt64)).item<double>(), std::log(256.0), 0.1);
}

TEST(Gpt, NeverLooksAhead) {
  torch::manual_seed(2);
  Gpt model{GptConfig{}};
  torch::Tensor tokens = torch::randint(256, {1, 32}, torch::kInt64);
  const torch::Tensor before = model->forward(tokens);
  tokens[0][20] = (tokens[0][20].item<int>() + 1) % 256;
  const torch::Tensor after = model->forward(tokens);
  // Not bits: a kernel may go through a longer row in other blocks. A leak would change logits by about their own
  // deviation, 0.2; rounding by less than 4 layers x 512 terms x 2^-24 x 1 = 1.3e-4.
  EXPECT_LT((before - after).slice(1, 0, 20).abs().max().item<double>(), 1.3e-4);
  EXPECT_GT((before - after).slice(1, 20, 21).abs().max().item<double>(), 1e-2);
}

TEST(Gpt, LearnsARowByHeart) {
  torch::manual_seed(3);
  GptConfig config;
  config.layers = 2;
  config.width = 32;
  config.context = 16;
  config.bias = false;
  Gpt model(config);
  const torch::Tensor row = torch::randint(256, {1, 17}, torch::kInt64);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  double loss = 0;
  for (int step = 0; step < 150; ++step) {
    optimizer.zero_grad();
    const torch::Tensor value = model->loss(row.slice(1, 0, 16), row.slice(1, 1, 17));
    value.backward();
    optimizer.step();
    loss = value.item<double>();
  }
  EXPECT_LT(loss, 0.1);  // an even guess is 5.5; only attention to positions can tell the tokens of the row apart
}

}  // namespace
}  // namespace tutti::training::gpt_test
