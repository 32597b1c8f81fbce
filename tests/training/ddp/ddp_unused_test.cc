// Trained parameters that get no gradient: on one rank, on all, in some passes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/training/ddp/ddp_nets.h"
#include "tests/training/on_ranks.h"

namespace tutti::training::ddp_unused_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DdpOptions with(UnusedParameters unused) {
  DdpOptions options = small_buckets();
  options.unused = unused;
  return options;
}

/// Trains `steps` steps on `size` ranks; `uses(rank, step)`: whether that rank's loss depends on `extra`. The
/// reference's optimiser sees no gradient where no rank has one.
void train_and_compare(int size, int steps, UnusedParameters unused, const std::function<bool(int, int)>& uses) {
  std::vector<Net> nets;
  std::vector<torch::Tensor> rows;
  for (int rank = 0; rank < size; ++rank) {
    nets.push_back(make_net(3));
    rows.push_back(rows_of(rank));
  }
  Net reference = make_net(3);
  const auto options = torch::optim::AdamWOptions(1e-2).weight_decay(0.1);  // would move a parameter without gradient

  const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
    Net& net = nets[static_cast<std::size_t>(rank)];
    DistributedDataParallel ddp(*net, comm, with(unused));
    torch::optim::AdamW optimizer(net->parameters(), options);
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      net->use_extra = uses(rank, step);
      net->loss(rows[static_cast<std::size_t>(rank)]).backward();
      if (net->use_extra)
        EXPECT_THAT(ddp.unused_parameters(), IsEmpty());
      else
        EXPECT_THAT(ddp.unused_parameters(), ElementsAre("extra"));
      optimizer.step();
    }
    ddp.check_equal();
  });
  EXPECT_EQ(errors, nothing(size));

  torch::optim::AdamW optimizer(reference->parameters(), options);
  for (int step = 0; step < steps; ++step) {
    std::vector<Tensors> shards;
    bool used = false;
    for (int rank = 0; rank < size; ++rank) {
      zero_gradients(*reference);
      reference->use_extra = uses(rank, step);
      used = used || reference->use_extra;
      reference->loss(rows[static_cast<std::size_t>(rank)]).backward();
      shards.push_back(gradients_of(*reference));
    }
    const Tensors mean = average(shards);
    for (std::size_t i = 0; i < mean.size(); ++i) reference->parameters()[i].mutable_grad() = mean[i];
    if (!used) reference->extra.mutable_grad() = torch::Tensor();
    optimizer.step();
  }
  for (Net& net : nets) expect_same_bits(net->parameters(), reference->parameters());
}

class Sizes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(DdpUnused, Sizes, ::testing::Values(1, 2, 3, 4), ::testing::PrintToStringParamName());

TEST_P(Sizes, FoundInEachPass) {
  train_and_compare(GetParam(), 6, UnusedParameters::find, [](int rank, int step) { return (rank + step) % 2 == 0; });
}

TEST_P(Sizes, NoRankUsedIt) {
  train_and_compare(GetParam(), 3, UnusedParameters::find, [](int, int step) { return step == 1; });
  train_and_compare(GetParam(), 3, UnusedParameters::fixed, [](int, int) { return false; });
}

TEST_P(Sizes, FixedByTheFirstPass) {
  train_and_compare(GetParam(), 4, UnusedParameters::fixed, [](int rank, int) { return rank % 2 == 1; });
}

// The price of each way, in calls: a bitmap in every pass, or in the first one only. Beside them each pass compares
// steps.
TEST(DdpUnused, FixedAsksTheOthersOnce) {
  for (const UnusedParameters unused : {UnusedParameters::find, UnusedParameters::fixed}) {
    std::vector<Net> nets{make_net(1), make_net(1)};
    const std::vector<torch::Tensor> rows{rows_of(0), rows_of(1)};
    const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
      const auto i = static_cast<std::size_t>(rank);
      DdpOptions options = with(unused);
      options.broadcast_buffers = false;
      DistributedDataParallel ddp(*nets[i], comm, options);
      nets[i]->use_extra = rank == 0;
      const std::uint64_t before = comm.traffic().calls;
      for (int pass = 0; pass < 3; ++pass) nets[i]->loss(rows[i]).backward();
      const std::uint64_t bitmaps = unused == UnusedParameters::find ? 3 : 1;
      EXPECT_EQ(comm.traffic().calls - before, 3 * (ddp.buckets().size() + 1) + bitmaps);
    });
    EXPECT_EQ(errors, nothing(2));
  }
}

// A gradient that only a micro-batch without communication gave counts, too.
TEST(DdpUnused, UsedInOneMicroBatchIsUsed) {
  std::vector<Net> nets{make_net(1), make_net(1)};
  const std::vector<torch::Tensor> rows{rows_of(0), rows_of(1)};
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    const auto i = static_cast<std::size_t>(rank);
    DistributedDataParallel ddp(*nets[i], comm, with(UnusedParameters::find));
    nets[i]->zero_grad();
    {
      const auto guard = ddp.no_sync();
      nets[i]->loss(rows[i]).backward();
    }
    nets[i]->use_extra = false;
    nets[i]->loss(rows[i]).backward();
    EXPECT_THAT(ddp.unused_parameters(), IsEmpty());
  });
  EXPECT_EQ(errors, nothing(2));
  Net reference = make_net(1);
  std::vector<Tensors> shards;
  for (const torch::Tensor& x : rows) {
    zero_gradients(*reference);
    reference->use_extra = true;
    reference->loss(x).backward();
    reference->use_extra = false;
    reference->loss(x).backward();
    shards.push_back(gradients_of(*reference));
  }
  for (Net& net : nets) expect_same_bits(gradients_of(*net), average(shards));
}

TEST(DdpUnused, FixedRefusesAnotherSetAndNamesTheParameter) {
  const std::vector<torch::Tensor> rows{rows_of(0), rows_of(1)};
  for (const bool first : {false, true}) {
    std::vector<Net> nets{make_net(1), make_net(1)};
    const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
      const auto i = static_cast<std::size_t>(rank);
      DistributedDataParallel ddp(*nets[i], comm, with(UnusedParameters::fixed));
      nets[i]->use_extra = rank == 0 || first;
      nets[i]->loss(rows[i]).backward();
      nets[i]->use_extra = rank == 0 || !first;
      nets[i]->loss(rows[i]).backward();
    });
    const char* what =
        first ? "rank 1: DistributedDataParallel: parameter 'extra' got no gradient in this backward pass; "
                "it got one in the first"
              : "rank 1: DistributedDataParallel: parameter 'extra' got a gradient, and got none in the "
                "first backward pass";
    for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr(what));
  }
}

}  // namespace
}  // namespace tutti::training::ddp_unused_test
