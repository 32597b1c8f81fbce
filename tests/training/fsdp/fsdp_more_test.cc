// Uses of FullyShardedDataParallel that are not the plain step: passes between backward and step, parts of a model,
// several objects, changes after the set-up, and ends in the wrong order.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/training/fsdp/fsdp_nets.h"
#include "tests/training/on_ranks.h"
#include "training/abort.h"
#include "training/fsdp/shard_init.h"

namespace tutti::training::fsdp_more_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr Sharding kAll[] = {Sharding::zero1, Sharding::zero2, Sharding::zero3};

using Body = std::function<void(int rank, Communicator comm, FsdpNet& net, const torch::Tensor& rows)>;

/// On `size` ranks with nets of their own (equal ones) and the same rows, so one process has the mean gradient.
std::vector<std::string> with_nets(int size, const Body& body) {
  std::vector<FsdpNet> nets;
  for (int rank = 0; rank < size; ++rank) nets.push_back(make_fsdp_net(3));
  const torch::Tensor rows = rows_of(0);
  return on_ranks(size, [&](int rank, Communicator comm) {
    body(rank, std::move(comm), nets[static_cast<std::size_t>(rank)], rows);
  });
}

std::string sentence(const std::function<void()>& mistake) {
  try {
    mistake();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    return error.what();
  }
  return "nothing was thrown";
}

// torch::optim::SGD writes past LibTorch's counter of versions. What a pass after backward gathered must not be taken
// for the parameters after the step.
TEST(FsdpMore, APassBetweenBackwardAndStepSeesTheOldAndTheNextTheNewValues) {
  torch::set_num_threads(1);
  const torch::Tensor x = rows_of(0);
  FsdpNet reference = make_fsdp_net(3);
  torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
  reference->loss(x).backward();
  const torch::Tensor before = reference->forward(x).detach().clone();
  reference_optimizer.step();
  const torch::Tensor after = reference->forward(x).detach();
  for (const Sharding sharding : kAll) {
    SCOPED_TRACE(static_cast<int>(sharding));
    const auto errors = with_nets(2, [&](int, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
      FullyShardedDataParallel fsdp(*net, comm, in_rank_order(sharding));
      torch::optim::SGD optimizer(fsdp.parameters(), 0.1);
      net->loss(rows).backward();
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(same_bits(net->forward(rows), before));
      optimizer.step();
      EXPECT_TRUE(same_bits(net->forward(rows), after));
    });
    EXPECT_EQ(errors, nothing(2));
  }
}

// The unit after the part was on its way when the shards were written to.
TEST(FsdpMore, AStepAfterAPartOfTheModelIsSeenByAllUnits) {
  torch::set_num_threads(1);
  const torch::Tensor x = rows_of(0);
  FsdpNet reference = make_fsdp_net(3);
  const torch::NoGradGuard no_grad_here;
  for (torch::Tensor& parameter : reference->parameters()) parameter.mul_(0.5);
  const torch::Tensor after = reference->forward(x);
  const auto errors = with_nets(2, [&](int, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
    const torch::NoGradGuard no_grad;
    FullyShardedDataParallel fsdp(*net, comm, in_rank_order(Sharding::zero3));
    net->forward(rows);  // the order is known
    net->blocks[0]->forward(net->in->forward(rows));
    for (torch::Tensor& shard : fsdp.parameters()) shard.mul_(0.5);
    EXPECT_TRUE(same_bits(net->forward(rows), after));
  });
  EXPECT_EQ(errors, nothing(2));
}

TEST(FsdpMore, WhatSummonedParametersWereWithoutWriteBackIsNotSeenAgain) {
  torch::set_num_threads(1);
  for (const Sharding sharding : kAll) {
    SCOPED_TRACE(static_cast<int>(sharding));
    const auto errors = with_nets(2, [&](int, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
      const torch::NoGradGuard no_grad;
      FullyShardedDataParallel fsdp(*net, comm, in_rank_order(sharding));
      const torch::Tensor before = net->forward(rows);
      {
        const auto whole = fsdp.summon_full_parameters();
        for (torch::Tensor& parameter : net->parameters()) parameter.fill_(0.125);
      }
      EXPECT_TRUE(same_bits(net->forward(rows), before));
    });
    EXPECT_EQ(errors, nothing(2));
  }
}

