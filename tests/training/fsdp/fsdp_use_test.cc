// What users do with FullyShardedDataParallel beside plain steps, and what they do wrong.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/training/fsdp/fsdp_nets.h"
#include "tests/training/on_ranks.h"
#include "training/abort.h"
#include "training/checkpointing/checkpoint.h"
#include "training/fsdp/shard_init.h"

namespace tutti::training::fsdp_use_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Body = std::function<void(int rank, Communicator comm, FsdpNet& net, const torch::Tensor& rows)>;

/// On `size` ranks with nets of their own (equal ones) and rows of their own.
std::vector<std::string> with_nets(int size, const Body& body) {
  std::vector<FsdpNet> nets;
  std::vector<torch::Tensor> rows;
  for (int rank = 0; rank < size; ++rank) {
    nets.push_back(make_fsdp_net(3));
    rows.push_back(rows_of(rank));
  }
  return on_ranks(size, [&](int rank, Communicator comm) {
    const auto i = static_cast<std::size_t>(rank);
    body(rank, std::move(comm), nets[i], rows[i]);
  });
}

Tensors gradients_of_ranks(int size, const std::function<void(FsdpNet&, int)>& prepare = {}) {
  torch::set_num_threads(1);
  FsdpNet reference = make_fsdp_net(3);
  std::vector<Tensors> shards;
  for (int rank = 0; rank < size; ++rank) {
    if (prepare) prepare(reference, rank);
    zero_gradients(*reference);
    reference->loss(rows_of(rank)).backward();
    shards.push_back(gradients_of(*reference));
  }
  return average(shards);
}

