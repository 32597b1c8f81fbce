// PipelineRanks are threads here. The reference is always one process that runs micro-batch after micro-batch and
// accumulates; the pipeline must give the same bits.
#include "training/pipeline/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/training/on_ranks.h"
#include "tests/training/pipeline/pipeline_parts.h"
#include "training/pipeline/split_backward.h"
#include "training/pipeline/timeline.h"

namespace tutti::training::pipeline_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

std::vector<Schedule> all_schedules(int ranks, int micro_batches) {
  std::vector<Schedule> all{gpipe(ranks, micro_batches), one_forward_one_backward(ranks, micro_batches),
                            zero_bubble_h1(ranks, micro_batches)};
  if (micro_batches % ranks == 0) all.push_back(interleaved(ranks, micro_batches, 2));
  return all;
}

/// Micro-batches for each rank: fewer with 8 of them, so that the test is fast on two cores.
int rounds(int size) { return size < 8 ? 2 : 1; }

class PipelineRanks : public ::testing::TestWithParam<int> {};

TEST_P(PipelineRanks, Claim13GiveTheBitsOfAccumulationInOneProcess) {
  const int size = GetParam();
  const PipelineLoss loss = token_loss();
  for (int micro_batches : {1, rounds(size) * size, rounds(size) * size + 1}) {
    for (const Schedule& schedule : all_schedules(size, micro_batches)) {
      std::vector<Part> parts = make_parts(schedule.stages), references = make_parts(schedule.stages);
      const Batches first = make_batches(micro_batches, 9), second = make_batches(micro_batches, 10);
      std::vector<PipelineRun> runs(static_cast<std::size_t>(size));
      const Simulation simulation = simulate(schedule);
      const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
        Pipeline pipeline(stages_of(parts, schedule, rank), comm, schedule, loss);
        pipeline.run(first.inputs, first.targets);
        runs[static_cast<std::size_t>(rank)] = pipeline.run(second.inputs, second.targets);  // adds to the first one's
      });
      ASSERT_EQ(errors, nothing(size)) << schedule.name;
      accumulate_parts(references, first, loss);
      const double expected = accumulate_parts(references, second, loss);
      double weight = 0;
      for (const torch::Tensor& target : second.targets) weight += loss.weight(target);
      for (std::size_t s = 0; s < parts.size(); ++s) {
        expect_same_gradients(*parts[s], *references[s],
                              schedule.name + " m " + std::to_string(micro_batches) + " stage " + std::to_string(s));
      }
      for (std::size_t r = 0; r < runs.size(); ++r) {
        EXPECT_EQ(runs[r].loss, expected) << schedule.name;
        EXPECT_EQ(runs[r].weight, weight) << schedule.name;
        EXPECT_EQ(runs[r].peak_live, simulation.peak_live[r]) << schedule.name;
      }
    }
  }
}

TEST_P(PipelineRanks, TrainAsOneProcess) {
  const int size = GetParam(), micro_batches = rounds(size) * size;
  const PipelineLoss loss = token_loss();
  for (const Schedule& schedule : all_schedules(size, micro_batches)) {
    std::vector<Part> parts = make_parts(schedule.stages), references = make_parts(schedule.stages);
    std::vector<Batches> steps;
    for (std::uint64_t step = 0; step < 2; ++step) steps.push_back(make_batches(micro_batches, step));
    const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
      Tensors mine;
      for (int s = rank; s < schedule.stages; s += size) {
        for (const torch::Tensor& p : parts[static_cast<std::size_t>(s)]->parameters()) mine.push_back(p);
      }
      torch::optim::AdamW optimizer(mine, torch::optim::AdamWOptions(1e-2));
      Pipeline pipeline(stages_of(parts, schedule, rank), comm, schedule, loss);
      for (const Batches& batches : steps) {
        optimizer.zero_grad();
        pipeline.run(batches.inputs, batches.targets);
        optimizer.step();
      }
    });
    ASSERT_EQ(errors, nothing(size)) << schedule.name;
    Tensors all;
    for (Part& reference : references) {
      for (const torch::Tensor& p : reference->parameters()) all.push_back(p);
    }
    torch::optim::AdamW optimizer(all, torch::optim::AdamWOptions(1e-2));
    for (const Batches& batches : steps) {
      optimizer.zero_grad();
      accumulate_parts(references, batches, loss);
      optimizer.step();
    }
    for (std::size_t s = 0; s < parts.size(); ++s) {
      const Tensors mine = parts[s]->parameters(), theirs = references[s]->parameters();
      for (std::size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(same_bits(mine[i], theirs[i])) << schedule.name;
    }
  }
}

