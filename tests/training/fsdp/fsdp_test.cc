#include "training/fsdp/fsdp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/training/fsdp/fsdp_nets.h"
#include "tests/training/on_ranks.h"

namespace tutti::training::fsdp_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

class FsdpRanks : public ::testing::TestWithParam<int> {};

// Claim 7: as DistributedDataParallel, whose tests have the same reference.
TEST_P(FsdpRanks, TrainAsOneProcessThatAddsTheirGradients) {
  torch::set_num_threads(1);  // as on_ranks() does: bits depend on it
  const int size = GetParam();
  constexpr int kSteps = 4;
  const std::vector<torch::Tensor> rows = rows_of_ranks(size);
  FsdpNet reference = make_fsdp_net(0);
  torch::optim::AdamW reference_optimizer(reference->parameters(), torch::optim::AdamWOptions(1e-2));
  train_reference(reference, reference_optimizer, rows, kSteps);
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
      expect_same_bits(full_parameters(fsdp), reference->parameters());
      const auto whole = fsdp.summon_full_parameters();
      expect_same_bits(net->parameters(), reference->parameters());
    });
    EXPECT_EQ(errors, nothing(size));
  }
}

// Micro-batches under no_sync add up on each rank and travel once; without it each travels, and their means add up.
TEST_P(FsdpRanks, AccumulateWithAndWithoutCommunication) {
  torch::set_num_threads(1);  // as on_ranks() does: bits depend on it
  const int size = GetParam();
  constexpr int kMicro = 3;
  FsdpNet reference = make_fsdp_net(5);
  std::vector<Tensors> sums;                        // of each rank, over its micro-batches
  std::vector<std::vector<Tensors>> parts(kMicro);  // of each micro-batch and rank
  std::vector<Tensors> rows(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    zero_gradients(*reference);
    for (int micro = 0; micro < kMicro; ++micro) {
      rows[static_cast<std::size_t>(rank)].push_back(rows_of(rank, micro));
      (reference->loss(rows[static_cast<std::size_t>(rank)].back()) / kMicro).backward();
    }
    sums.push_back(gradients_of(*reference));
    for (int micro = 0; micro < kMicro; ++micro) {
      zero_gradients(*reference);
      (reference->loss(rows[static_cast<std::size_t>(rank)][static_cast<std::size_t>(micro)]) / kMicro).backward();
      parts[static_cast<std::size_t>(micro)].push_back(gradients_of(*reference));
    }
  }
  const Tensors once = average(sums);
  Tensors each = average(parts[0]);
  for (int micro = 1; micro < kMicro; ++micro) {
    const Tensors next = average(parts[static_cast<std::size_t>(micro)]);
    for (std::size_t i = 0; i < each.size(); ++i) each[i] += next[i];
  }

  for (const Sharding sharding : {Sharding::zero1, Sharding::zero2, Sharding::zero3}) {
    for (const bool silent : {true, false}) {
      std::vector<FsdpNet> nets;
      for (int rank = 0; rank < size; ++rank) nets.push_back(make_fsdp_net(5));
      const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
        FsdpNet& net = nets[static_cast<std::size_t>(rank)];
        FullyShardedDataParallel fsdp(*net, comm, in_rank_order(sharding));
        fsdp.zero_grad();
        for (int micro = 0; micro < kMicro; ++micro) {
          std::optional<FullyShardedDataParallel::NoSync> guard;
          if (silent && micro + 1 < kMicro) guard.emplace(fsdp.no_sync());
          (net->loss(rows[static_cast<std::size_t>(rank)][static_cast<std::size_t>(micro)]) / kMicro).backward();
          if (guard) {
            EXPECT_EQ(fsdp.stats().reductions, 0u);
          }
        }
        expect_same_bits(full_gradients(fsdp), silent ? once : each);
      });
      EXPECT_EQ(errors, nothing(size));
    }
  }
}