TEST(FsdpMore, SummonedParametersStayWholeWhenTheObjectGoesFirst) {
  const FsdpNet ordinary = make_fsdp_net(3);
  for (const Sharding sharding : kAll) {
    const auto errors = with_nets(2, [&](int, Communicator comm, FsdpNet& net, const torch::Tensor&) {
      std::optional<FullyShardedDataParallel::FullParameters> whole;
      {
        FullyShardedDataParallel fsdp(*net, comm, in_rank_order(sharding));
        whole.emplace(fsdp.summon_full_parameters(/*write_back=*/true));
      }
      whole.reset();
      expect_same_bits(net->parameters(), ordinary->parameters());
    });
    EXPECT_EQ(errors, nothing(2));
  }
}

// T16: as where another network is trained by way of this one.
TEST(FsdpMore, WhatABackwardOnlyPassesThroughIsGivenUp) {
  const auto errors = with_nets(2, [&](int, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
    FullyShardedDataParallel fsdp(*net, comm);
    const torch::Tensor made = rows.clone().requires_grad_(true);
    for (int step = 0; step < 2; ++step) {
      (void)torch::autograd::grad({net->loss(made)}, {made});
      EXPECT_EQ(fsdp.memory().gathered, 0u);
      net->loss(rows).backward();
      EXPECT_EQ(fsdp.memory().gathered, 0u);
    }
  });
  EXPECT_EQ(errors, nothing(2));
}

TEST(FsdpMore, AParameterFrozenOrUnfrozenLaterIsNamed) {
  for (const bool frozen_before : {true, false}) {
    const auto errors = with_nets(2, [&](int, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
      net->blocks[1]->up->bias.set_requires_grad(!frozen_before);
      FullyShardedDataParallel fsdp(*net, comm);
      net->loss(rows).backward();
      net->blocks[1]->up->bias.set_requires_grad(frozen_before);  // the other way
      net->loss(rows).backward();
    });
    EXPECT_THAT(errors,
                Each(AllOf(HasSubstr("'block1.up.bias'"), HasSubstr(frozen_before ? "was unfrozen" : "was frozen"))));
  }
}

TEST(FsdpMore, AModuleOfAnotherTypeLaterIsNamed) {
  const auto errors = with_nets(2, [&](int, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
    FullyShardedDataParallel fsdp(*net, comm);
    net->loss(rows).backward();
    net->to(torch::kFloat64);
    net->loss(rows.to(torch::kFloat64)).backward();
  });
  EXPECT_THAT(errors, Each(HasSubstr("'scale' changed from Float to Double after")));
}

struct WithNothingImpl : torch::nn::Module {
  WithNothingImpl() {
    none = register_parameter("none", torch::zeros({0, 4}));
    empty_rows = register_parameter("empty_rows", torch::zeros({5, 0}));
    some = register_module("some", torch::nn::Linear(7, 3));
  }
  torch::Tensor loss(const torch::Tensor& x) {
    return torch::cat({some->forward(x), torch::matmul(x.narrow(1, 0, 4), none.t())}, 1).pow(2).sum() +
           empty_rows.sum();
  }
  torch::Tensor none, empty_rows;
  torch::nn::Linear some = nullptr;
};
TORCH_MODULE(WithNothing);

TEST(FsdpMore, ParametersWithoutElementsTakePart) {
  for (const Sharding sharding : kAll) {
    torch::set_num_threads(1);
    std::vector<WithNothing> models;
    for (int rank = 0; rank < 3; ++rank) {
      torch::manual_seed(4);
      models.emplace_back();
    }
    const torch::Tensor x = rows_of(0);
    const auto errors = on_ranks(3, [&](int rank, Communicator comm) {
      WithNothing& model = models[static_cast<std::size_t>(rank)];
      FullyShardedDataParallel fsdp(*model, comm, in_rank_order(sharding));
      torch::optim::AdamW optimizer(fsdp.parameters());
      for (int step = 0; step < 2; ++step) {
        fsdp.zero_grad();
        model->loss(x).backward();
        fsdp.clip_grad_norm(1);
        optimizer.step();
      }
      EXPECT_EQ(fsdp.full_parameter(0).sizes(), (std::vector<std::int64_t>{0, 4}));
    });
    EXPECT_EQ(errors, nothing(3));
  }
}

