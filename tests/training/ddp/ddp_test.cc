#include "training/ddp/ddp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <stdexcept>

#include "tests/training/ddp/ddp_nets.h"
#include "tests/training/on_ranks.h"

namespace tutti::training::ddp_test {
namespace {

using ::testing::HasSubstr;

class DdpRanks : public ::testing::TestWithParam<int> {};

TEST_P(DdpRanks, TrainAsOneProcessThatAddsTheirGradients) {
  const int size = GetParam();
  constexpr int kSteps = 5;
  std::vector<Net> nets;
  std::vector<torch::Tensor> rows;
  for (int rank = 0; rank < size; ++rank) {
    nets.push_back(make_net(static_cast<std::uint64_t>(rank)));  // DDP must make them equal
    rows.push_back(rows_of(rank));
  }
  Net reference = make_net(0);

  const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
    Net& net = nets[static_cast<std::size_t>(rank)];
    DistributedDataParallel ddp(*net, comm, small_buckets());
    EXPECT_GT(ddp.buckets().size(), 2u);
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
    for (int step = 0; step < kSteps; ++step) {
      if (step % 3 == 0) ddp.zero_grad();
      if (step % 3 == 1) optimizer.zero_grad();  // gradients become none: the hook has to put them back
      if (step % 3 == 2) optimizer.zero_grad(/*set_to_none=*/false);
      net->loss(rows[static_cast<std::size_t>(rank)]).backward();
      optimizer.step();
    }
    ddp.check_equal();
    EXPECT_EQ(ddp.stats().passes, static_cast<std::uint64_t>(kSteps));
    EXPECT_EQ(ddp.stats().reductions, static_cast<std::uint64_t>(kSteps) * ddp.buckets().size());
    EXPECT_EQ(ddp.stats().bytes, kSteps * sizeof(float) * (7 * 31 + 31 + 31 * 29 + 29 + 29 * 3 + 3 + 3));
  });
  EXPECT_EQ(errors, nothing(size));

  torch::optim::AdamW optimizer(reference->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Tensors> shards;
    for (const torch::Tensor& x : rows) {
      zero_gradients(*reference);
      reference->loss(x).backward();
      shards.push_back(gradients_of(*reference));
    }
    const Tensors mean = average(shards);
    for (std::size_t i = 0; i < mean.size(); ++i) reference->parameters()[i].mutable_grad() = mean[i];
    optimizer.step();
  }
  for (Net& net : nets) {
    expect_same_bits(net->parameters(), reference->parameters());
    expect_same_bits(net->buffers(), reference->buffers());
  }
}

TEST_P(DdpRanks, AccumulateWithoutCommunicationUnderNoSync) {
  const int size = GetParam();
  constexpr int kMicro = 3;
  std::vector<Net> nets;
  std::vector<std::vector<torch::Tensor>> rows;
  for (int rank = 0; rank < size; ++rank) {
    nets.push_back(make_net(5));
    rows.emplace_back();
    for (int micro = 0; micro < kMicro; ++micro) rows.back().push_back(rows_of(rank, micro));
  }
  Net reference = make_net(5);

  const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
    Net& net = nets[static_cast<std::size_t>(rank)];
    DistributedDataParallel ddp(*net, comm, small_buckets());
    ddp.zero_grad();
    for (int micro = 0; micro < kMicro; ++micro) {
      const torch::Tensor loss =
          net->loss(rows[static_cast<std::size_t>(rank)][static_cast<std::size_t>(micro)]) / kMicro;
      if (micro + 1 < kMicro) {
        const auto guard = ddp.no_sync();
        loss.backward();
        EXPECT_EQ(ddp.stats().reductions, 0u);
      } else {
        loss.backward();
      }
    }
    EXPECT_EQ(ddp.stats().reductions, ddp.buckets().size());
  });
  EXPECT_EQ(errors, nothing(size));

  std::vector<Tensors> shards;
  for (const auto& micros : rows) {
    zero_gradients(*reference);
    for (const torch::Tensor& x : micros) (reference->loss(x) / kMicro).backward();
    shards.push_back(gradients_of(*reference));
  }
  for (Net& net : nets) expect_same_bits(gradients_of(*net), average(shards));
}

TEST_P(DdpRanks, AverageEveryFloatingType) {
  const int size = GetParam();
  for (const torch::ScalarType type : {torch::kFloat64, torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
    SCOPED_TRACE(c10::toString(type));
    std::vector<Net> nets;
    std::vector<torch::Tensor> rows;
    for (int rank = 0; rank < size; ++rank) {
      nets.push_back(make_net(3, type));
      rows.push_back(rows_of(rank, 0, type));
    }
    Net reference = make_net(3, type);
    const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
      Net& net = nets[static_cast<std::size_t>(rank)];
      DistributedDataParallel ddp(*net, comm, small_buckets());
      net->loss(rows[static_cast<std::size_t>(rank)]).backward();
    });
    EXPECT_EQ(errors, nothing(size));
    std::vector<Tensors> shards;
    for (const torch::Tensor& x : rows) {
      zero_gradients(*reference);
      reference->loss(x).backward();
      shards.push_back(gradients_of(*reference));
    }
    for (Net& net : nets) expect_same_bits(gradients_of(*net), average(shards));
  }
}