// The shards of f32 are the master weights of a model that computes and travels in bf16; gradients are added in f32, or
// in bf16 with f32 between.
TEST_P(FsdpRanks, ComputeInBf16WithMasterShards) {
  torch::set_num_threads(1);
  const int size = GetParam();
  constexpr int kSteps = 3;
  std::vector<torch::Tensor> rows;
  for (int rank = 0; rank < size; ++rank) rows.push_back(rows_of(rank, 0, torch::kBFloat16));
  for (const torch::ScalarType reduce_type : {torch::kFloat32, torch::kBFloat16}) {
    FsdpNet master = make_fsdp_net(2), reference = make_fsdp_net(2);
    reference->to(torch::kBFloat16);
    torch::optim::SGD reference_optimizer(master->parameters(), 0.05);
    for (int step = 0; step < kSteps; ++step) {
      {
        const torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < master->parameters().size(); ++i) {
          reference->parameters()[i].copy_(master->parameters()[i]);
        }
      }
      std::vector<Tensors> shards;
      for (const torch::Tensor& x : rows) {
        zero_gradients(*reference);
        reference->loss(x).backward();
        shards.push_back(gradients_of(*reference));
        for (torch::Tensor& gradient : shards.back()) gradient = gradient.to(reduce_type);
      }
      const Tensors mean = average(shards);
      for (std::size_t i = 0; i < mean.size(); ++i) {
        master->parameters()[i].mutable_grad() = mean[i].to(torch::kFloat32);
      }
      reference_optimizer.step();
    }
    for (const Sharding sharding : {Sharding::zero1, Sharding::zero2, Sharding::zero3}) {
      std::vector<FsdpNet> nets;
      for (int rank = 0; rank < size; ++rank) nets.push_back(make_fsdp_net(2));
      const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
        FsdpNet& net = nets[static_cast<std::size_t>(rank)];
        FsdpOptions options = in_rank_order(sharding);
        options.compute_type = torch::kBFloat16;
        options.reduce_type = reduce_type;
        FullyShardedDataParallel fsdp(*net, comm, options);
        torch::optim::SGD optimizer(fsdp.parameters(), 0.05);
        for (int step = 0; step < kSteps; ++step) {
          fsdp.zero_grad();
          net->loss(rows[static_cast<std::size_t>(rank)]).backward();
          optimizer.step();
        }
        expect_same_bits(full_parameters(fsdp), master->parameters());
        EXPECT_THROW(fsdp.summon_full_parameters(/*write_back=*/true), Error);
      });
      EXPECT_EQ(errors, nothing(size));
    }
  }
}

// Claim 15. Sums of squares in f64: in whatever order, two of P terms differ by at most P * 2^-53 of their value.
TEST_P(FsdpRanks, ClipByTheNormOfTheWholeGradient) {
  torch::set_num_threads(1);
  const int size = GetParam();
  const std::vector<torch::Tensor> rows = rows_of_ranks(size);
  FsdpNet reference = make_fsdp_net(9);
  torch::optim::SGD reference_optimizer(reference->parameters(), 0.0);
  train_reference(reference, reference_optimizer, rows, 1);
  double squares = 0, elements = 0;
  for (const torch::Tensor& gradient : gradients_of(*reference)) {
    squares += gradient.to(torch::kFloat64).square().sum().item<double>();
    elements += static_cast<double>(gradient.numel());
  }
  const double norm = std::sqrt(squares);
  std::vector<FsdpNet> nets;
  for (int rank = 0; rank < size; ++rank) nets.push_back(make_fsdp_net(9));
  const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
    FsdpNet& net = nets[static_cast<std::size_t>(rank)];
    FullyShardedDataParallel fsdp(*net, comm, in_rank_order(Sharding::zero3));
    net->loss(rows[static_cast<std::size_t>(rank)]).backward();
    EXPECT_NEAR(fsdp.clip_grad_norm(norm / 3), norm, norm * elements * 0x1p-53);
    const Tensors clipped = full_gradients(fsdp), before = gradients_of(*reference);
    // The factor and the product are rounded to f32.
    for (std::size_t i = 0; i < clipped.size(); ++i) {
      EXPECT_TRUE(torch::allclose(clipped[i], before[i] / 3, 0x1p-21, 0x1p-126)) << i;
    }
  });
  EXPECT_EQ(errors, nothing(size));
}

TEST_P(FsdpRanks, MixFrozenAndTrainedParameters) {
  torch::set_num_threads(1);
  const int size = GetParam();
  const std::vector<torch::Tensor> rows = rows_of_ranks(size);
  const auto freeze = [](FsdpNet& net) {
    for (torch::Tensor& parameter : net->blocks[1]->parameters()) parameter.set_requires_grad(false);
    net->blocks[0]->up->weight.set_requires_grad(false);
    net->in->bias.set_requires_grad(false);
  };
  FsdpNet reference = make_fsdp_net(4);
  freeze(reference);
  const auto trained_of = [](const Tensors& all) {
    Tensors result;
    for (const torch::Tensor& tensor : all) {
      if (tensor.requires_grad()) result.push_back(tensor);
    }
    return result;
  };
  torch::optim::AdamW reference_optimizer(trained_of(reference->parameters()), torch::optim::AdamWOptions(1e-2));
  train_reference(reference, reference_optimizer, rows, 3);
  for (const Way& way : ways()) {
    std::vector<FsdpNet> nets;
    for (int rank = 0; rank < size; ++rank) {
      nets.push_back(make_fsdp_net(4));
      freeze(nets.back());
    }
    const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
      FsdpNet& net = nets[static_cast<std::size_t>(rank)];
      FullyShardedDataParallel fsdp(*net, comm, way.options);
      torch::optim::AdamW optimizer(trained_of(fsdp.parameters()), torch::optim::AdamWOptions(1e-2));
      for (int step = 0; step < 3; ++step) {
        fsdp.zero_grad();
        net->loss(rows[static_cast<std::size_t>(rank)]).backward();
        optimizer.step();
      }
      for (const torch::Tensor& shard : fsdp.parameters()) EXPECT_EQ(shard.requires_grad(), shard.grad().defined());
      expect_same_bits(full_parameters(fsdp), reference->parameters());
    });
    EXPECT_EQ(errors, nothing(size)) << way.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Fsdp, FsdpRanks, ::testing::Values(1, 2, 3, 4, 8), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tutti::training::fsdp_test
