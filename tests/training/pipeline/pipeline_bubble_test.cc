// Claims 10 to 12 on runs of Pipeline itself, in virtual time: each calculation puts its rank's clock forward by its
// cost, and the tensors that travel carry the time at which they were made. So the idle time of a run is exact,
// whatever the machine does, and needs no cores.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <vector>

#include "tests/training/on_ranks.h"
#include "training/pipeline/pipeline.h"

namespace tutti::training::pipeline_bubble_test {
namespace {

thread_local double now = 0;   // of this rank
thread_local double busy = 0;  // of it, calculating

/// A calculation whose input was ready at `ready` and that takes a unit. All times are small integers, exact in f32.
void calculate(double ready) {
  now = std::max(now, ready) + 1;
  busy += 1;
}

/// F and I: a unit each. Their results are the times at which they ended.
struct TickInput : torch::autograd::Function<TickInput> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    calculate(x[0].item<double>());
    return torch::full_like(x, now);
  }
  static std::vector<torch::Tensor> backward(torch::autograd::AutogradContext*,
                                             const std::vector<torch::Tensor>& gradients) {
    calculate(gradients[0][0].item<double>());
    return {torch::full_like(gradients[0], now)};
  }
};

/// W: a unit.
struct TickWeight : torch::autograd::Function<TickWeight> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& weight) {
    return torch::zeros_like(weight);
  }
  static std::vector<torch::Tensor> backward(torch::autograd::AutogradContext*,
                                             const std::vector<torch::Tensor>& gradients) {
    calculate(gradients[0][0].item<double>());
    return {torch::zeros_like(gradients[0])};
  }
};

struct ClockImpl : torch::nn::Module {
  /// `shift` makes the first stage's backward whole, too; multiplied by 0 it leaves times as they are. Autograd runs
  /// what was made last first: of B, the input's gradient comes second, and carries the time of both.
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = TickInput::apply(x + 0 * shift);
    return y + TickWeight::apply(weight);
  }
  torch::Tensor shift = register_parameter("shift", torch::zeros({2}));
  torch::Tensor weight = register_parameter("weight", torch::ones({2}));
};
TORCH_MODULE(Clock);

struct Measured {
  double makespan = 0;
  std::vector<double> idle;    // share of the makespan, of each rank
  std::vector<int> peak_live;  // of each rank
};

Measured run_clocks(const Schedule& schedule) {
  const auto ranks = static_cast<std::size_t>(schedule.ranks);
  const std::vector<torch::Tensor> zeros(static_cast<std::size_t>(schedule.micro_batches), torch::zeros({2}));
  // Its gradient, the time from which the last stage's backward can start, is 0.
  const PipelineLoss loss{[](const torch::Tensor& y, const torch::Tensor&) { return 0 * y.sum(); }, {}};
  std::vector<double> ends(ranks), work(ranks);
  Measured measured;
  measured.peak_live.resize(ranks);
  const auto errors = on_ranks(schedule.ranks, [&](int rank, Communicator comm) {
    std::vector<Stage> stages;
    for (int s = rank; s < schedule.stages; s += schedule.ranks) stages.push_back(make_stage(Clock()));
    Pipeline pipeline(stages, comm, schedule, loss);
    now = busy = 0;
    const auto r = static_cast<std::size_t>(rank);
    measured.peak_live[r] = pipeline.run(zeros, zeros).peak_live;
    ends[r] = now;
    work[r] = busy;
  });
  EXPECT_EQ(errors, nothing(schedule.ranks));
  measured.makespan = *std::max_element(ends.begin(), ends.end());
  for (const double of_rank : work) measured.idle.push_back((measured.makespan - of_rank) / measured.makespan);
  return measured;
}

struct Shape {
  int ranks, micro_batches;
};
void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.ranks << "Ranks" << shape.micro_batches; }

class PipelineRuns : public ::testing::TestWithParam<Shape> {
 protected:
  const int p = GetParam().ranks, m = GetParam().micro_batches;
};

TEST_P(PipelineRuns, Claim10GpipeAnd1F1BIdleForPMinus1OfMPlusPMinus1) {
  for (const Schedule& schedule : {gpipe(p, m), one_forward_one_backward(p, m)}) {
    const Measured run = run_clocks(schedule);
    EXPECT_EQ(run.makespan, 3 * (m + p - 1)) << schedule.name;  // F = 1, B = 2
    for (const double idle : run.idle) EXPECT_DOUBLE_EQ(idle, (p - 1.0) / (m + p - 1)) << schedule.name;
  }
}

TEST_P(PipelineRuns, Claim10InterleavedDividesTheBubbleByTheStagesPerRank) {
  if (m % p != 0) return;
  for (const int v : {2, 3}) {
    const Measured run = run_clocks(interleaved(p, m, v));
    EXPECT_EQ(run.makespan, 3 * (v * m + p - 1)) << v;
    for (const double idle : run.idle) EXPECT_DOUBLE_EQ(idle, (p - 1.0) / (v * m + p - 1)) << v;
  }
}

TEST_P(PipelineRuns, Claim11OneForwardOneBackwardHoldsMinOfMAndPMinusRActivationsAndGpipeAll) {
  const Measured few = run_clocks(one_forward_one_backward(p, m)), all = run_clocks(gpipe(p, m));
  for (int r = 0; r < p; ++r) {
    EXPECT_EQ(few.peak_live[static_cast<std::size_t>(r)], std::min(m, p - r));
    EXPECT_EQ(all.peak_live[static_cast<std::size_t>(r)], m);
  }
}

// Of the ideal time 3 m; of all, (p-1) / (3m + p-1).
TEST_P(PipelineRuns, Claim12ZeroBubbleH1IdlesForAThirdAndHoldsPActivations) {
  const Measured run = run_clocks(zero_bubble_h1(p, m));
  EXPECT_EQ(run.makespan, 3 * m + p - 1 + std::max(0, p - m));
  for (const int live : run.peak_live) EXPECT_LE(live, std::min(m, p));
  if (m < p) return;
  for (const double idle : run.idle) EXPECT_DOUBLE_EQ(idle, (p - 1.0) / (3 * m + p - 1));
}

INSTANTIATE_TEST_SUITE_P(Pipeline, PipelineRuns,
                         ::testing::Values(Shape{1, 3}, Shape{2, 1}, Shape{2, 4}, Shape{3, 6}, Shape{3, 7}, Shape{4, 2},
                                           Shape{4, 8}, Shape{8, 8}, Shape{8, 16}),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tutti::training::pipeline_bubble_test
