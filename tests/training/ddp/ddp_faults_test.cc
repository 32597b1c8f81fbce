// What makes ranks' steps or models differ under DistributedDataParallel is found in the same step, by name. The
// numbers are those of the faults that users met (T1 and so on).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/training/ddp/ddp_nets.h"
#include "tests/training/on_ranks.h"

namespace tutti::training::ddp_faults_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

class Unused : public ::testing::TestWithParam<UnusedParameters> {};
INSTANTIATE_TEST_SUITE_P(DdpFaults, Unused,
                         ::testing::Values(UnusedParameters::refuse, UnusedParameters::find, UnusedParameters::fixed));

/// In step `missed` rank 1's loss reaches no parameter; its next backward meets that of rank 0's step.
template <class Optimizer, class OptimizerOptions>
void expect_missed_step_found(UnusedParameters unused, const OptimizerOptions& how, int missed) {
  std::vector<Net> nets{make_net(1), make_net(1)};
  const torch::Tensor x = rows_of(0);
  DdpOptions options = small_buckets();
  options.unused = unused;
  std::vector<int> passes{0, 0};
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    Net& net = nets[static_cast<std::size_t>(rank)];
    DistributedDataParallel ddp(*net, comm, options);
    Optimizer optimizer(net->parameters(), how);
    for (int step = 0; step < 4; ++step) {
      ddp.zero_grad();
      if (rank == 1 && step == missed) {
        x.detach().clone().requires_grad_().sum().backward();
      } else {
        net->loss(x).backward();
      }
      ++passes[static_cast<std::size_t>(rank)];
      optimizer.step();
    }
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("DistributedDataParallel: rank 1 has made 1 step without an exchange of "
                                           "gradients since its last one, and rank 0 no steps"),
                                 HasSubstr("calls average_gradients()"))));
  EXPECT_EQ(passes, (std::vector<int>{missed, missed + 1}));  // rank 0 does not come through that step
}

TEST_P(Unused, T1ALossThatReachesNoParameterIsFoundInTheNextPass) {
  for (const int missed : {0, 2}) {
    expect_missed_step_found<torch::optim::AdamW>(GetParam(), torch::optim::AdamWOptions(1e-2), missed);
    expect_missed_step_found<torch::optim::SGD>(GetParam(), torch::optim::SGDOptions(1e-2), missed);
  }
}

TEST(DdpFaults, T1StepsWithoutAGradientOnAllRanksAreNone) {
  std::vector<Net> nets{make_net(1), make_net(1)};
  const torch::Tensor x = rows_of(0);
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    Net& net = nets[static_cast<std::size_t>(rank)];
    DistributedDataParallel ddp(*net, comm, small_buckets());
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
    for (int step = 0; step < 4; ++step) {
      ddp.zero_grad();
      if (step != 1) net->loss(x).backward();
      optimizer.step();
    }
    if (rank == 0) {  // gradients that are thrown away are no step
      const auto guard = ddp.no_sync();
      ddp.zero_grad();
      net->loss(x).backward();
      ddp.zero_grad();
    }
    ddp.zero_grad();
    net->loss(x).backward();
    ddp.check_equal();
  });
  EXPECT_EQ(errors, nothing(2));
}

// As where ranks count micro-batches differently.
TEST(DdpFaults, T2AStepThatOneRankKeepsToItselfIsFoundInTheNextPass) {
  std::vector<Net> nets{make_net(1), make_net(1)};
  const torch::Tensor x = rows_of(0);
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    Net& net = nets[static_cast<std::size_t>(rank)];
    DistributedDataParallel ddp(*net, comm, small_buckets());
    torch::optim::SGD optimizer(net->parameters(), 1e-2);
    for (int step = 0; step < 4; ++step) {
      ddp.zero_grad();
      std::optional<DistributedDataParallel::NoSync> alone;
      if (rank == 1 && step == 1) alone.emplace(ddp.no_sync());
      net->loss(x).backward();
      alone.reset();
      optimizer.step();
    }
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 has made 1 step without an exchange of gradients")));
}