INSTANTIATE_TEST_SUITE_P(Ddp, DdpRanks, ::testing::Values(1, 2, 3, 4), ::testing::PrintToStringParamName());

// Two rounds of backward without zeroing add up: avg(avg(a) + b) = avg(a) + avg(b), exactly so for two equal ranks.
TEST(Ddp, ASecondBackwardAddsToTheFirst) {
  std::vector<Net> nets{make_net(1), make_net(1)};
  Net reference = make_net(1);
  const torch::Tensor x = rows_of(0);
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    Net& net = nets[static_cast<std::size_t>(rank)];
    DistributedDataParallel ddp(*net, comm, small_buckets());
    net->loss(x).backward();
    net->loss(x).backward();
    EXPECT_EQ(ddp.stats().passes, 2u);
  });
  EXPECT_EQ(errors, nothing(2));
  zero_gradients(*reference);
  reference->loss(x).backward();
  reference->loss(x).backward();
  for (Net& net : nets) expect_same_bits(gradients_of(*net), gradients_of(*reference));
}

TEST(Ddp, TwoModelsInOneBackward) {
  std::vector<Net> left{make_net(1), make_net(1)}, right{make_net(2), make_net(2)};
  const std::vector<torch::Tensor> rows{rows_of(0), rows_of(1)};
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    const auto i = static_cast<std::size_t>(rank);
    DistributedDataParallel a(*left[i], comm, small_buckets());
    DistributedDataParallel b(*right[i], comm.split(0, rank), small_buckets());
    (left[i]->loss(rows[i]) + right[i]->loss(rows[i])).backward();
  });
  EXPECT_EQ(errors, nothing(2));
  for (const std::vector<Net>& nets : {left, right}) expect_same_bits(gradients_of(*nets[0]), gradients_of(*nets[1]));
}

TEST(Ddp, GradientsStayInTheirBucketsAndOutliveTheObject) {
  Net net = make_net(1);
  const torch::Tensor x = rows_of(0);
  const auto errors = on_ranks(1, [&](int, Communicator comm) {
    DistributedDataParallel ddp(*net, comm, small_buckets());
    std::vector<void*> before;
    for (const torch::Tensor& parameter : net->parameters()) before.push_back(parameter.grad().data_ptr());
    net->loss(x).backward();
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(net->parameters()[i].grad().data_ptr(), before[i]);
    net->zero_grad();  // to none
    net->loss(x).backward();
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(net->parameters()[i].grad().data_ptr(), before[i]);
  });
  EXPECT_EQ(errors, nothing(1));
  const Tensors first = gradients_of(*net);
  net->zero_grad();
  net->loss(x).backward();  // no hook is left behind
  expect_same_bits(gradients_of(*net), first);
}

TEST(Ddp, FrozenParametersAreSharedButNotReduced) {
  std::vector<Net> nets{make_net(1), make_net(2)};
  const std::vector<torch::Tensor> rows{rows_of(0), rows_of(1)};
  for (Net& net : nets) net->middle->weight.set_requires_grad(false);
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    const auto i = static_cast<std::size_t>(rank);
    DistributedDataParallel ddp(*nets[i], comm, small_buckets());
    nets[i]->loss(rows[i]).backward();
    EXPECT_FALSE(nets[i]->middle->weight.grad().defined());
    EXPECT_EQ(ddp.stats().bytes, sizeof(float) * (7 * 31 + 31 + 29 + 29 * 3 + 3 + 3));
  });
  EXPECT_EQ(errors, nothing(2));
  EXPECT_TRUE(same_bits(nets[0]->middle->weight, nets[1]->middle->weight));
}

TEST(Ddp, AParameterUnderTwoNamesIsReducedOnce) {
  struct Tied : torch::nn::Module {
    Tied() {
      weight = register_parameter("weight", torch::ones({4}));
      register_parameter("alias", weight);
    }
    torch::Tensor weight;
  };
  std::vector<Tied> nets(2);
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    Tied& net = nets[static_cast<std::size_t>(rank)];
    DistributedDataParallel ddp(net, comm);
    (net.weight * net.weight * (rank + 1)).sum().backward();
    EXPECT_EQ(ddp.stats().bytes, 4 * sizeof(float));
  });
  EXPECT_EQ(errors, nothing(2));
  for (Tied& net : nets) EXPECT_TRUE(torch::equal(net.weight.grad(), torch::full({4}, 3.0)));  // (2 + 4) / 2
}

