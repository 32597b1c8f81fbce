// What goes wrong in a pipeline ends on every rank, in one sentence, without a hang.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/training/on_ranks.h"
#include "tests/training/pipeline/pipeline_parts.h"
#include "training/pipeline/pipeline.h"

namespace tutti::training::pipeline_failure_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kRanks = 3, kMicroBatches = 6;

/// Throws in backward.
struct Fuse : torch::autograd::Function<Fuse> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) { return x.clone(); }
  static Tensors backward(torch::autograd::AutogradContext*, const Tensors&) {
    throw std::runtime_error("the fuse has blown");
  }
};

/// `change` alters a stage's output, given the number of the call.
std::vector<std::string> run_with(const Schedule& schedule, int stage,
                                  const std::function<torch::Tensor(torch::Tensor, int)>& change) {
  std::vector<Part> parts = make_parts(schedule.stages);
  const Batches batches = make_batches(schedule.micro_batches);
  return on_ranks(schedule.ranks, [&](int rank, Communicator comm) {
    std::vector<Stage> stages = stages_of(parts, schedule, rank);
    if (schedule.rank_of(stage) == rank) {
      Stage& bad = stages[static_cast<std::size_t>(stage / schedule.ranks)];
      bad.forward = [whole = bad.forward, &change, calls = 0](const torch::Tensor& x) mutable {
        return change(whole(x), calls++);
      };
    }
    Pipeline(std::move(stages), comm, schedule, token_loss()).run(batches.inputs, batches.targets);
  });
}

std::vector<Schedule> all_schedules() {
  return {gpipe(kRanks, kMicroBatches), one_forward_one_backward(kRanks, kMicroBatches),
          zero_bubble_h1(kRanks, kMicroBatches), interleaved(kRanks, kMicroBatches, 2)};
}

TEST(Failure, OfAForwardIsNamedOnEveryRank) {
  for (const Schedule& schedule : all_schedules()) {
    for (int stage = 0; stage < schedule.stages; ++stage) {
      const auto errors = run_with(schedule, stage, [](const torch::Tensor& y, int call) {
        if (call == 4) throw std::runtime_error("out of ideas");
        return y;
      });
      EXPECT_THAT(errors,
                  Each(HasSubstr(fmt::format("rank {}: Pipeline: F{}.4 (stage {}, micro-batch 4) failed: out of ideas",
                                             schedule.rank_of(stage), stage, stage))))
          << schedule.name;
    }
  }
}

TEST(Failure, OfABackwardIsNamedOnEveryRank) {
  for (const Schedule& schedule : all_schedules()) {
    for (int stage = 0; stage < schedule.stages; ++stage) {
      const auto errors = run_with(schedule, stage, [](const torch::Tensor& y, int call) {
        return call == kMicroBatches - 1 ? Fuse::apply(y) : y;
      });
      EXPECT_THAT(errors, Each(::testing::AllOf(HasSubstr(fmt::format("rank {}: Pipeline:", schedule.rank_of(stage))),
                                                HasSubstr(fmt::format("(stage {}, micro-batch 5)", stage)),
                                                HasSubstr("the fuse has blown"))))
          << schedule.name;
    }
  }
}

TEST(Failure, OfATorchCallComesWithoutItsBacktrace) {
  const auto errors =
      run_with(gpipe(kRanks, kMicroBatches), 1, [](const torch::Tensor& y, int) { return y.view({7}); });
  EXPECT_THAT(errors, Each(HasSubstr("F1.0 (stage 1, micro-batch 0) failed: shape '[7]' is invalid")));
  EXPECT_THAT(errors, Each(::testing::Not(HasSubstr("frame #"))));
}

TEST(Failure, OfAShapeThatChangesNamesRankAndMicroBatch) {
  for (const Schedule& schedule : all_schedules()) {
    const auto errors =
        run_with(schedule, 1, [](const torch::Tensor& y, int call) { return call == 3 ? y.slice(0, 0, 2) : y; });
    EXPECT_THAT(errors,
                Each(HasSubstr("rank 1: Pipeline: stage 1 gave Float [2, 5, 14] for micro-batch 3; expected "
                               "Float [3, 5, 14], as for the first one; all micro-batches of a run have one shape, "
                               "and forget_shapes() on all ranks")));  // T17
  }
}

TEST(Failure, OfATypeThatCannotTravel) {
  const auto errors =
      run_with(gpipe(kRanks, kMicroBatches), 0, [](const torch::Tensor& y, int) { return y.to(torch::kInt64); });
  EXPECT_THAT(errors, Each(HasSubstr("rank 0: Pipeline: stage 0 gave a tensor of type Long")));
}

/// Each rank makes a Pipeline with `make` and runs it.
std::vector<std::string> run_made(const std::function<Pipeline(int, Communicator, std::vector<Part>&)>& make,
                                  const Batches& batches) {
  std::vector<Part> parts = make_parts(kRanks);
  return on_ranks(kRanks,
                  [&](int rank, Communicator comm) { make(rank, comm, parts).run(batches.inputs, batches.targets); });
}