TEST(Units, PoliciesPickModules) {
  const auto names = [](const torch::nn::Module& model, const UnitPolicy& policy) {
    std::vector<std::string> result;
    for (const UnitParameters& unit : plan_units(model, policy)) result.push_back(unit.name);
    return result;
  };
  const FsdpNet net = make_fsdp_net(0);
  EXPECT_THAT(names(*net, by_block()), ElementsAre("", "block0", "block1", "block2"));
  EXPECT_THAT(names(*net, by_type<torch::nn::LayerNormImpl>()),
              ElementsAre("", "block0.norm", "block1.norm", "block2.norm"));
  EXPECT_THAT(names(*net, by_name({"block1"})), ElementsAre("", "block1"));
  EXPECT_THAT(names(*net, by_size(18'500)),
              ElementsAre("", "block0.up", "block0.down", "block1.up", "block1.down", "block2.up", "block2.down"));
  EXPECT_THAT(names(*net, by_size(20'000)), ElementsAre("", "block0", "block1", "block2"));
  EXPECT_THROW(names(*net, by_name({"block7"})), Error);
}

// A weight in two units belongs to the root unit, and gets the gradient of both uses.
TEST(Units, TiedWeightsBelongToTheRoot) {
  torch::set_num_threads(1);
  const auto tied = [] {
    torch::manual_seed(8);
    const torch::nn::Linear layer(7, 7);
    return torch::nn::Sequential(layer, torch::nn::Tanh(), layer);
  };
  torch::nn::Sequential reference = tied();
  reference->forward(rows_of(0)).pow(2).sum().backward();
  std::vector<torch::nn::Sequential> models{tied(), tied()};
  const torch::Tensor rows = rows_of(0);
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    torch::nn::Sequential& model = models[static_cast<std::size_t>(rank)];
    FsdpOptions options = in_rank_order(Sharding::zero3);
    options.units = by_name({"0", "2"});
    FullyShardedDataParallel fsdp(*model, comm, options);
    model->forward(rows).pow(2).sum().backward();
    EXPECT_EQ(fsdp.parameters().size(), 2u);
    EXPECT_THAT(fsdp.units(), ElementsAre(""));
    EXPECT_TRUE(same_bits(fsdp.full_gradient(0), reference->parameters()[0].grad()));
  });
  EXPECT_EQ(errors, nothing(2));
}

TEST(Fsdp, UnitsAreUsedInTheOrderOfForward) {
  const auto errors = with_nets(2, [](int, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
    std::swap(net->blocks[0], net->blocks[2]);  // used in another order than registered
    FullyShardedDataParallel fsdp(*net, comm);
    net->loss(rows).backward();
    EXPECT_THAT(fsdp.units(), ElementsAre("", "block2", "block1", "block0"));
  });
  EXPECT_EQ(errors, nothing(2));
}

// 2 groups of 2 ranks: shards inside a group, mean over the groups. ((g0 + g1) / 2 + (g2 + g3) / 2) / 2.
TEST(Fsdp, HybridShardingAveragesOverReplicas) {
  torch::set_num_threads(1);
  FsdpNet reference = make_fsdp_net(3);
  std::vector<Tensors> of_rank;
  for (int rank = 0; rank < 4; ++rank) {
    zero_gradients(*reference);
    reference->loss(rows_of(rank)).backward();
    of_rank.push_back(gradients_of(*reference));
  }
  const Tensors mean = average({average({of_rank[0], of_rank[1]}), average({of_rank[2], of_rank[3]})});
  for (const Sharding sharding : {Sharding::zero1, Sharding::zero2, Sharding::zero3}) {
    const auto errors = with_nets(4, [&](int rank, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
      FsdpOptions options = in_rank_order(sharding);
      options.replicas = comm.split(rank % 2, rank);
      FullyShardedDataParallel fsdp(*net, comm.split(rank / 2, rank), options);
      net->loss(rows).backward();
      expect_same_bits(full_gradients(fsdp), mean);
    });
    EXPECT_EQ(errors, nothing(4));
  }
}

TEST(Fsdp, EvaluationSeesTheStepsBetween) {
  torch::set_num_threads(1);
  const auto errors = with_nets(2, [&](int, Communicator comm, FsdpNet& net, const torch::Tensor&) {
    const torch::Tensor x = torch::ones({2, 7});
    FullyShardedDataParallel fsdp(*net, comm, in_rank_order(Sharding::zero2));
    const torch::NoGradGuard no_grad;
    const torch::Tensor before = net->forward(x);
    const std::uint64_t gathers = fsdp.stats().gathers;
    EXPECT_TRUE(same_bits(net->forward(x), before));
    EXPECT_EQ(fsdp.stats().gathers, gathers);  // nothing was written in between
    for (torch::Tensor& shard : fsdp.parameters()) shard.mul_(0.5);
    EXPECT_FALSE(same_bits(net->forward(x), before));
  });
  EXPECT_EQ(errors, nothing(2));
}

TEST(Fsdp, ActivationCheckpointsGiveTheSameBits) {
  const Tensors mean = gradients_of_ranks(3);
  const auto errors = with_nets(3, [&](int, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
    FullyShardedDataParallel fsdp(*net, comm, in_rank_order(Sharding::zero3));
    CheckpointOptions options;
    options.default_generators = false;
    torch::Tensor x = net->in->forward(rows);
    for (FsdpBlock& block : net->blocks) {
      x = checkpoint(
          *block, [block](const torch::Tensor& y) mutable { return block->forward(y); }, x, options);
    }
    ((torch::matmul(x, net->in->weight) * net->scale) * net->extra.sum()).pow(2).mean().backward();
    expect_same_bits(full_gradients(fsdp), mean);
    EXPECT_EQ(fsdp.memory().gathered, 0u);
  });
  EXPECT_EQ(errors, nothing(3));
}

TEST(Fsdp, SummonedParametersAreWholeAndWrittenBack) {
  const auto errors = with_nets(3, [](int, Communicator comm, FsdpNet& net, const torch::Tensor&) {
    FullyShardedDataParallel fsdp(*net, comm);
    {
      const auto whole = fsdp.summon_full_parameters(/*write_back=*/true);
      const torch::NoGradGuard no_grad;
      net->blocks[1]->down->bias.fill_(7);
      EXPECT_THROW(static_cast<void>(fsdp.summon_full_parameters()), Error);
    }
    EXPECT_EQ(fsdp.memory().gathered, 0u);
    for (const NamedTensor& shard : fsdp.named_parameters()) {
      if (shard.name == "block1.down.bias") {
        EXPECT_TRUE(shard.tensor.eq(7).all().item<bool>());
      }
    }
    {
      const auto whole = fsdp.summon_full_parameters();  // what is written now is lost
      const torch::NoGradGuard no_grad;
      net->scale.fill_(-1);
    }
    EXPECT_EQ(fsdp.full_parameter(0).item<float>(), 1.5F);
  });
  EXPECT_EQ(errors, nothing(3));
}

TEST(Fsdp, AParameterThatNoRankUsedHasNoGradient) {
  const auto unused = [](FsdpNet& net, int) { net->use_extra = false; };
  torch::set_num_threads(1);
  FsdpNet reference = make_fsdp_net(3);
  const auto errors = with_nets(2, [&](int rank, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
    unused(net, rank);
    FsdpOptions options = in_rank_order(Sharding::zero3);
    options.allow_unused = true;
    FullyShardedDataParallel fsdp(*net, comm, options);
    net->loss(rows).backward();
    for (const NamedTensor& shard : fsdp.named_parameters()) {
      EXPECT_EQ(shard.tensor.grad().defined(), shard.name != "extra") << shard.name;
    }
  });
  EXPECT_EQ(errors, nothing(2));
}

TEST(Fsdp, AParameterThatSomeRanksUsedGetsTheirShare) {
  const Tensors mean = gradients_of_ranks(3, [](FsdpNet& net, int rank) { net->use_extra = rank == 1; });
  const auto errors = with_nets(3, [&](int rank, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
    net->use_extra = rank == 1;
    FsdpOptions options = in_rank_order(Sharding::zero3);
    options.allow_unused = true;
    FullyShardedDataParallel fsdp(*net, comm, options);
    net->loss(rows).backward();
    expect_same_bits(full_gradients(fsdp), mean);
  });
  EXPECT_EQ(errors, nothing(3));
}

TEST(Fsdp, AnUnusedParameterIsNamedOnAllRanks) {
  const auto errors = with_nets(3, [](int rank, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
    net->use_extra = rank != 1;
    FullyShardedDataParallel fsdp(*net, comm);
    net->loss(rows).backward();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 1: FullyShardedDataParallel: parameter 'extra' got no gradient"),
                                 HasSubstr("allow_unused"))));
}

// Backward gathers nothing here, so the others wait for this rank in the reductions.
TEST(Fsdp, ARankThatThrowsInItsStepBringsTheOthersDown) {
  const auto errors = with_nets(3, [](int rank, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
    FullyShardedDataParallel fsdp(*net, comm, {.reshard = Reshard::never});
    or_abort(fsdp.communicators(), "training step", [&] {
      const torch::Tensor loss = net->loss(rows);
      if (rank == 2) throw std::runtime_error("the disk is full");
      loss.backward();
    });
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 2: training step: the disk is full")));
}

TEST(Fsdp, AShardedParameterSaysSoOnOtherThreads) {
  const auto errors = with_nets(2, [](int, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
    FullyShardedDataParallel fsdp(*net, comm);
    std::string error;
    std::thread([&] {
      try {
        net->forward(rows);
      } catch (const std::exception& caught) {
        error = caught.what();
      }
    }).join();
    EXPECT_THAT(error,
                AllOf(HasSubstr("parameter 'in."), HasSubstr("is sharded"), HasSubstr("summon_full_parameters")));
  });
  EXPECT_EQ(errors, nothing(2));
}

TEST(Fsdp, MistakesAreNamed) {
  const auto errors = with_nets(2, [](int, Communicator comm, FsdpNet& net, const torch::Tensor&) {
    const auto sentence = [&](const std::function<void()>& mistake) -> std::string {
      try {
        mistake();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::invalid_argument);
        return error.what();
      }
      return "nothing was thrown";
    };
    FsdpOptions options;
    options.prefetch = -1;
    EXPECT_THAT(sentence([&] { FullyShardedDataParallel(*net, comm, options); }), HasSubstr("prefetch is -1"));
    torch::nn::Linear integers(2, 2);
    integers->to(torch::kComplexFloat);
    EXPECT_THAT(sentence([&] { FullyShardedDataParallel(*integers, comm); }),
                AllOf(HasSubstr("parameter 'weight'"), HasSubstr("ComplexFloat")));
    const FullyShardedDataParallel fsdp(*net, comm);
    EXPECT_THAT(sentence([&] { FullyShardedDataParallel(*net, comm); }), HasSubstr("has a gradient hook already"));
  });
  EXPECT_EQ(errors, nothing(2));
}

// The CPU serves as the device: the same way as to any other, through host blocks and back.
TEST(Fsdp, OffloadGivesTheSameBits) {
  const Tensors mean = gradients_of_ranks(3);
  for (const Sharding sharding : {Sharding::zero1, Sharding::zero2, Sharding::zero3}) {
    const auto errors = with_nets(3, [&](int, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
      FsdpOptions options = in_rank_order(sharding);
      options.compute_device = torch::kCPU;
      FullyShardedDataParallel fsdp(*net, comm, options);
      for (int step = 0; step < 2; ++step) {
        fsdp.zero_grad();
        net->loss(rows).backward();
        expect_same_bits(full_gradients(fsdp), mean);
      }
      const auto whole = fsdp.summon_full_parameters();
      expect_same_bits(net->parameters(), full_parameters(fsdp));
    });
    EXPECT_EQ(errors, nothing(3));
  }
}

// As the engine does it for devices: a thread without a watch of its own, with the state of the thread it works for.
TEST(Fsdp, OperatorsOfTheEnginesOwnThreadsAreSeen) {
  const auto errors = with_nets(2, [&](int, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
    FullyShardedDataParallel fsdp(*net, comm);
    const torch::Tensor here = net->forward(rows).detach();
    const at::ThreadLocalState state;
    torch::Tensor there;
    std::thread([&] {
      const at::ThreadLocalStateGuard guard(state);
      torch::set_num_threads(1);
      there = net->forward(rows).detach();
    }).join();
    EXPECT_TRUE(same_bits(here, there));
  });
  EXPECT_EQ(errors, nothing(2));
}

std::size_t resident_pages(const torch::Tensor& tensor) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) / page * page;
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) + tensor.nbytes();
  std::vector<unsigned char> pages((end - begin + page - 1) / page);
  EXPECT_EQ(::mincore(reinterpret_cast<void*>(begin), end - begin, pages.data()), 0);
  return static_cast<std::size_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return p & 1; }));
}

