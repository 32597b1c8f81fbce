// What FullyShardedDataParallel costs, to the byte: claims 3 to 6 of the literature's formulas (P: parameters, N:
// ranks).
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/training/fsdp/fsdp_nets.h"
#include "tests/training/on_ranks.h"

namespace tutti::training::fsdp_cost_test {
namespace {

/// Blocks only, so that the root unit has nothing; all rows divide by 2, 4 and 8.
struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (int i = 0; i < kBlocks; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), FsdpBlock(32, 1024)));
    }
  }
  torch::Tensor loss(torch::Tensor x) {
    for (FsdpBlock& block : blocks) x = block->forward(x);
    return x.pow(2).mean();
  }
  static constexpr int kBlocks = 4;
  std::vector<FsdpBlock> blocks;
};
TORCH_MODULE(Stack);

constexpr std::uint64_t kBlockElements = 32 * 1024 * 2 + 1024 + 32 + 32 + 32;
constexpr std::uint64_t kElements = Stack::Impl::kBlocks * kBlockElements;

Stack make_stack() {
  torch::manual_seed(1);
  return {};
}

struct Cost {
  std::uint64_t sent = 0;  // by all ranks, in a step
  FsdpMemory memory;       // of rank 0, after it
  std::size_t optimizer = 0;
};

/// Returns the cost of the second step; the first learns the order of the units.
Cost cost_of(int size, const FsdpOptions& options) {
  std::vector<Stack> stacks;
  for (int rank = 0; rank < size; ++rank) stacks.push_back(make_stack());
  const torch::Tensor x = torch::randn({3, 32});
  std::atomic<std::uint64_t> sent{0};
  Cost cost;
  const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
    Stack& stack = stacks[static_cast<std::size_t>(rank)];
    FullyShardedDataParallel fsdp(*stack, comm, options);
    torch::optim::Adam optimizer(fsdp.parameters());
    std::uint64_t before = 0;
    for (int step = 0; step < 2; ++step) {
      before = fsdp.traffic().bytes_put;
      fsdp.zero_grad();
      stack->loss(x).backward();
      optimizer.step();
    }
    sent += fsdp.traffic().bytes_put - before;
    if (rank != 0) return;
    cost.memory = fsdp.memory();
    for (const auto& [key, state] : optimizer.state()) {
      const auto& adam = static_cast<const torch::optim::AdamParamState&>(*state);
      cost.optimizer += adam.exp_avg().nbytes() + adam.exp_avg_sq().nbytes();
    }
  });
  EXPECT_EQ(errors, nothing(size));
  cost.sent = sent;
  return cost;
}

/// Returns the bytes of all ranks beside parameters and gradients: step_exchange.h.
std::uint64_t compared_steps(std::uint64_t n) { return n * 32 * (n - 1); }

class FsdpCostRanks : public ::testing::TestWithParam<int> {};

TEST_P(FsdpCostRanks, Claim3ZeroOneAndTwoSendWhatDdpSends) {
  const auto n = static_cast<std::uint64_t>(GetParam());
  const std::uint64_t bytes = 4 * kElements;
  const std::uint64_t expected = 2 * (n - 1) * bytes + compared_steps(n);
  EXPECT_EQ(cost_of(GetParam(), in_rank_order(Sharding::zero1)).sent, expected);
  EXPECT_EQ(cost_of(GetParam(), in_rank_order(Sharding::zero2)).sent, expected);
  EXPECT_EQ(cost_of(GetParam(), in_rank_order(Sharding::zero3, Reshard::never)).sent, expected);
}

// Once more than that, but for the last unit of forward, which is the first of backward and stays.
TEST_P(FsdpCostRanks, Claim4ZeroThreeSendsHalfAsMuchAgain) {
  const auto n = static_cast<std::uint64_t>(GetParam());
  const std::uint64_t expected = (n - 1) * 4 * (3 * kElements - kBlockElements) + compared_steps(n);
  EXPECT_EQ(cost_of(GetParam(), in_rank_order(Sharding::zero3)).sent, expected);
  EXPECT_EQ(cost_of(GetParam(), in_rank_order(Sharding::zero3, Reshard::always)).sent, expected);
}

TEST_P(FsdpCostRanks, Claim5MemoryOfF32WithAdam) {
  const auto n = static_cast<std::size_t>(GetParam());
  const auto total = [](const Cost& cost) { return cost.memory.shards + cost.memory.gradients + cost.optimizer; };
  const std::size_t each = kElements / n;
  EXPECT_EQ(total(cost_of(GetParam(), in_rank_order(Sharding::zero1))), 8 * kElements + 8 * each);
  EXPECT_EQ(total(cost_of(GetParam(), in_rank_order(Sharding::zero2))), 4 * kElements + 12 * each);
  const Cost cost = cost_of(GetParam(), in_rank_order(Sharding::zero3));
  EXPECT_EQ(total(cost), 16 * each);
  EXPECT_EQ(cost.memory.gathered, 0u);
  EXPECT_EQ(cost.memory.padding, 0u);
  EXPECT_EQ(cost.memory.peak_gathered, 4 * 2 * kBlockElements);  // a unit, and the next
}

// bf16 to compute with, f32 masters: what is there between steps is f32 (16 / N), and bf16 comes and goes.
TEST_P(FsdpCostRanks, Claim6MemoryOfBf16WithMasters) {
  const auto n = static_cast<std::size_t>(GetParam());
  FsdpOptions options = in_rank_order(Sharding::zero3);
  options.compute_type = torch::kBFloat16;
  std::vector<Stack> stacks;
  for (int rank = 0; rank < GetParam(); ++rank) stacks.push_back(make_stack());
  const torch::Tensor x = torch::randn({3, 32}, torch::kBFloat16);
  const auto errors = on_ranks(GetParam(), [&](int rank, Communicator comm) {
    Stack& stack = stacks[static_cast<std::size_t>(rank)];
    FullyShardedDataParallel fsdp(*stack, comm, options);
    for (int step = 0; step < 2; ++step) {
      fsdp.zero_grad();
      stack->loss(x).backward();
    }
    EXPECT_EQ(fsdp.memory().shards, 4 * kElements / n);
    EXPECT_EQ(fsdp.memory().gradients, 4 * kElements / n);
    EXPECT_EQ(fsdp.memory().peak_gathered, 2 * 2 * kBlockElements);
    EXPECT_EQ(fsdp.stats().gathered_bytes, 2 * fsdp.stats().gathers * kBlockElements);
  });
  EXPECT_EQ(errors, nothing(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(FsdpCost, FsdpCostRanks, ::testing::Values(2, 4, 8), ::testing::PrintToStringParamName());

TEST(FsdpCost, PaddingIsCounted) {
  std::vector<FsdpNet> nets{make_fsdp_net(1), make_fsdp_net(1), make_fsdp_net(1)};
  const auto errors = on_ranks(3, [&](int rank, Communicator comm) {
    FsdpNet& net = nets[static_cast<std::size_t>(rank)];
    FullyShardedDataParallel fsdp(*net, comm, in_rank_order(Sharding::zero3));
    std::size_t own = 0;
    for (const torch::Tensor& shard : fsdp.parameters()) own += static_cast<std::size_t>(shard.numel());
    EXPECT_EQ(fsdp.memory().shards, 4 * own + fsdp.memory().padding);
    EXPECT_GT(rank == 2 ? fsdp.memory().padding : 1, 0u);
  });
  EXPECT_EQ(errors, nothing(3));
}

}  // namespace
}  // namespace tutti::training::fsdp_cost_test