TEST(Failure, OfTheArguments) {
  const Schedule schedule = gpipe(kRanks, kMicroBatches);
  const Batches good = make_batches(kMicroBatches);
  const auto ordinary = [&](int rank, Communicator comm, std::vector<Part>& parts) {
    return Pipeline(stages_of(parts, schedule, rank), comm, schedule, token_loss());
  };
  Batches few = good;
  few.inputs.pop_back();
  EXPECT_THAT(
      run_made(ordinary, few),
      Each(HasSubstr(
          "rank 0: Pipeline: run: 5 micro-batches were given; expected 6, as in the schedule; tensor_split(n)")));
  few = good;
  few.targets.pop_back();
  EXPECT_THAT(run_made(ordinary, few), Each(HasSubstr("rank 2: Pipeline: run: 5 targets were given; expected 6")));
  Batches empty = good;
  for (torch::Tensor& target : empty.targets) target = torch::full_like(target, kPadding);
  EXPECT_THAT(run_made(ordinary, empty), Each(HasSubstr("rank 2: Pipeline: run: the weights of the targets sum to 0")));

  const auto without_loss = [&](int rank, Communicator comm, std::vector<Part>& parts) {
    return Pipeline(stages_of(parts, schedule, rank), comm, schedule);
  };
  EXPECT_THAT(run_made(without_loss, good), Each(HasSubstr("rank 2: Pipeline: this rank has the last stage")));
  const auto one_more_stage = [&](int rank, Communicator comm, std::vector<Part>& parts) {
    std::vector<Stage> stages = stages_of(parts, schedule, rank);
    if (rank == 1) stages.push_back(stages[0]);
    return Pipeline(stages, comm, schedule, token_loss());
  };
  EXPECT_THAT(run_made(one_more_stage, good), Each(HasSubstr("rank 1: Pipeline: 2 stages were given; expected 1")));
  const auto two_schedules = [&](int rank, Communicator comm, std::vector<Part>& parts) {
    return Pipeline(stages_of(parts, schedule, rank), comm,
                    rank == 1 ? one_forward_one_backward(kRanks, kMicroBatches) : schedule, token_loss());
  };
  EXPECT_THAT(run_made(two_schedules, good), Each(HasSubstr("the schedule of rank 1 differs from that of rank 0")));
  const auto too_many_ranks = [&](int rank, Communicator comm, std::vector<Part>& parts) {
    return Pipeline(stages_of(parts, schedule, rank), comm, gpipe(2, kMicroBatches), token_loss());
  };
  EXPECT_THAT(run_made(too_many_ranks, good), Each(HasSubstr("the schedule is for 2 ranks, the communicator has 3")));
}

TEST(Failure, OfARankInAnotherStep) {  // T2
  const Schedule schedule = one_forward_one_backward(kRanks, 3);
  const Batches batches = make_batches(3);
  std::vector<Part> parts = make_parts(kRanks);
  const auto errors = on_ranks(kRanks, [&](int rank, Communicator comm) {
    Pipeline pipeline(stages_of(parts, schedule, rank), comm, schedule, token_loss());
    for (int step = 0; step < 3; ++step) {
      if (rank == 1 && step == 1) continue;
      pipeline.run(batches.inputs, batches.targets, {.step = step});
    }
  });
  EXPECT_THAT(errors, Each(HasSubstr("Pipeline: run: the step of rank 1 is 2, that of rank 0 is 1")));
}

TEST(Failure, OfACopyThatOneSharerFreezes) {  // T3
  const Schedule schedule = gpipe(kRanks, kMicroBatches);
  const Batches batches = make_batches(kMicroBatches);
  std::vector<Part> parts = make_parts(kRanks);
  const auto errors = on_ranks(kRanks, [&](int rank, Communicator comm) {
    Pipeline pipeline(stages_of(parts, schedule, rank), comm, schedule, token_loss());
    torch::Tensor copy = torch::zeros({3}, torch::requires_grad());
    pipeline.tie(copy, comm);
    pipeline.run(batches.inputs, batches.targets);
    if (rank == 2) copy.set_requires_grad(false);
    pipeline.run(batches.inputs, batches.targets);
  });
  EXPECT_THAT(errors, Each(HasSubstr("Pipeline: run: a tied parameter is not alike on rank 2 of its sharers and on "
                                     "rank 0")));
}

TEST(Failure, OfTheShapesOfAnotherRunUnlessForgotten) {
  const Schedule schedule = one_forward_one_backward(kRanks, 3);
  const Batches large = make_batches(3);
  Batches small = large;
  for (Tensors* tensors : {&small.inputs, &small.targets}) {
    for (torch::Tensor& tensor : *tensors) tensor = tensor.slice(0, 1).contiguous();
  }
  for (bool forget : {true, false}) {
    std::vector<Part> parts = make_parts(kRanks);
    const auto errors = on_ranks(kRanks, [&](int rank, Communicator comm) {
      Pipeline pipeline(stages_of(parts, schedule, rank), comm, schedule, token_loss());
      pipeline.run(large.inputs, large.targets);
      if (forget) pipeline.forget_shapes();
      pipeline.run(small.inputs, small.targets);
    });
    if (forget) {
      EXPECT_EQ(errors, nothing(kRanks));
    } else {
      EXPECT_THAT(errors, Each(HasSubstr("rank 0: Pipeline: stage 0 gave Float [2, 5, 11] for micro-batch 0; expected "
                                         "Float [3, 5, 11], as for the first one")));
    }
  }
}

}  // namespace
}  // namespace tutti::training::pipeline_failure_test