TEST(ShardInit, KeepsOwnRowsOfTheOrdinaryModel) {
  constexpr int kSize = 4;
  const auto make = [] { return make_fsdp_net(6, 2, 512, 1024); };
  const FsdpNet ordinary = make();
  std::vector<FsdpNet> nets;
  for (int rank = 0; rank < kSize; ++rank) {
    const ShardInit guard(rank, kSize);
    nets.push_back(make());
    const torch::Tensor& weight = nets.back()->blocks[0]->up->weight;  // 2 MiB
    EXPECT_LE(resident_pages(weight), weight.nbytes() / kSize / static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + 3);
  }
  const auto errors = on_ranks(kSize, [&](int rank, Communicator comm) {
    FsdpOptions options;
    options.values = Values::own_rows;
    FullyShardedDataParallel fsdp(*nets[static_cast<std::size_t>(rank)], comm, options);
    expect_same_bits(full_parameters(fsdp), ordinary->parameters());
  });
  EXPECT_EQ(errors, nothing(kSize));
}

TEST(ShardInit, AReadOfRowsThatAreGoneIsAnError) {
  const ShardInit guard(1, 2);
  const torch::NoGradGuard no_grad;
  const auto parameter = [] { return torch::empty({1024, 1024}, torch::requires_grad()).normal_(); };
  torch::Tensor a = parameter(), b = parameter();
  b.div_(2);  // of the operator before: all there
  try {
    a.div_(a.norm());
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("ShardInit: aten::"), HasSubstr("[1024, 1024]"), HasSubstr("rank 1")));
  }
}