TEST_P(PipelineRanks, CarryOtherTypes) {
  const int size = GetParam();
  const PipelineLoss loss = token_loss();
  for (torch::ScalarType type : {torch::kFloat64, torch::kBFloat16}) {
    for (const Schedule& schedule : all_schedules(size, rounds(size) * size)) {
      std::vector<Part> parts = make_parts(schedule.stages, type), references = make_parts(schedule.stages, type);
      const Batches batches = make_batches(rounds(size) * size);
      const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
        Pipeline(stages_of(parts, schedule, rank), comm, schedule, loss).run(batches.inputs, batches.targets);
      });
      ASSERT_EQ(errors, nothing(size)) << schedule.name;
      accumulate_parts(references, batches, loss);
      for (std::size_t s = 0; s < parts.size(); ++s) expect_same_gradients(*parts[s], *references[s], schedule.name);
    }
  }
}

TEST_P(PipelineRanks, EvaluateWithoutAutograd) {
  const int size = GetParam();
  const PipelineLoss loss = token_loss();
  for (int per_rank : {1, 2}) {
    const Schedule schedule = forward_only(size, 5, per_rank);
    std::vector<Part> parts = make_parts(schedule.stages), references = make_parts(schedule.stages);
    const Batches batches = make_batches(5);
    std::vector<double> losses(static_cast<std::size_t>(size));
    const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
      Pipeline pipeline(stages_of(parts, schedule, rank), comm, schedule, loss);
      const PipelineRun run = pipeline.run(batches.inputs, batches.targets);
      losses[static_cast<std::size_t>(rank)] = run.loss;
      EXPECT_EQ(run.peak_live, 1);
    });
    EXPECT_EQ(errors, nothing(size));
    EXPECT_THAT(losses, Each(accumulate_parts(references, batches, loss)));
    for (Part& part : parts) EXPECT_FALSE(part->scale.grad().defined());
  }
}

// Two replicas whose tokens are counted together: the sum of their gradients is that of one big accumulation.
TEST_P(PipelineRanks, DivideByTheWeightOfAllReplicasWhenGiven) {
  const int size = GetParam(), micro_batches = size;
  const PipelineLoss loss = token_loss();
  const Schedule schedule = one_forward_one_backward(size, micro_batches);
  std::vector<Part> parts = make_parts(size), references = make_parts(size);
  const Batches batches = make_batches(micro_batches);
  PipelineRunOptions options;
  options.total_weight = 1000;
  const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
    Pipeline(stages_of(parts, schedule, rank), comm, schedule, loss).run(batches.inputs, batches.targets, options);
  });
  EXPECT_EQ(errors, nothing(size));
  accumulate_parts(references, batches, loss, 1000);
  for (std::size_t s = 0; s < parts.size(); ++s) expect_same_gradients(*parts[s], *references[s], "total");
}

TEST_P(PipelineRanks, DrawATimeline) {
  const int size = GetParam(), micro_batches = 2 * size;
  const Schedule schedule = zero_bubble_h1(size, micro_batches);
  std::vector<Part> parts = make_parts(size);
  const Batches batches = make_batches(micro_batches);
  std::vector<std::string> texts(static_cast<std::size_t>(size));
  const auto errors = on_ranks(size, [&](int rank, Communicator comm) {
    Pipeline pipeline(stages_of(parts, schedule, rank), comm, schedule, token_loss());
    const Timeline measured = gather_timeline(pipeline.run(batches.inputs, batches.targets).measured, comm);
    ASSERT_EQ(measured.size(), static_cast<std::size_t>(size));
    for (const auto& actions : measured) {
      EXPECT_EQ(actions.size(), 3u * static_cast<unsigned>(micro_batches));
      for (std::size_t i = 0; i < actions.size(); ++i) {
        EXPECT_LE(actions[i].start, actions[i].end);
        if (i > 0) {
          EXPECT_LE(actions[i - 1].end, actions[i].start);
        }
      }
    }
    for (double idle : idle_of(measured)) {
      EXPECT_GE(idle, 0);
      EXPECT_LT(idle, 1);
    }
    const Costs costs = measured_costs(measured);
    EXPECT_EQ(costs.stage_factor.size(), static_cast<std::size_t>(size));
    const Simulation simulation = simulate(schedule, costs);
    texts[static_cast<std::size_t>(rank)] = timeline_json(schedule, measured, simulation.timeline);
  });
  EXPECT_EQ(errors, nothing(size));
  EXPECT_THAT(texts, Each(texts[0]));
  EXPECT_THAT(texts[0], HasSubstr("\"schedule\": \"zb-h1\""));
  EXPECT_THAT(texts[0], HasSubstr("[\"W\",0,0,"));
  EXPECT_THAT(texts[0], ::testing::Not(HasSubstr("\"SA\"")));
}

