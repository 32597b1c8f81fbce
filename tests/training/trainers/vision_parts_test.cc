// What train_vision's ranks and the single-process reference share: micro-batches add up to the batch.
#include <gtest/gtest.h>

#include <vector>

#include "training/trainers/vision/parts.h"

namespace tutti::training::vision_parts_test {
namespace {

// 5 rows in micro-batches of 2, 2 and 1. The loss is a mean over rows, so the parts add up to the whole in another
// order of at most 5 additions: in f64 that is 5 epsilons of numbers of about 1, far below 1e-13.
TEST(VisionParts, MicroBatchesAddUpToTheBatch) {
  torch::manual_seed(1);
  torch::nn::Linear layer(4, 3);
  layer->to(torch::kFloat64);
  const Stage model = make_stage(layer);
  const ImageBatch rows{torch::randn({5, 4}, torch::kFloat64), torch::tensor({0, 2, 1, 1, 0}, torch::kInt64)};
  constexpr double kWeight = 0.75;

  torch::cross_entropy_loss(layer->forward(rows.input), rows.target).mul(kWeight).backward();
  const torch::Tensor whole = layer->weight.grad().clone();
  layer->zero_grad();
  VisionRunOptions options;
  options.batch = 2;
  std::vector<bool> lasts;
  const double mean = pass_over(options, model, rows, kWeight, [&](const torch::Tensor& part, bool last) {
    lasts.push_back(last);
    part.backward();
  });
  EXPECT_EQ(lasts, std::vector<bool>({false, false, true}));
  EXPECT_TRUE(torch::allclose(layer->weight.grad(), whole, /*rtol=*/0, /*atol=*/1e-13));
  EXPECT_NEAR(mean, torch::cross_entropy_loss(layer->forward(rows.input), rows.target).item<double>(), 1e-13);
}

}  // namespace
}  // namespace tutti::training::vision_parts_test
