#include "training/precision/grad_scaler.h"

#include <ATen/ops/_amp_update_scale.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <random>
#include <string>

#include "tests/training/on_ranks.h"

namespace tutti::training::grad_scaler_test {
namespace {

using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// One parameter whose gradient a test sets.
struct Fixture {
  explicit Fixture(torch::ScalarType type = torch::kFloat32)
      : weight(torch::zeros({4}, torch::dtype(type).requires_grad(true))),
        optimizer({weight}, torch::optim::SGDOptions(1)) {}
  void set_gradient(double value, int at = 2) {
    weight.mutable_grad() = torch::ones_like(weight).detach();
    weight.mutable_grad()[at] = value;
  }
  torch::Tensor weight;
  torch::optim::SGD optimizer;
};

void start(GradScaler& scaler) { scaler.scale(torch::ones({})); }

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// d loss / d weight = 2^-25 on its way through f16.
torch::Tensor small_gradient(const torch::Tensor& weight, GradScaler* scaler) {
  const torch::Tensor loss =
      (weight.to(torch::kFloat16) * torch::ones({}, torch::kFloat16)).to(torch::kFloat32).sum() * std::ldexp(1.0, -25);
  (scaler == nullptr ? loss : scaler->scale(loss)).backward();
  return weight.grad();
}

// Claim 20: 2^-24 is the smallest number of f16 and 2^-25 rounds to 0 (a tie, to even).
TEST(GradScaler, Claim20AGradientTooSmallForF16Survives) {
  Fixture bare, scaled;
  EXPECT_TRUE(torch::equal(small_gradient(bare.weight, nullptr), torch::zeros({4})));
  GradScaler scaler;
  EXPECT_TRUE(torch::equal(small_gradient(scaled.weight, &scaler), torch::full({4}, std::ldexp(1.0, 16 - 25))));
  EXPECT_TRUE(scaler.step(scaled.optimizer));
  EXPECT_TRUE(torch::equal(scaled.weight, torch::full({4}, -std::ldexp(1.0, -25))));
}

TEST(GradScaler, Claim20EachOverflowHalvesTheScaleAndSkipsTheStep) {
  Fixture f;
  GradScaler scaler;
  start(scaler);
  const double bad[] = {kInfinity, -kInfinity, std::nan("")};
  for (int k = 1; k <= 20; ++k) {
    f.set_gradient(bad[k % 3], k % 4);
    EXPECT_FALSE(scaler.step(f.optimizer));
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), std::ldexp(1.0, 16 - k));
    EXPECT_EQ(scaler.state().growth_tracker, 0);
  }
  EXPECT_TRUE(torch::equal(f.weight, torch::zeros({4})));
}

TEST(GradScaler, Claim20TwoThousandCleanStepsInARowDoubleTheScale) {
  Fixture f;
  GradScaler scaler;
  start(scaler);
  const auto step = [&](double gradient) {
    f.set_gradient(gradient);
    scaler.step(f.optimizer);
    scaler.update();
  };
  for (int i = 0; i < 1999; ++i) step(1);
  EXPECT_EQ(scaler.get_scale(), 65536);
  step(kInfinity);  // not in a row
  EXPECT_EQ(scaler.get_scale(), 32768);
  for (int i = 0; i < 1999; ++i) step(1);
  EXPECT_EQ(scaler.get_scale(), 32768);
  step(1);
  EXPECT_EQ(scaler.get_scale(), 65536);
  EXPECT_EQ(scaler.state().growth_tracker, 0);
}

// The same random stream through LibTorch's own kernel for the next scale.
TEST(GradScaler, GoesThroughTheSameScalesAsLibTorch) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  GradScalerOptions options;
  options.init_scale = 3.7;
  options.growth_factor = 1.9;
  options.backoff_factor = 0.37;
  options.growth_interval = 3;
  GradScaler scaler(options);
  start(scaler);
  Fixture f;
  torch::Tensor scale = torch::full({}, 3.7), tracker = torch::zeros({}, torch::kInt32);
  for (int i = 0; i < 2000; ++i) {
    const bool overflow = random() % (i < 1000 ? 7 : 40) == 0;  // around one value; then up to the end of f32
    f.set_gradient(overflow ? kInfinity : 1);
    EXPECT_EQ(scaler.step(f.optimizer), !overflow);
    scaler.update();
    at::_amp_update_scale_(scale, tracker, torch::full({}, overflow ? 1.0 : 0.0), 1.9, 0.37, 3);
    ASSERT_EQ(scaler.get_scale(), static_cast<double>(scale.item<float>())) << "update " << i;
    ASSERT_EQ(scaler.state().growth_tracker, tracker.item<int>()) << "update " << i;
  }
}