TEST(FsdpMore, MistakesAreNamed) {
  const auto errors = with_nets(2, [&](int, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
    net->in->weight.set_requires_grad(false);
    FullyShardedDataParallel fsdp(*net, comm);
    net->loss(rows).backward();
    EXPECT_THAT(sentence([&] { fsdp.clip_grad_norm(-1); }), AllOf(HasSubstr("clip_grad_norm"), HasSubstr("-1")));
    EXPECT_THAT(sentence([&] { fsdp.full_parameter(99); }), HasSubstr("99"));
    struct Holder : torch::nn::Module {
      explicit Holder(const torch::Tensor& tensor) { register_parameter("held", tensor, tensor.requires_grad()); }
    } holder(net->in->weight);
    FsdpOptions options;
    options.values = Values::own_rows;
    EXPECT_THAT(sentence([&] { FullyShardedDataParallel(holder, comm, options); }), HasSubstr("parameter 'held'"));
  });
  EXPECT_EQ(errors, nothing(2));
}

// Ranks of the other group wait for this group's means, on communicators that live on.
TEST(FsdpMore, AnErrorInOneGroupOfHybridShardingReachesTheOther) {
  Options quick;
  quick.timeout = std::chrono::seconds(60);
  std::vector<Communicator> keep(8);
  std::vector<FsdpNet> nets;
  for (int rank = 0; rank < 4; ++rank) nets.push_back(make_fsdp_net(3));
  const torch::Tensor rows = rows_of(0);
  std::vector<std::unique_ptr<FullyShardedDataParallel>> objects(4);
  const auto errors = on_ranks(
      4,
      [&](int rank, Communicator comm) {
        const auto i = static_cast<std::size_t>(rank);
        FsdpNet& net = nets[i];
        net->use_extra = rank != 1;
        keep[i] = comm.split(rank % 2, rank);
        keep[i + 4] = comm.split(rank / 2, rank);
        FsdpOptions options;
        options.replicas = keep[i];
        FullyShardedDataParallel fsdp(*net, keep[i + 4], options);
        net->loss(rows).backward();
      },
      quick);
  EXPECT_THAT(errors, Each(HasSubstr("rank 1: FullyShardedDataParallel: parameter 'extra' got no gradient")));
}

// A rank that throws in the middle of backward, with reductions under way on both sides.
TEST(FsdpMore, ARankThatThrowsInBackwardBringsTheOthersDown) {
  Options quick;
  quick.timeout = std::chrono::seconds(60);
  for (const Sharding sharding : kAll) {
    std::vector<FsdpNet> nets;
    for (int rank = 0; rank < 3; ++rank) nets.push_back(make_fsdp_net(3));
    const torch::Tensor rows = rows_of(0);
    const auto errors = on_ranks(
        3,
        [&](int rank, Communicator comm) {
          FsdpNet& net = nets[static_cast<std::size_t>(rank)];
          FullyShardedDataParallel fsdp(*net, comm, in_rank_order(sharding));
          or_abort(comm, "training step", [&] {
            torch::Tensor x = net->in->forward(rows);
            x = net->blocks[0]->forward(x);
            if (rank == 2) {
              x.register_hook([](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("no luck"); });
            }
            for (std::size_t i = 1; i < 3; ++i) x = net->blocks[i]->forward(x);
            ((torch::matmul(x, net->in->weight) * net->scale) * net->extra.sum()).pow(2).mean().backward();
          });
        },
        quick);
    EXPECT_THAT(errors, Each(::testing::Not(HasSubstr("timeout"))));
    EXPECT_THAT(errors[2], HasSubstr("rank 2: training step: no luck"));
    EXPECT_THAT(errors, Each(::testing::Not("")));
  }
}

struct SumImpl : torch::nn::Module {
  explicit SumImpl(std::int64_t n) {
    a = register_parameter("a", torch::randn({2, n / 2}));
    b = register_parameter("b", torch::randn({4, n / 4}));
  }
  torch::Tensor loss(const torch::Tensor& x) { return ((a.view({-1}) + b.view({-1})) * x).sum(); }
  torch::Tensor a, b;
};
TORCH_MODULE(Sum);

// Backward of a sum of views gives views of one gradient to both.
TEST(FsdpMore, GradientsThatShareMemoryAreReducedApart) {
  for (const std::int64_t n : {std::int64_t{64}, std::int64_t{1} << 16}) {  // packed, and not
    for (const Sharding sharding : kAll) {
      SCOPED_TRACE(fmt::format("{} elements, zero{}", n, static_cast<int>(sharding) + 1));
      torch::set_num_threads(1);
      torch::manual_seed(9);
      std::vector<Sum> models{Sum(n), Sum(n)};
      const std::vector<torch::Tensor> xs{torch::randn({n}), torch::randn({n})};
      const torch::Tensor mean = (xs[0] + xs[1]) / 2;
      const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
        Sum& model = models[static_cast<std::size_t>(rank)];
        FullyShardedDataParallel fsdp(*model, comm, in_rank_order(sharding));
        model->loss(xs[static_cast<std::size_t>(rank)]).backward();
        EXPECT_TRUE(same_bits(fsdp.full_gradient(0), mean.view({2, n / 2})));
        EXPECT_TRUE(same_bits(fsdp.full_gradient(1), mean.view({4, n / 4})));
        fsdp.parameters()[0].mutable_grad().zero_();
        EXPECT_TRUE(same_bits(fsdp.full_gradient(1), mean.view({4, n / 4})));
      });
      EXPECT_EQ(errors, nothing(2));
    }
  }
}