TEST(DdpFaults, T2AStepWithoutRowsCountsAsZeros) {
  std::vector<Net> nets{make_net(1), make_net(1)};
  Net alone = make_net(1);
  const torch::Tensor x = rows_of(0);
  alone->loss(x).backward();
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    Net& net = nets[static_cast<std::size_t>(rank)];
    DistributedDataParallel ddp(*net, comm, small_buckets());
    for (const bool by_join : {false, true}) {
      Join join(ddp);
      ddp.zero_grad();
      const double weight = by_join ? join.weigh(rank == 0 ? 5 : 0) : 2;
      EXPECT_EQ(weight, rank == 1 && by_join ? 0 : 2);
      if (rank == 0) {
        (net->loss(x) * weight).backward();
      } else {
        ddp.average_gradients();
      }
      expect_same_bits(gradients_of(*net), gradients_of(*alone));  // twice, and divided by two
    }
  });
  EXPECT_EQ(errors, nothing(2));
}

TEST(DdpFaults, T2JoinGoesThroughAStepInWhichNoRankHasRows) {
  std::vector<Net> nets{make_net(1), make_net(1)};
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    DistributedDataParallel ddp(*nets[static_cast<std::size_t>(rank)], comm, small_buckets());
    Join join(ddp);
    int shadows = 0;
    for (int step = 0; step < (rank == 0 ? 1 : 3); ++step) {
      EXPECT_EQ(join.weigh(0), 0);
      ddp.zero_grad();
      ddp.average_gradients();
    }
    join.finish([&] { ++shadows; });
    EXPECT_EQ(shadows, rank == 0 ? 2 : 0);
  });
  EXPECT_EQ(errors, nothing(2));
}

// The shorter rank has begun a step when it finds that it has no rows, and its optimiser goes on by the others' means.
TEST(DdpFaults, AStepBegunBeforeJoinEndsIsNoStepWithoutAGradient) {
  std::vector<Net> nets{make_net(1), make_net(1)};
  const torch::Tensor x = rows_of(0);
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    Net& net = nets[static_cast<std::size_t>(rank)];
    DistributedDataParallel ddp(*net, comm, small_buckets());
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
    for (int epoch = 0; epoch < 2; ++epoch) {
      Join join(ddp);
      int left = rank == 0 ? 1 : 3;
      for (;;) {
        ddp.zero_grad();
        if (left-- == 0) break;
        (net->loss(x) * join.weigh(5)).backward();
        optimizer.step();
      }
      join.finish([&] { optimizer.step(); });
    }
    ddp.check_equal();
  });
  EXPECT_EQ(errors, nothing(2));
}

struct Change {
  const char* name;
  std::function<void(Net&)> make;
  const char* sentence;
};

class Changes : public ::testing::TestWithParam<Change> {};

TEST_P(Changes, T3OfAModelThatIsWrappedAreRefused) {
  std::vector<Net> nets{make_net(1), make_net(1)};
  const torch::Tensor x = rows_of(0);
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    Net& net = nets[static_cast<std::size_t>(rank)];
    net->middle->bias.requires_grad_(false);
    DistributedDataParallel ddp(*net, comm, small_buckets());
    net->loss(x).backward();
    if (rank == 1) GetParam().make(net);
    ddp.zero_grad();
    net->loss(x.to(net->last->weight.scalar_type())).backward();
  });
  EXPECT_THAT(errors, Each(HasSubstr(std::string("rank 1: DistributedDataParallel: '") + GetParam().sentence +
                                     " after this object was made")));
}