// T9: as training/clip.h has it for every strategy.
TEST(FsdpUse, T9AnInfiniteGradientIsNotSpread) {
  const auto errors = with_nets(2, [](int, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
    FullyShardedDataParallel fsdp(*net, std::move(comm));
    fsdp.zero_grad();
    net->loss(rows).backward();
    const auto gradients = [&] {
      Tensors all;
      for (const torch::Tensor& shard : fsdp.parameters()) all.push_back(shard.grad().clone());
      return all;
    };
    const auto equal = [](const Tensors& a, const Tensors& b) {
      bool same = a.size() == b.size();
      for (std::size_t i = 0; same && i < a.size(); ++i) same = torch::equal(a[i], b[i]);
      return same;
    };
    const Tensors before = gradients();
    EXPECT_GT(fsdp.clip_grad_norm(0), 0);
    EXPECT_TRUE(equal(gradients(), before)) << "0 only measures";
    for (const torch::Tensor& shard : fsdp.parameters()) {
      if (shard.numel() > 0) shard.grad().view({-1})[0] = std::numeric_limits<double>::infinity();
    }
    const Tensors infinite = gradients();
    EXPECT_TRUE(std::isinf(fsdp.clip_grad_norm(1)));
    EXPECT_TRUE(equal(gradients(), infinite));
  });
  EXPECT_EQ(errors, nothing(2));
}

TEST(FsdpUse, T5GradientsOfGradientsAreRefused) {
  const auto errors = with_nets(2, [](int, Communicator comm, FsdpNet& net, const torch::Tensor& rows) {
    FullyShardedDataParallel fsdp(*net, std::move(comm));
    net->loss(rows).backward({}, /*keep_graph=*/true, /*create_graph=*/true);
  });
  EXPECT_THAT(errors, Each(HasSubstr("backward with create_graph is not supported")));
}