// Twice through one graph, two objects in one pass, and gradients that autograd::grad gives instead of .grad().
TEST(FsdpMore, GraphsAreUsedTwiceAndTogether) {
  torch::set_num_threads(1);
  const torch::Tensor x = rows_of(0);
  FsdpNet one = make_fsdp_net(3), two = make_fsdp_net(5);
  const auto loss_of = [](FsdpNet& first, FsdpNet& second, const torch::Tensor& rows) {
    return second->loss(first->forward(rows));
  };
  const auto check = [&](FsdpNet& first, FsdpNet& second, const torch::Tensor& rows) {
    const torch::Tensor loss = loss_of(first, second, rows);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward({}, /*retain_graph=*/true);
    torch::Tensor input = rows.clone().set_requires_grad(true);
    return torch::autograd::grad({loss_of(first, second, input)}, {input})[0];
  };
  zero_gradients(*one);
  zero_gradients(*two);
  const torch::Tensor of_input = check(one, two, x);
  for (const Sharding sharding : kAll) {
    const auto errors = with_nets(2, [&](int rank, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
      static std::mutex mutex;
      FsdpNet other = [&] {
        const std::scoped_lock lock(mutex);
        return make_fsdp_net(5);
      }();
      FullyShardedDataParallel fsdp(*net, comm, in_rank_order(sharding));
      FullyShardedDataParallel fsdp2(*other, comm.split(0, rank), in_rank_order(sharding));
      EXPECT_TRUE(same_bits(check(net, other, rows), of_input));
      expect_same_bits(full_gradients(fsdp), gradients_of(*one));
      expect_same_bits(full_gradients(fsdp2), gradients_of(*two));
    });
    EXPECT_EQ(errors, nothing(2));
  }
}

TEST(FsdpMore, OperatorsWithOutputsGivenAndViewsKept) {
  torch::set_num_threads(1);
  const torch::Tensor x = rows_of(0);
  FsdpNet reference = make_fsdp_net(3);
  const torch::Tensor expected = torch::matmul(x, reference->in->weight.t()).detach();
  const auto errors = with_nets(2, [&](int, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
    const torch::NoGradGuard no_grad;
    const torch::Tensor kept = net->in->weight.t();  // shares what comes and goes
    FullyShardedDataParallel fsdp(*net, comm, in_rank_order(Sharding::zero3, Reshard::always));
    const torch::Tensor of_module = net->in->weight.t();
    torch::Tensor out = torch::empty({5, 31});
    torch::matmul_out(out, rows, of_module);
    EXPECT_TRUE(same_bits(out, expected));
    net->forward(rows);
    out.zero_();
    torch::matmul_out(out, rows, of_module);
    EXPECT_TRUE(same_bits(out, expected));
    EXPECT_TRUE(same_bits(torch::matmul(rows, kept), expected));  // made before: the values of then
  });
  EXPECT_EQ(errors, nothing(2));
}

// What is filled under the guard and is no parameter stays whole.
TEST(ShardInitMore, BuffersStayWhole) {
  std::optional<ShardInit> guard(std::in_place, 1, 2);
  const torch::Tensor buffer = torch::empty({1024, 1024}).fill_(3);
  const torch::Tensor other = torch::empty({1024, 1024}).fill_(4);
  torch::Tensor weight = torch::empty({1024, 1024}).set_requires_grad(true);
  {
    const torch::NoGradGuard no_grad;
    weight.view({-1}).fill_(5);  // rows of a view are not the parameter's
  }
  guard.reset();
  EXPECT_TRUE(buffer.eq(3).all().item<bool>());
  EXPECT_TRUE(other.eq(4).all().item<bool>());
  EXPECT_TRUE(weight.eq(5).all().item<bool>());
}

}  // namespace
}  // namespace tutti::training::fsdp_more_test