TEST(GradScaler, UnscalesByTheReciprocalRoundedOnce) {
  GradScalerOptions options;
  options.init_scale = 3;
  for (const torch::ScalarType type : {torch::kFloat32, torch::kFloat64, torch::kBFloat16}) {
    GradScaler scaler(options);
    start(scaler);
    Fixture f(type);
    f.set_gradient(7);
    const torch::Tensor before = f.weight.grad().clone();
    scaler.unscale_(f.optimizer);
    // In f32 or wider, then rounded to the gradient's type.
    const torch::Tensor wide = type == torch::kFloat64 ? before : before.to(torch::kFloat32);
    EXPECT_TRUE(torch::equal(f.weight.grad(), (wide * static_cast<double>(1.0f / 3.0f)).to(type)));
  }
}

// T12: the scale never falls to 0, and the state can be loaded again.
TEST(GradScaler, T12ALongRunOfOverflowsLeavesAScale) {
  Fixture f;
  GradScaler scaler;
  for (int i = 0; i < 200; ++i) {
    start(scaler);
    f.set_gradient(kInfinity);
    EXPECT_FALSE(scaler.step(f.optimizer));
    scaler.update();
  }
  EXPECT_EQ(scaler.get_scale(), std::ldexp(1.0, -126));
  scaler.load_state(scaler.state());
  start(scaler);
  f.set_gradient(std::ldexp(1.0, -126));
  EXPECT_TRUE(scaler.step(f.optimizer));
  EXPECT_TRUE(f.weight.isfinite().all().item<bool>());
}

TEST(GradScaler, ClippingSeesUnscaledGradients) {
  Fixture f;
  GradScaler scaler;
  scaler.scale((f.weight * 3).sum()).backward();
  EXPECT_TRUE(torch::equal(f.weight.grad(), torch::full({4}, 3 * 65536.0)));
  scaler.unscale_(f.optimizer);
  EXPECT_TRUE(torch::equal(f.weight.grad(), torch::full({4}, 3.0)));
  EXPECT_TRUE(scaler.step(f.optimizer));  // not unscaled again
  EXPECT_TRUE(torch::equal(f.weight, torch::full({4}, -3.0)));
}

TEST(GradScaler, OneOptimizerSkipsAndTheOtherSteps) {
  Fixture a, b;
  GradScaler scaler;
  start(scaler);
  a.set_gradient(1);
  b.set_gradient(kInfinity);
  EXPECT_TRUE(scaler.step(a.optimizer));
  EXPECT_FALSE(scaler.step(b.optimizer));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 32768);
}

TEST(GradScaler, WhatTheStateDoesNotAllowIsRefused) {
  Fixture f;
  GradScaler scaler;
  f.set_gradient(1);
  const std::string unscaled = "nothing was scaled yet; call scale(loss).backward() first";
  EXPECT_EQ(message_of([&] { scaler.unscale_(f.optimizer); }), "GradScaler::unscale_: " + unscaled);
  EXPECT_THAT(message_of([&] { scaler.step(f.optimizer); }), HasSubstr(unscaled));
  EXPECT_EQ(message_of([&] { scaler.update(); }), "GradScaler::update: " + unscaled);
  start(scaler);
  EXPECT_THAT(message_of([&] { scaler.update(); }), HasSubstr("no gradients were checked since the last update()"));
  scaler.unscale_(f.optimizer);
  EXPECT_EQ(message_of([&] { scaler.unscale_(f.optimizer); }),
            "GradScaler::unscale_: was called for this optimizer since the last update()");
  scaler.step(f.optimizer);
  EXPECT_THAT(message_of([&] { scaler.unscale_(f.optimizer); }), HasSubstr("unscale_: is called after step()"));
  EXPECT_THAT(message_of([&] { scaler.step(f.optimizer); }), HasSubstr("GradScaler::step: was called for this"));
  scaler.update();
  scaler.unscale_(f.optimizer);  // a new round
  scaler.step(f.optimizer);
  scaler.update();

  Fixture none;
  EXPECT_THAT(message_of([&] { scaler.step(none.optimizer); }), HasSubstr("no gradient on any rank"));
  Fixture half(torch::kFloat16);
  half.set_gradient(1);
  EXPECT_THAT(message_of([&] { scaler.step(half.optimizer); }),
              HasSubstr("parameter 0 of group 0 has an f16 gradient"));
  EXPECT_TRUE(torch::equal(half.weight.grad(), torch::ones({4}, torch::kFloat16)));
}

TEST(GradScaler, OptionsOutOfRangeAreRefused) {
  const auto make = [](double scale, double growth, double backoff, int interval) {
    return message_of([=] { GradScaler({scale, growth, backoff, interval, true}); });
  };
  EXPECT_THAT(make(0, 2, 0.5, 1), HasSubstr("scale 0 is not above 0"));
  EXPECT_THAT(make(1e39, 2, 0.5, 1), HasSubstr("scale 1e+39"));
  EXPECT_THAT(make(1, 1, 0.5, 1), HasSubstr("growth_factor 1 is not above 1"));
  EXPECT_THAT(make(1, 2, 1, 1), HasSubstr("backoff_factor 1 is not between 0 and 1"));
  EXPECT_THAT(make(1, 2, 0.5, 0), HasSubstr("growth_interval 0 is below 1"));
}