INSTANTIATE_TEST_SUITE_P(Pipeline, PipelineRanks, ::testing::Values(1, 2, 3, 4, 8));

TEST(Split, GivesTheBitsOfAWholeBackward) {
  torch::set_num_threads(1);
  for (torch::ScalarType type : {torch::kFloat32, torch::kFloat64, torch::kBFloat16}) {
    std::vector<Part> parts = make_parts(2, type), references = make_parts(2, type);
    Part part = parts[1], reference = references[1];
    torch::manual_seed(3);
    const torch::Tensor x = torch::randn({kRows, kTime, 11}).to(type);
    const torch::Tensor a = x.clone().requires_grad_(true), b = x.clone().requires_grad_(true);
    const torch::Tensor y = part->forward(a), z = reference->forward(b);
    const torch::Tensor gradient = torch::randn_like(y);
    SplitBackward split;
    const torch::Tensor g = split.run_input(y, a, gradient);
    EXPECT_FALSE(a.grad().defined());
    for (const torch::Tensor& parameter : part->parameters()) EXPECT_FALSE(parameter.grad().defined());
    split.run_weights();
    EXPECT_FALSE(a.grad().defined());
    torch::autograd::backward({z}, {gradient});
    EXPECT_TRUE(same_bits(g, b.grad()));
    expect_same_gradients(*part, *reference, "split");
  }
}

TEST(Split, KeepsWeightGradientsOutOfTheFirstPart) {
  torch::nn::Linear layer(4, 4);
  const torch::Tensor x = torch::ones({2, 4}).requires_grad_(true);
  const torch::Tensor y = layer->forward(x);
  SplitBackward split;
  EXPECT_TRUE(split.run_input(y, x, torch::ones_like(y)).defined());
  EXPECT_FALSE(layer->weight.grad().defined());
  split.run_weights();
  EXPECT_TRUE(torch::equal(layer->weight.grad(), torch::full({4, 4}, 2.0)));
}

/// x * w, and counts its backward passes.
struct Counted : torch::autograd::Function<Counted> {
  static inline int runs = 0;
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& w) {
    context->save_for_backward({x, w});
    return x * w;
  }
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
    ++runs;
    const Tensors saved = context->get_saved_variables();
    return {gradients[0] * saved[1], gradients[0] * saved[0]};
  }
};

TEST(Split, RunsAFunctionOfOnesOwnOnceAndEachHookOnce) {
  Counted::runs = 0;
  const torch::Tensor x = torch::full({3}, 2.0).requires_grad_(), own = torch::full({3}, 5.0).requires_grad_();
  const torch::Tensor twice = torch::full({3}, 7.0).requires_grad_(), once = torch::full({3}, 11.0).requires_grad_();
  int hooks = 0;
  for (const torch::Tensor* parameter : {&own, &twice, &once}) {
    parameter->register_hook([&hooks](const torch::Tensor& gradient) {
      ++hooks;
      return 10 * gradient;
    });
  }
  const torch::Tensor y = Counted::apply(x * twice * once, own) * twice;
  SplitBackward split;
  const torch::Tensor g = split.run_input(y, x, torch::ones({3}));
  EXPECT_EQ(hooks, 0);
  EXPECT_FALSE(own.grad().defined());
  split.run_weights();
  EXPECT_EQ(Counted::runs, 1);
  EXPECT_EQ(hooks, 3);
  EXPECT_EQ(g[0].item<double>(), 7 * 11 * 5 * 7);
  EXPECT_EQ(own.grad()[0].item<double>(), 10 * 2 * 7 * 11 * 7);
  EXPECT_EQ(once.grad()[0].item<double>(), 10 * 2 * 7 * 5 * 7);
  EXPECT_EQ(twice.grad()[0].item<double>(), 10 * 2 * (2 * 11 * 5 * 7));
}

TEST(Split, WorksAtTheEdges) {
  SplitBackward split;
  const torch::Tensor x = torch::ones({2}).requires_grad_(true);
  EXPECT_TRUE(torch::equal(split.run_input(x, x, torch::full({2}, 3.0)), torch::full({2}, 3.0)));  // the identity
  split.run_weights();
  const torch::Tensor w = torch::ones({2}).requires_grad_(true);
  EXPECT_FALSE(split.run_input(w * 2, x, torch::ones({2})).defined());  // the input is not used
  split.run_weights();
  EXPECT_TRUE(torch::equal(w.grad(), torch::full({2}, 2.0)));
  EXPECT_FALSE(split.run_input(torch::ones({2}), x, torch::ones({2})).defined());  // nothing is trained
  split.run_weights();
}

}  // namespace
}  // namespace tutti::training::pipeline_test
