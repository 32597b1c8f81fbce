#include "training/fsdp/fsdp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/training/fsdp_nets.h"
#include "tests/training/on_ranks.h"

namespace tutti::training {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<torch::Tensor> rows_of_ranks(int size) {
  std::vector<torch::Tensor> rows;
  for (int rank = 0; rank < size; ++rank) rows.push_back(rows_of(rank));
  return rows;
}

struct Way {
  std::string name;
  FsdpOptions options;
};

std::vector<Way> ways() {
  std::vector<Way> result = {
      {"zero1", in_rank_order(Sharding::zero1)},
      {"zero2", in_rank_order(Sharding::zero2)},
      {"zero3", in_rank_order(Sharding::zero3)},
      {"always", in_rank_order(Sharding::zero3, Reshard::always)},
      {"never", in_rank_order(Sharding::zero3, Reshard::never)},
      {"far_prefetch", in_rank_order(Sharding::zero3)},
      {"no_prefetch", in_rank_order(Sharding::zero3)},
      {"one_unit", in_rank_order(Sharding::zero3)},
      {"by_type", in_rank_order(Sharding::zero3)},
      {"by_size", in_rank_order(Sharding::zero3)},
  };
  result[5].options.prefetch = 10;
  result[6].options.prefetch = 0;
  result[7].options.units = by_name({});
  result[8].options.units = by_type<torch::nn::LinearImpl, torch::nn::LayerNormImpl>();
  result[9].options.units = by_size(5000);
  return result;
}

class Ranks : public testing::TestWithParam<int> {};

// Claim 7: as DistributedDataParallel, whose tests have the same reference.
TEST_P(Ranks, TrainAsOneProcessThatAddsTheirGradients) {
  torch::set_num_threads(1);  // as on_ranks() does: bits depend on it
  const int size = GetParam();
  constexpr int kSteps = 4;
  const std::vector<torch::Tensor> rows = rows_of_ranks(size);
  FsdpNet twin = make_fsdp_net(0);
  torch::optim::AdamW twin_optimizer(twin->parameters(), torch::optim::AdamWOptions(1e-2));
  train_twin(twin, twin_optimizer, rows, kSteps);
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    std::vector<FsdpNet> nets;
    for (int rank = 0; rank < size; ++rank) nets.push_back(make_fsdp_net(static_cast<std::uint64_t>(rank)));
    const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
      FsdpNet& net = nets[static_cast<std::size_t>(rank)];
      FullyShardedDataParallel fsdp(*net, comm, way.options);
      torch::optim::AdamW optimizer(fsdp.parameters(), torch::optim::AdamWOptions(1e-2));
      for (int step = 0; step < kSteps; ++step) {
        if (step % 3 == 0) fsdp.zero_grad();
        if (step % 3 == 1) optimizer.zero_grad();
        if (step % 3 == 2) optimizer.zero_grad(/*set_to_none=*/false);
        net->loss(rows[static_cast<std::size_t>(rank)]).backward();
        optimizer.step();
      }
      expect_same_bits(whole_parameters(fsdp), twin->parameters());
      const auto whole = fsdp.summon_full_parameters();
      expect_same_bits(net->parameters(), twin->parameters());
    });
    EXPECT_EQ(errors, nothing(size));
  }
}

INSTANTIATE_TEST_SUITE_P(Fsdp, Ranks, testing::Values(1, 2, 3, 4, 8), testing::PrintToStringParamName());

}  // namespace
}  // namespace tutti::training