TEST(GradScaler, DisabledItOnlySteps) {
  Fixture f;
  GradScalerOptions options;
  options.enabled = false;
  GradScaler scaler(options);
  const torch::Tensor loss = torch::ones({});
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  f.set_gradient(kInfinity);
  scaler.unscale_(f.optimizer);
  scaler.unscale_(f.optimizer);
  EXPECT_TRUE(scaler.step(f.optimizer));
  EXPECT_TRUE(std::isinf(f.weight[2].item<float>()));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 1);
}

TEST(GradScaler, GoesOnFromASavedState) {
  Fixture f;
  GradScalerOptions options;
  options.growth_interval = 5;
  GradScaler first(options), second;
  start(first);
  start(second);
  const auto step = [&](GradScaler& scaler) {
    f.set_gradient(1);
    scaler.step(f.optimizer);
    scaler.update();
  };
  for (int i = 0; i < 3; ++i) step(first);
  second.load_state(first.state());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(second.get_scale(), 65536);
    step(second);
  }
  EXPECT_EQ(second.get_scale(), 131072);
  second.scale(torch::ones({}));
  second.update(1024);  // by hand
  EXPECT_EQ(second.get_scale(), 1024);
}

class GradScalerRanks : public ::testing::TestWithParam<int> {};

TEST_P(GradScalerRanks, OneRanksOverflowSkipsTheStepOnAll) {
  const int size = GetParam();
  std::vector<Fixture> fixtures(static_cast<std::size_t>(size));
  const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
    Fixture& f = fixtures[static_cast<std::size_t>(rank)];
    GradScaler scaler({}, {comm});
    start(scaler);
    for (int step = 0; step < 2 * size; ++step) {
      f.set_gradient(step % 2 == 0 && step / 2 == rank ? kInfinity : 1);
      EXPECT_EQ(scaler.step(f.optimizer), step % 2 == 1);
      scaler.update();
    }
    EXPECT_EQ(scaler.get_scale(), std::ldexp(1.0, 16 - size));
  });
  EXPECT_EQ(errors, nothing(size));
}

INSTANTIATE_TEST_SUITE_P(GradScaler, GradScalerRanks, ::testing::Values(1, 2, 3, 4),
                         ::testing::PrintToStringParamName());

// GradScalerRanks 2 x 2. An overflow on rank 3 reaches rank 0 only through both dimensions.
TEST(GradScaler, AnOverflowCrossesTheMesh) {
  std::vector<Fixture> fixtures(4);
  const auto errors = on_ranks(4, [&](int rank, Communicator comm) {
    Fixture& f = fixtures[static_cast<std::size_t>(rank)];
    GradScaler scaler({}, {comm.split(rank / 2, rank), comm.split(rank % 2, rank)});
    start(scaler);
    for (int bad = 0; bad < 4; ++bad) {
      f.set_gradient(bad == rank ? kInfinity : 1);
      EXPECT_FALSE(scaler.step(f.optimizer)) << "overflow on " << bad << ", rank " << rank;
      scaler.update();
    }
    f.set_gradient(1);
    EXPECT_TRUE(scaler.step(f.optimizer));
  });
  EXPECT_EQ(errors, nothing(4));
}

// As in a pipeline: the loss is scaled on the last rank only, and the first holds nothing to train.
TEST(GradScaler, ARankMayHoldNeitherLossNorGradient) {
  std::vector<Fixture> fixtures(3);
  const auto errors = on_ranks(3, [&](int rank, Communicator comm) {
    Fixture& f = fixtures[static_cast<std::size_t>(rank)];
    GradScaler scaler({}, {comm});
    if (rank == 2) start(scaler);
    if (rank > 0) f.set_gradient(1);
    EXPECT_TRUE(scaler.step(f.optimizer));
    scaler.update();
    if (rank == 2) start(scaler);
    if (rank > 0) f.set_gradient(rank == 1 ? kInfinity : 1);
    EXPECT_FALSE(scaler.step(f.optimizer));
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 32768);
  });
  EXPECT_EQ(errors, nothing(3));
}

TEST(GradScaler, RefusedGradientsOfOneRankFailOnAll) {
  std::vector<Fixture> fixtures;
  for (const torch::ScalarType type : {torch::kFloat32, torch::kFloat16, torch::kFloat32}) fixtures.emplace_back(type);
  const auto errors = on_ranks(3, [&](int rank, Communicator comm) {
    Fixture& f = fixtures[static_cast<std::size_t>(rank)];
    GradScaler scaler({}, {comm});
    start(scaler);
    f.set_gradient(1);
    scaler.step(f.optimizer);
  });
  EXPECT_THAT(errors[1], HasSubstr("rank 1: GradScaler::unscale_: parameter 0 of group 0 has an f16 gradient"));
  for (const int rank : {0, 2}) {
    EXPECT_EQ(
        errors[static_cast<std::size_t>(rank)],
        "rank " + std::to_string(rank) + ": GradScaler::unscale_: another rank refused its gradients and says why");
  }
}

}  // namespace
}  // namespace tutti::training::grad_scaler_test