INSTANTIATE_TEST_SUITE_P(
    DdpFaults, Changes,
    ::testing::Values(
        Change{"frozen", [](Net& net) { net->first->bias.requires_grad_(false); }, "first.bias' was frozen"},
        Change{"unfrozen", [](Net& net) { net->middle->bias.requires_grad_(true); }, "middle.bias' was unfrozen"},
        Change{"type", [](Net& net) { net->to(torch::kFloat64); }, "extra' changed from Float to Double"},
        Change{"replaced", [](Net& net) { net->replace_module("first", torch::nn::Linear(7, 31)); },
               "first.weight' was replaced or removed"},
        Change{"added", [](Net& net) { net->register_module("new", torch::nn::Linear(2, 2)); },
               "new.weight' was added"},
        Change{"buffer", [](Net& net) { net->register_buffer("new", torch::zeros(2)); }, "new' was added"},
        Change{"shape",
               [](Net& net) {
                 net->middle->bias.set_data(torch::zeros({1, 29}));
               },
               "middle.bias' changed its shape"}),
    [](const ::testing::TestParamInfo<Change>& info) { return std::string(info.param.name); });

TEST(DdpFaults, T4AGraphThatKeepsABufferSeesThatABroadcastChangedIt) {
  std::vector<Net> nets{make_net(1), make_net(1)};
  const torch::Tensor x = rows_of(0);
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    Net& net = nets[static_cast<std::size_t>(rank)];
    DistributedDataParallel ddp(*net, comm, small_buckets());
    const torch::Tensor first = net->loss(x);
    const torch::Tensor second = net->loss(x);
    first.backward();
    second.backward();
  });
  EXPECT_THAT(errors, Each(HasSubstr("modified by an inplace operation")));
}

TEST(DdpFaults, T5GradientsOfGradientsAreRefused) {
  Net net = make_net(1);
  const torch::Tensor x = rows_of(0);
  const auto errors = on_ranks(1, [&](int, Communicator comm) {
    DistributedDataParallel ddp(*net, comm, small_buckets());
    net->loss(x).backward({}, /*keep_graph=*/true, /*create_graph=*/true);
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 0: DistributedDataParallel: parameter '"),
                                 HasSubstr("backward with create_graph is not supported"))));
}

TEST_P(Unused, T7AParameterOfAnEarlierMicroBatchIsUsed) {
  std::vector<Net> nets{make_net(1), make_net(1)};
  Net alone = make_net(1);
  const torch::Tensor x = rows_of(0);
  DdpOptions options = small_buckets();
  options.unused = GetParam();
  alone->loss(x).backward();
  alone->use_extra = false;
  alone->loss(x).backward();
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    Net& net = nets[static_cast<std::size_t>(rank)];
    DistributedDataParallel ddp(*net, comm, options);
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      {
        const auto guard = ddp.no_sync();
        net->use_extra = true;
        net->loss(x).backward();
      }
      net->use_extra = false;
      net->loss(x).backward();
      expect_same_bits(gradients_of(*net), gradients_of(*alone));
    }
  });
  EXPECT_EQ(errors, nothing(2));
}

TEST(DdpFaults, T7OneThatIsUsedInTheStepBeforeAloneIsNot) {
  std::vector<Net> nets{make_net(1), make_net(1)};
  const torch::Tensor x = rows_of(0);
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    Net& net = nets[static_cast<std::size_t>(rank)];
    DistributedDataParallel ddp(*net, comm, small_buckets());
    net->loss(x).backward();
    net->use_extra = false;
    net->loss(x).backward();
  });
  EXPECT_THAT(errors, Each(HasSubstr("parameter 'extra' got no gradient")));
}

TEST(DdpFaults, T8ASparseGradientIsRefusedOnAllRanks) {
  const torch::Tensor words = torch::tensor({1, 2});
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(rank == 1));
    DistributedDataParallel ddp(*embedding, comm);
    embedding->zero_grad();
    embedding->forward(words).sum().backward();
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 1: DistributedDataParallel: parameter 'weight' got a Sparse gradient")));
}

TEST(DdpFaults, T11StridesThatDifferAreNamed) {
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    torch::nn::Conv2d conv(torch::nn::Conv2dOptions(4, 4, 3));
    if (rank == 1) conv->weight.set_data(conv->weight.contiguous(torch::MemoryFormat::ChannelsLast));
    DistributedDataParallel ddp(*conv, comm);
  });
  EXPECT_THAT(errors, Each(HasSubstr("'weight' differs in name, type, shape, strides or requires_grad on rank 1")));
}

}  // namespace
}  // namespace tutti::training::ddp_faults_test