TEST(Ddp, AMissingGradientIsNamedOnEveryRank) {
  std::vector<Net> nets{make_net(1), make_net(1), make_net(1)};
  const std::vector<torch::Tensor> rows{rows_of(0), rows_of(1), rows_of(2)};
  nets[1]->use_extra = false;
  const auto errors = on_ranks(3, [&](int rank, Communicator comm) {
    const auto i = static_cast<std::size_t>(rank);
    DistributedDataParallel ddp(*nets[i], comm, small_buckets());
    nets[i]->loss(rows[i]).backward();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error,
                HasSubstr("rank 1: DistributedDataParallel: parameter 'extra' got no gradient in this backward"));
  }
}

TEST(Ddp, OnlyTheFirstMissingGradientIsNamedAndTheRestCounted) {
  Net net = make_net(1);
  const auto errors = on_ranks(1, [&](int, Communicator comm) {
    DistributedDataParallel ddp(*net, comm, small_buckets());
    net->first->forward(rows_of(0)).sum().backward();
  });
  EXPECT_THAT(errors[0], HasSubstr("parameter 'extra' and 4 more got no gradient"));
}

TEST(Ddp, APlantedDifferenceIsFound) {
  std::vector<Net> nets{make_net(1), make_net(2), make_net(3)};
  const auto errors = on_ranks(3, [&](int rank, Communicator comm) {
    Net& net = nets[static_cast<std::size_t>(rank)];
    DistributedDataParallel ddp(*net, comm);
    ddp.check_equal();
    if (rank == 2) {
      torch::NoGradGuard no_grad;
      net->middle->bias[4] += 1e-6;
    }
    ddp.check_equal();
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "DistributedDataParallel: 'middle.bias' holds different values on rank 2 and on rank 0");
  }
}

TEST(Ddp, BroadcastBuffersMakesThemEqualAgain) {
  std::vector<Net> nets{make_net(1), make_net(1)};
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    Net& net = nets[static_cast<std::size_t>(rank)];
    DistributedDataParallel ddp(*net, comm);
    net->count += rank;
    EXPECT_THROW(ddp.check_equal(), Error);
    ddp.broadcast_buffers();
    ddp.check_equal();
  });
  EXPECT_EQ(errors, nothing(2));
}

TEST(Ddp, DifferentModelsAreRefused) {
  std::vector<std::shared_ptr<torch::nn::Module>> shapes{torch::nn::Linear(3, 4).ptr(), torch::nn::Linear(4, 3).ptr()};
  auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    DistributedDataParallel ddp(*shapes[static_cast<std::size_t>(rank)], comm);
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error,
              "DistributedDataParallel: 'weight' differs in name, type, shape, strides or requires_grad on rank 1 and "
              "on rank 0");
  }
  std::vector<std::shared_ptr<torch::nn::Module>> counts{
      torch::nn::Linear(3, 4).ptr(), torch::nn::Linear(torch::nn::LinearOptions(3, 4).bias(false)).ptr()};
  errors = on_ranks(2, [&](int rank, Communicator comm) {
    DistributedDataParallel ddp(*counts[static_cast<std::size_t>(rank)], comm);
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "DistributedDataParallel: the model of rank 1 has 1 parameters and buffers, that of rank 0 has 2");
  }
}

TEST(Ddp, ASecondOneOnTheSameModelIsRefused) {
  Net net = make_net(1);
  const auto errors = on_ranks(1, [&](int, Communicator comm) {
    DistributedDataParallel first(*net, comm);
    DistributedDataParallel second(*net, comm);
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 0: DistributedDataParallel: parameter 'extra' has a gradient hook already"));
}

/// Passes a tensor through; its backward throws.
struct Bomb : torch::autograd::Function<Bomb> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw std::runtime_error("boom");
  }
};

TEST(Ddp, ABackwardAfterOneThatThrewIsRefused) {
  Net net = make_net(1);
  const torch::Tensor x = rows_of(0);
  const auto errors = on_ranks(1, [&](int, Communicator comm) {
    DistributedDataParallel ddp(*net, comm, small_buckets());
    // The last layer gets its gradients, then the way down to the others blows up.
    EXPECT_THROW(net->last->forward(Bomb::apply(net->first->forward(x).slice(1, 0, 29))).sum().backward(),
                 std::exception);
    net->loss(x).backward();
  });
  EXPECT_THAT(errors[0], HasSubstr("in a backward pass that began before the previous one ended"));
}

}  // namespace
}  // namespace tutti::training::ddp_test
