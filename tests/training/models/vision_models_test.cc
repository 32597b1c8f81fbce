// The two vision models, on synthetic images: they are what their headers say, and one process learns with them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tests/training/data/support.h"
#include "tests/training/on_ranks.h"
#include "training/data/sampler.h"
#include "training/data/synthetic.h"
#include "training/ddp/ddp.h"
#include "training/models/resnet.h"
#include "training/models/vit.h"

namespace tutti::training::vision_models_test {
namespace {

using ::testing::ElementsAre;

class VisionModels : public ::testing::Test {
 protected:
  void SetUp() override {
    torch::set_num_threads(1);
    torch::manual_seed(1);
  }
};

/// Trains on all images, in batches of 32, and looks at the mean loss over them before and after.
template <class Model>
void expect_learning(Model& model, const Images& images, const ImageScale& scale, int steps, double learning_rate) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(images.count()));
  std::iota(all.begin(), all.end(), 0);
  const ImageBatch whole = images.batch(all, scale);
  const auto loss = [&] {
    torch::NoGradGuard no_grad;
    return torch::cross_entropy_loss(model->forward(whole.input), whole.target).template item<double>();
  };
  const double before = loss();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(learning_rate));
  DistributedSampler sampler(static_cast<std::uint64_t>(images.count()), 0, 1, {.seed = 1});
  for (int step = 0; step < steps; ++step) {
    std::optional<SamplerStep> rows = sampler.next(32);
    if (!rows) {
      sampler.set_epoch(sampler.state().epoch + 1);
      rows = sampler.next(32);
    }
    const ImageBatch batch = images.batch(rows->indices, scale);
    optimizer.zero_grad();
    torch::cross_entropy_loss(model->forward(batch.input), batch.target).backward();
    optimizer.step();
  }
  const double after = loss();
  ::testing::Test::RecordProperty("losses", std::to_string(before) + " " + std::to_string(after));
  EXPECT_LT(after, before / 2) << "from " << before;
}

TEST_F(VisionModels, HaveTheSizesThatTheirHeadersName) {
  EXPECT_EQ(ResNet()->parameter_count(), 78'042);
  EXPECT_EQ(Vit()->parameter_count(), 207'946);
  for (std::int64_t side : {28, 32}) {
    for (int channels : {1, 3}) {
      const torch::Tensor images = torch::randn({2, channels, side, side});
      ResNet resnet(ResNetConfig{.channels = channels, .classes = 7});
      Vit vit(VitConfig{.side = static_cast<int>(side), .channels = channels, .classes = 7});
      EXPECT_THAT(resnet->forward(images).sizes().vec(), ElementsAre(2, 7));
      EXPECT_THAT(vit->forward(images).sizes().vec(), ElementsAre(2, 7));
    }
  }
}

TEST_F(VisionModels, RefuseSizesThatDoNotFit) {
  EXPECT_THROW(Vit(VitConfig{.side = 30}), c10::Error);
  EXPECT_THROW(Vit(VitConfig{.heads = 5}), c10::Error);
  EXPECT_THROW(ResNet(ResNetConfig{.widths = {}}), c10::Error);
}

// The bar: the loss over the images they learn from falls below half, as it must where model, gradients and images fit
// each other. Few images and small models, since that is all there is to see.
TEST_F(VisionModels, ResNetLearnsSyntheticDigits) {
  ResNet model(ResNetConfig{.channels = 1});
  expect_learning(model, synthetic_digits(96, 1), kMnistScale, 24, 3e-3);
}

TEST_F(VisionModels, VitLearnsSyntheticDigits) {
  Vit model(VitConfig{.side = 28, .channels = 1, .patch = 7, .layers = 2});
  expect_learning(model, synthetic_digits(96, 1), kMnistScale, 60, 3e-3);
}

TEST_F(VisionModels, ResNetLearnsSyntheticShapes) {
  ResNet model;
  expect_learning(model, synthetic_shapes(96, 1), kCifar10Scale, 24, 3e-3);
}

TEST_F(VisionModels, ResNetsRunningStatisticsServeInEvaluation) {
  ResNet model(ResNetConfig{.channels = 1});
  const torch::Tensor images = torch::randn({4, 1, 28, 28});
  for (int i = 0; i < 3; ++i) model->forward(images);
  model->eval();
  // One row's logits do not depend on the others': up to the order of additions in a product of another size.
  EXPECT_TRUE(torch::allclose(model->forward(images.slice(0, 0, 1)), model->forward(images).slice(0, 0, 1), 0, 1e-4));
}

TEST_F(VisionModels, VitsListOfLayersIsTheModel) {
  Vit model(VitConfig{.side = 28, .channels = 1, .layers = 3});
  torch::nn::Sequential layers = model->layers();
  ASSERT_EQ(layers->size(), 5u);
  EXPECT_EQ(model->blocks().size(), 3u);
  const torch::Tensor images = torch::randn({2, 1, 28, 28});
  EXPECT_TRUE(torch::equal(layers->forward(images), model->forward(images)));
  const auto of_list = layers->named_parameters(), of_model = model->named_parameters();
  ASSERT_EQ(of_list.size(), of_model.size());
  for (const auto& item : of_model) EXPECT_TRUE(of_list[item.key()].is_same(item.value())) << item.key();
}

// Ordinary modules: DDP takes both, and the ranks stay equal, running statistics included.
TEST_F(VisionModels, TrainUnderDdp) {
  constexpr int kRanks = 2;
  const Images images = synthetic_digits(32, 1);
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  std::vector<std::function<torch::Tensor(const torch::Tensor&)>> forwards;
  for (int rank = 0; rank < kRanks; ++rank) {
    ResNet resnet(ResNetConfig{.channels = 1});
    Vit vit(VitConfig{.side = 28, .channels = 1, .layers = 1});
    modules.insert(modules.end(), {resnet.ptr(), vit.ptr()});
    forwards.push_back([resnet](const torch::Tensor& x) mutable { return resnet->forward(x); });
    forwards.push_back([vit](const torch::Tensor& x) mutable { return vit->forward(x); });
  }
  for (std::size_t which : {0, 1}) {
    const auto errors = on_ranks(kRanks, [&](int rank, Communicator comm) {
      const std::size_t mine = 2 * static_cast<std::size_t>(rank) + which;
      DistributedDataParallel ddp(*modules[mine], comm);
      torch::optim::AdamW optimizer(modules[mine]->parameters(), torch::optim::AdamWOptions(1e-3));
      DistributedSampler sampler(32, rank, kRanks);
      while (const auto step = sampler.next(8)) {
        ddp.zero_grad();
        const ImageBatch batch = images.batch(step->indices, kMnistScale);
        torch::cross_entropy_loss(forwards[mine](batch.input), batch.target).backward();
        optimizer.step();
      }
      ddp.check_equal();
    });
    EXPECT_EQ(errors, nothing(kRanks));
  }
}

}  // namespace
}  // namespace tutti::training::vision_models_test
