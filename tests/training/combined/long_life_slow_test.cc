// A hundred thousand steps of a tiny model, in one process: what it holds stays.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <utility>

#include "tests/support/usage.h"
#include "tests/training/on_ranks.h"
#include "training/ddp/ddp.h"
#include "training/fsdp/fsdp.h"

namespace tutti::training::long_life_slow_test {
namespace {

template <class Strategy, class Parameters>
void steps(long times, const Parameters& parameters) {
  std::string grown;
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    torch::manual_seed(1);
    torch::nn::Linear net(4, 4);
    Strategy strategy(*net, std::move(comm));
    torch::optim::SGD optimizer(parameters(strategy, net), torch::optim::SGDOptions(0.01));
    const torch::Tensor rows = torch::ones({2, 4});
    const auto step = [&] {
      strategy.zero_grad();
      net->forward(rows).pow(2).mean().backward();
      optimizer.step();
    };
    if (rank == 0) {
      grown = testing::growth(times, 2 << 20, step);  // of both ranks, which are threads of this process
    } else {
      for (long i = 0; i < times; ++i) step();
    }
  });
  EXPECT_EQ(errors, nothing(2));
  EXPECT_EQ(grown, "");
}

TEST(LongLife, AHundredThousandStepsOfDdp) {
  steps<DistributedDataParallel>(100'000, [](auto&, torch::nn::Linear& net) { return net->parameters(); });
}

TEST(LongLife, TwentyThousandStepsOfFsdp) {
  steps<FullyShardedDataParallel>(20'000, [](auto& fsdp, torch::nn::Linear&) { return fsdp.parameters(); });
}

}  // namespace
}  // namespace tutti::training::long_life_slow_test