TEST(FsdpUse, T6TwoTensorsOfOneMemoryAreRefused) {
  const auto errors = with_nets(2, [](int, Communicator comm, FsdpNet& net, const torch::Tensor&) {
    net->blocks[1]->up->weight.set_data(net->blocks[0]->up->weight);
    FullyShardedDataParallel fsdp(*net, std::move(comm));
  });
  EXPECT_THAT(errors,
              Each(HasSubstr("parameters 'block0.up.weight' and 'block1.up.weight' are two tensors of one memory")));
}

// Rank 1 is a step ahead: its loss used no parameter, its backward was left out, or the whole step.
TEST(FsdpUse, T1RanksInDifferentStepsAreFound) {
  Options options;
  options.timeout = std::chrono::seconds(20);
  for (const Sharding sharding : {Sharding::zero1, Sharding::zero2, Sharding::zero3}) {
    for (const std::string slip : {"no parameter", "no backward", "no step"}) {
      for (const int size : {2, 3}) {
        const auto began = std::chrono::steady_clock::now();
        std::vector<FsdpNet> nets;
        for (int rank = 0; rank < size; ++rank) nets.push_back(make_fsdp_net(3));
        const auto errors = on_ranks(
            size,
            [&](int rank, Communicator comm) {
              FsdpNet& net = nets[static_cast<std::size_t>(rank)];
              FsdpOptions fsdp_options;
              fsdp_options.sharding = sharding;
              FullyShardedDataParallel fsdp(*net, std::move(comm), fsdp_options);
              torch::optim::AdamW optimizer(fsdp.parameters());
              for (int step = 0; step < 3; ++step) {
                const bool slips = rank == 1 && step == 1;
                fsdp.zero_grad();
                if (slips && slip == "no step") continue;
                torch::Tensor loss = net->loss(rows_of(rank));
                if (slips && slip == "no backward") continue;
                if (slips) loss = torch::zeros({}, torch::requires_grad());
                loss.backward();
                optimizer.step();
              }
            },
            options);
        EXPECT_THAT(errors, Each(HasSubstr("the ranks' steps differ")))
            << slip << ", zero" << static_cast<int>(sharding) + 1;
        EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
      }
    }
  }
}

TEST(FsdpUse, OptionsThatDifferAreNamed) {
  const std::pair<const char*, std::function<void(FsdpOptions&)>> changes[] = {
      {"sharding", [](FsdpOptions& o) { o.sharding = Sharding::zero2; }},
      {"prefetch", [](FsdpOptions& o) { o.prefetch = 0; }},
      {"values", [](FsdpOptions& o) { o.values = Values::own_rows; }},
      {"reduce_type", [](FsdpOptions& o) { o.reduce_type = torch::kFloat64; }},
      {"allow_unused", [](FsdpOptions& o) { o.allow_unused = true; }}};
  for (const auto& [name, change] : changes) {
    const auto errors = on_ranks(2, [&, &change = change](int rank, Communicator comm) {
      FsdpNet net = make_fsdp_net(3);
      FsdpOptions options;
      if (rank == 1) change(options);
      FullyShardedDataParallel fsdp(*net, std::move(comm), options);
    });
    EXPECT_THAT(errors, Each(HasSubstr(fmt::format("option '{}' of rank 1 is not that of rank 0", name))));
  }
}

// zero3 gathers in each forward pass: one that the others do not make waits for them, and they for it.
TEST(FsdpUse, AForwardPassOfOneRankIsNotBlamedOnTheOthers) {
  Options options;
  options.timeout = std::chrono::milliseconds(1500);
  const auto errors = on_ranks(
      2,
      [&](int rank, Communicator comm) {
        FsdpNet net = make_fsdp_net(3);
        FullyShardedDataParallel fsdp(*net, std::move(comm));
        torch::optim::SGD optimizer(fsdp.parameters(), 1e-2);
        for (int step = 0; step < 2; ++step) {
          fsdp.zero_grad();
          net->loss(rows_of(rank)).backward();
          optimizer.step();
          const torch::NoGradGuard no_grad;
          if (rank == 0) (void)net->loss(rows_of(rank));
        }
      },
      options);
  EXPECT_THAT(errors, Each(HasSubstr("the ranks' steps differ")));
}

TEST(FsdpUse, T8ASparseGradientIsRefusedOnAllRanks) {
  const torch::Tensor words = torch::tensor({1, 2});
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(rank == 1));
    FullyShardedDataParallel fsdp(*embedding, std::move(comm));
    fsdp.zero_grad();
    embedding->forward(words).sum().backward();
  });
  EXPECT_THAT(errors, Each(HasSubstr("parameter 'weight' got a Sparse gradient")));
}

}  // namespace
}  // namespace tutti::training::fsdp_use_test
