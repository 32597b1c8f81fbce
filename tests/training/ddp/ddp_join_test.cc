// Ranks with different numbers of batches, of different sizes: the same as one process with the true sample counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/training/ddp/ddp_nets.h"
#include "tests/training/on_ranks.h"

namespace tutti::training::ddp_join_test {
namespace {

using ::testing::HasSubstr;

/// f64, so that what is left of a difference is a mistake and not rounding: the two sums have other orders.
constexpr double kTolerance = 1e-12;

/// Rows of each batch, by rank.
using Counts = std::vector<std::vector<int>>;

torch::Tensor batch_of(int rank, std::size_t index, int rows) {
  torch::manual_seed(static_cast<std::uint64_t>(100 * rank) + index);
  return torch::randn({rows, 7}, torch::kFloat64);
}

/// 5, 3 and 4 batches; 1 to 6 rows each.
const Counts kUneven{{3, 1, 4, 2, 6}, {2, 5, 1}, {4, 4, 1, 3}};

void compare_with_one_process(const Counts& counts, UnusedParameters unused) {
  const int size = static_cast<int>(counts.size());
  std::vector<Net> nets;
  std::vector<std::vector<torch::Tensor>> batches(counts.size());
  std::size_t steps = 0;
  for (int rank = 0; rank < size; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    nets.push_back(make_net(7, torch::kFloat64));
    for (std::size_t i = 0; i < counts[r].size(); ++i) batches[r].push_back(batch_of(rank, i, counts[r][i]));
    steps = std::max(steps, counts[r].size());
  }
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
    const auto r = static_cast<std::size_t>(rank);
    DdpOptions ddp_options = small_buckets();
    ddp_options.unused = unused;
    DistributedDataParallel ddp(*nets[r], comm, ddp_options);
    torch::optim::SGD optimizer(nets[r]->parameters(), options);
    for (int epoch = 0; epoch < 2; ++epoch) {
      Join join(ddp);
      for (const torch::Tensor& x : batches[r]) {
        const double weight = join.weigh(x.size(0));
        optimizer.zero_grad();
        (nets[r]->loss(x) * weight).backward();
        optimizer.step();
      }
      join.finish([&] { optimizer.step(); });
    }
    ddp.check_equal();
    EXPECT_EQ(ddp.stats().passes, 2 * steps);
  });
  EXPECT_EQ(errors, nothing(size));

  Net reference = make_net(7, torch::kFloat64);
  torch::optim::SGD optimizer(reference->parameters(), options);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (std::size_t step = 0; step < steps; ++step) {
      Tensors rows;
      for (const auto& of_rank : batches) {
        if (step < of_rank.size()) rows.push_back(of_rank[step]);
      }
      optimizer.zero_grad();
      reference->loss(torch::cat(rows)).backward();  // the mean over all rows there are
      optimizer.step();
    }
  }
  for (std::size_t i = 0; i < reference->parameters().size(); ++i) {
    EXPECT_TRUE(torch::allclose(nets[0]->parameters()[i], reference->parameters()[i], kTolerance, kTolerance));
  }
}

TEST(DdpJoin, EqualsOneProcessWithTheTrueSampleCount) {
  for (const UnusedParameters unused : {UnusedParameters::refuse, UnusedParameters::find, UnusedParameters::fixed}) {
    compare_with_one_process(kUneven, unused);
  }
}

TEST(DdpJoin, ARankWithoutAnyBatch) {
  for (const UnusedParameters unused : {UnusedParameters::refuse, UnusedParameters::find, UnusedParameters::fixed}) {
    compare_with_one_process({{}, {2, 3}}, unused);
    compare_with_one_process({{4, 1, 1}, {}, {2}}, unused);
  }
}

TEST(DdpJoin, EvenRanksNeedNoShadows) { compare_with_one_process({{2, 2}, {2, 2}}, UnusedParameters::refuse); }

// Buffers come from a rank that still has inputs: rank 0 here has stopped, and its count stands still.
TEST(DdpJoin, BuffersComeFromARankThatStillTrains) {
  std::vector<Net> nets{make_net(1), make_net(1)};
  for (Net& net : nets) net->count.zero_();
  const torch::Tensor x = rows_of(0);
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    Net& net = nets[static_cast<std::size_t>(rank)];
    DistributedDataParallel ddp(*net, comm, small_buckets());
    Join join(ddp);
    for (int i = 0; i < (rank == 0 ? 1 : 4); ++i) {
      const double weight = join.weigh(5);
      net->count += 1;
      (net->loss(x) * weight).backward();
    }
    join.finish([] {});
    ddp.check_equal();
    EXPECT_EQ(net->count[0].item<int>(), 4);
  });
  EXPECT_EQ(errors, nothing(2));
}

TEST(DdpJoin, ACountBelowZeroIsNamedOnEveryRank) {
  std::vector<Net> nets{make_net(1), make_net(1)};
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    DistributedDataParallel ddp(*nets[static_cast<std::size_t>(rank)], comm);
    Join join(ddp);
    join.weigh(rank == 1 ? -2 : 3);
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("rank 1: Join::weigh: count is -2; it must be"));
}

}  // namespace
}  // namespace tutti::training::ddp_join_test
