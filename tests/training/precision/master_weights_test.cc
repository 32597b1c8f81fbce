#include "training/precision/master_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "training/precision/grad_scaler.h"
#include "tutti/tutti.hpp"

namespace tutti::training::master_weights_test {
namespace {

using ::testing::HasSubstr;

struct Weight : torch::nn::Module {
  explicit Weight(torch::ScalarType type, double value = 1) {
    weight = register_parameter("weight", torch::full({3}, value, type));
  }
  torch::Tensor weight;
};

constexpr int kUpdates = 1000;
const double kUpdate = std::ldexp(1.0, -12);

// Claim 21: 1 + 2^-12 is 1 in f16 (10 bits behind the point; 2^-12 is a quarter of the last).
TEST(MasterWeights, Claim21AThousandSmallUpdatesAreLostWithoutAndCountWithThem) {
  Weight bare(torch::kFloat16), kept(torch::kFloat16);
  MasterWeights masters(kept);
  torch::optim::SGD bare_optimizer(bare.parameters(), torch::optim::SGDOptions(1));
  torch::optim::SGD optimizer(masters.parameters(), torch::optim::SGDOptions(1));
  for (int update = 0; update < kUpdates; ++update) {
    for (Weight* module : {&bare, &kept}) {
      module->weight.mutable_grad() = torch::full_like(module->weight, -kUpdate);
    }
    masters.widen_gradients();
    optimizer.step();
    masters.narrow_parameters();
    bare_optimizer.step();
  }
  EXPECT_TRUE(torch::equal(bare.weight, torch::ones({3}, torch::kFloat16)));
  const double expected = 1 + kUpdates / 4096.0;
  EXPECT_EQ(expected, 1.244140625);
  EXPECT_TRUE(torch::equal(masters.parameters()[0], torch::full({3}, expected)));
  EXPECT_TRUE(torch::equal(kept.weight, torch::full({3}, expected, torch::kFloat16)));  // 250/1024: exact there, too
}

/// One part short, one f32, one frozen, one name twice.
struct Mixed : torch::nn::Module {
  Mixed() {
    torch::manual_seed(1);
    shorter = register_parameter("shorter", torch::randn({4, 2}).to(torch::kBFloat16));
    wide = register_parameter("wide", torch::randn({2}));
    frozen = register_parameter("frozen", torch::randn({2}).to(torch::kBFloat16), /*requires_grad=*/false);
    register_parameter("alias", shorter);
  }
  torch::Tensor loss() { return (shorter.to(torch::kFloat32) * wide * frozen.to(torch::kFloat32)).pow(2).sum(); }
  torch::Tensor shorter, wide, frozen;
};

TEST(MasterWeights, FollowAnOptimizerOnF32ParametersToTheBit) {
  Mixed module;
  MasterWeights masters(module);
  ASSERT_EQ(masters.parameters().size(), 2u);
  EXPECT_TRUE(masters.parameters()[1].is_same(module.wide));
  torch::optim::AdamW optimizer(masters.parameters(), torch::optim::AdamWOptions(1e-2));

  torch::Tensor shorter = module.shorter.detach().to(torch::kFloat32), wide = module.wide.detach().clone();
  torch::optim::AdamW reference({shorter.requires_grad_(), wide.requires_grad_()}, torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 20; ++step) {
    module.zero_grad();
    module.loss().backward();
    masters.widen_gradients();
    EXPECT_EQ(masters.parameters()[0].grad().scalar_type(), torch::kFloat32);
    shorter.mutable_grad() = module.shorter.grad().to(torch::kFloat32);
    wide.mutable_grad() = module.wide.grad().clone();
    optimizer.step();
    reference.step();
    masters.narrow_parameters();
    ASSERT_TRUE(torch::equal(masters.parameters()[0], shorter));
    ASSERT_TRUE(torch::equal(module.wide, wide));
    ASSERT_TRUE(torch::equal(module.shorter, shorter.to(torch::kBFloat16)));
  }
}

TEST(MasterWeights, MicroBatchesAddUpInF32) {
  Weight module(torch::kBFloat16);
  MasterWeights masters(module);
  const torch::Tensor& master = masters.parameters()[0];
  for (int micro = 0; micro < 300; ++micro) {  // in bf16 the sum would stay at 256
    module.weight.mutable_grad() = torch::ones_like(module.weight);
    masters.add_gradients();
  }
  EXPECT_TRUE(torch::equal(master.grad(), torch::full({3}, 300.0)));
  module.weight.mutable_grad() = torch::Tensor();
  masters.add_gradients();  // none: adds nothing
  EXPECT_TRUE(torch::equal(master.grad(), torch::full({3}, 300.0)));
  masters.widen_gradients();  // none: none
  EXPECT_FALSE(master.grad().defined());
}

TEST(MasterWeights, ReadWhatWasLoaded) {
  Weight module(torch::kFloat16);
  MasterWeights masters(module);
  {
    torch::NoGradGuard no_grad;
    module.weight.fill_(3);
  }
  masters.read_parameters();
  EXPECT_TRUE(torch::equal(masters.parameters()[0], torch::full({3}, 3.0)));
}

// f16 parameters with f16 gradients, scaled: the whole of mixed precision in one step.
TEST(MasterWeights, WorkUnderAGradScaler) {
  Weight module(torch::kFloat16);
  MasterWeights masters(module);
  torch::optim::SGD optimizer(masters.parameters(), torch::optim::SGDOptions(1));
  GradScaler scaler;
  const auto step = [&](double gradient) {
    module.zero_grad();
    scaler.scale((module.weight.to(torch::kFloat32) * gradient).sum()).backward();
    masters.widen_gradients();
    const bool stepped = scaler.step(optimizer);
    scaler.update();
    masters.narrow_parameters();
    return stepped;
  };
  EXPECT_TRUE(step(-std::ldexp(1.0, -20)));  // f16 has it only scaled and the sum 1 + 2^-20 only in the master
  EXPECT_TRUE(torch::equal(masters.parameters()[0], torch::full({3}, 1 + std::ldexp(1.0, -20))));
  EXPECT_FALSE(step(2));  // 2 * 65536 is beyond f16
  EXPECT_TRUE(torch::equal(masters.parameters()[0], torch::full({3}, 1 + std::ldexp(1.0, -20))));
  EXPECT_TRUE(torch::equal(module.weight, torch::ones({3}, torch::kFloat16)));
  EXPECT_EQ(scaler.get_scale(), 32768);
}

TEST(MasterWeights, AModuleThatChangesLaterIsRefused) {
  Weight module(torch::kFloat16);
  MasterWeights masters(module);
  module.to(torch::kFloat32);
  try {
    masters.narrow_parameters();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("MasterWeights::narrow_parameters: parameter 'weight' has another type"));
  }
  struct Complex : torch::nn::Module {
    Complex() { register_parameter("phase", torch::zeros({2}, torch::kComplexFloat)); }
  };
  EXPECT_THROW(MasterWeights{Complex()}, Error);
}

}  // namespace
}  // namespace tutti::training::master_weights_test
