#include "training/precision/autocast.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "training/models/gpt.h"
#include "tutti/tutti.hpp"

namespace tutti::training::autocast_test {
namespace {

using ::testing::HasSubstr;

/// Enabled, type and use of the cache.
std::tuple<bool, torch::ScalarType, bool> state_of(torch::DeviceType device) {
  return {at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device),
          at::autocast::is_autocast_cache_enabled()};
}

class AutocastTypes : public ::testing::TestWithParam<torch::ScalarType> {};

TEST_P(AutocastTypes, ProductsRunInTheShortTypeAndGradientsAreF32) {
  const torch::ScalarType type = GetParam();
  torch::set_num_threads(1);
  torch::manual_seed(1);
  torch::nn::Linear layer(7, 5);
  const torch::Tensor x = torch::randn({3, 7});
  torch::Tensor y, norm;
  {
    const Autocast autocast(type);
    y = layer->forward(x);
    norm = torch::mse_loss(y, torch::zeros_like(y));
  }
  EXPECT_TRUE(torch::equal(y, torch::linear(x.to(type), layer->weight.to(type), layer->bias.to(type))));
  EXPECT_EQ(y.scalar_type(), type);
  EXPECT_EQ(norm.scalar_type(), torch::kFloat32);
  norm.backward();
  EXPECT_EQ(layer->weight.grad().scalar_type(), torch::kFloat32);
  // The gradient came through the short type.
  EXPECT_TRUE(torch::equal(layer->weight.grad(), layer->weight.grad().to(type).to(torch::kFloat32)));
  EXPECT_EQ(layer->forward(x).scalar_type(), torch::kFloat32);  // it is over
}

TEST_P(AutocastTypes, NestedRegionsPutBackWhatWasBefore) {
  const torch::ScalarType type = GetParam();
  const torch::ScalarType other = type == torch::kBFloat16 ? torch::kFloat16 : torch::kBFloat16;
  for (const torch::DeviceType device : {torch::kCPU, torch::kCUDA}) {
    SCOPED_TRACE(c10::DeviceTypeName(device));
    const torch::DeviceType elsewhere = device == torch::kCPU ? torch::kCUDA : torch::kCPU;
    const auto before = state_of(device), before_elsewhere = state_of(elsewhere);
    {
      const Autocast outer(type, device);
      EXPECT_EQ(state_of(device), std::make_tuple(true, type, true));
      EXPECT_EQ(at::autocast::is_autocast_enabled(elsewhere), std::get<0>(before_elsewhere));
      {
        const Autocast off(type, device, /*enabled=*/false);
        EXPECT_EQ(state_of(device), std::make_tuple(false, type, true));
        {
          const Autocast inner(other, device, /*enabled=*/true, /*cache=*/false);
          EXPECT_EQ(state_of(device), std::make_tuple(true, other, false));
        }
        EXPECT_EQ(state_of(device), std::make_tuple(false, type, true));
      }
      EXPECT_EQ(state_of(device), std::make_tuple(true, type, true));
    }
    EXPECT_EQ(state_of(device), before);
    EXPECT_EQ(state_of(elsewhere), before_elsewhere);
  }
}

INSTANTIATE_TEST_SUITE_P(Autocast, AutocastTypes, ::testing::Values(torch::kBFloat16, torch::kFloat16));

TEST(Autocast, AnInnerRegionOfAnotherTypeDoesNotGetTheCastOfTheOuter) {
  const torch::Tensor weight = torch::ones({4, 4}, torch::requires_grad()), x = torch::ones({2, 4});
  const Autocast outer(torch::kBFloat16);
  EXPECT_EQ(torch::mm(x, weight).scalar_type(), torch::kBFloat16);
  {
    const Autocast inner(torch::kFloat16);
    EXPECT_EQ(torch::mm(x, weight).scalar_type(), torch::kFloat16);
  }
  EXPECT_EQ(torch::mm(x, weight).scalar_type(), torch::kBFloat16);
}

TEST(Autocast, EndsWithAnException) {
  const auto before = state_of(torch::kCPU);
  EXPECT_THROW(
      {
        const Autocast autocast(torch::kFloat16);
        throw std::runtime_error("boom");
      },
      std::runtime_error);
  EXPECT_EQ(state_of(torch::kCPU), before);
}

TEST(Autocast, ActsOnItsThreadOnly) {
  const Autocast autocast(torch::kBFloat16);
  bool enabled = true;
  std::thread([&] { enabled = at::autocast::is_autocast_enabled(torch::kCPU); }).join();
  EXPECT_FALSE(enabled);
}

TEST(Autocast, OtherTypesAndDevicesAreRefused) {
  const auto message = [](torch::ScalarType type, torch::DeviceType device) -> std::string {
    try {
      const Autocast autocast(type, device);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(torch::kFloat32, torch::kCPU), "Autocast: type is Float; it can be bf16 or f16");
  EXPECT_THAT(message(torch::kFloat16, torch::kMeta), HasSubstr("LibTorch has no autocast for device"));
}

// The gradient of a GPT under bf16 against f32. bf16 keeps 8 bits: each product's operands are off by at most 2^-9 of
// their size, and there are some 12 products in a row from the embedding to the loss and back; were all errors of one
// sign, 12 * 2 * 2^-9 = 5 % of the gradient's norm. Doubled for what sits between them.
TEST(Autocast, AGptGetsNearlyTheSameGradients) {
  torch::set_num_threads(1);
  torch::manual_seed(3);
  GptConfig config;
  config.layers = 2;
  config.width = 32;
  config.context = 16;
  Gpt model(config);
  const torch::Tensor x = torch::randint(256, {4, 16}, torch::kInt64), y = torch::randint(256, {4, 16}, torch::kInt64);
  const auto gradient = [&] {
    std::vector<torch::Tensor> parts;
    for (const torch::Tensor& parameter : model->parameters()) parts.push_back(parameter.grad().flatten());
    model->zero_grad();
    return torch::cat(parts);
  };
  model->loss(x, y).backward();
  const torch::Tensor exact = gradient();
  torch::Tensor loss;
  {
    const Autocast autocast(torch::kBFloat16);
    loss = model->loss(x, y);
  }
  loss.backward();
  const double error = (gradient() - exact).norm().item<double>() / exact.norm().item<double>();
  EXPECT_LT(error, 0.1);
  EXPECT_GT(error, 1e-4);  // it did run in bf16
}

}  // namespace
}  // namespace tutti::training::autocast_test
