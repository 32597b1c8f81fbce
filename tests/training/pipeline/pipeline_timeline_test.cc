// Stages that sleep in place of calculating: many ranks need no cores then, and the times of a run can be compared with
// the simulated ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/training/on_ranks.h"
#include "training/pipeline/pipeline.h"
#include "training/pipeline/timeline.h"

namespace tutti::training::pipeline_timeline_test {
namespace {

constexpr auto kUnit = std::chrono::milliseconds(3);
constexpr double kUnitSeconds = 3e-3;

/// Passes its input on. F and I, or only W, take a unit each.
template <bool of_weight>
struct Sleep : torch::autograd::Function<Sleep<of_weight>> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    if (!of_weight) std::this_thread::sleep_for(kUnit);
    return x.clone();
  }
  static std::vector<torch::Tensor> backward(torch::autograd::AutogradContext*,
                                             const std::vector<torch::Tensor>& gradients) {
    std::this_thread::sleep_for(kUnit);
    return {gradients[0].clone()};
  }
};

struct SleeperImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return Sleep<false>::apply(x + shift) * Sleep<true>::apply(scale); }
  torch::Tensor shift = register_parameter("shift", torch::zeros({2}));  // so that the first stage's B is whole, too
  torch::Tensor scale = register_parameter("scale", torch::ones({2}));
};
TORCH_MODULE(Sleeper);

Timeline run_sleepers(const Schedule& schedule) {
  std::vector<Sleeper> sleepers(static_cast<std::size_t>(schedule.stages));
  for (Sleeper& sleeper : sleepers) sleeper = Sleeper();
  const std::vector<torch::Tensor> ones(static_cast<std::size_t>(schedule.micro_batches), torch::ones({2}));
  PipelineLoss loss;
  loss.value = [](const torch::Tensor& y, const torch::Tensor&) { return y.sum(); };
  std::vector<Timeline> timelines(static_cast<std::size_t>(schedule.ranks));
  const auto errors = on_ranks(schedule.ranks, [&](int rank, Communicator comm) {
    std::vector<Stage> stages;
    for (int s = rank; s < schedule.stages; s += schedule.ranks) {
      stages.push_back(make_stage(sleepers[static_cast<std::size_t>(s)]));
    }
    Pipeline pipeline(stages, comm, schedule, loss);
    pipeline.run(ones, ones);  // agrees on shapes, starts threads
    timelines[static_cast<std::size_t>(rank)] = gather_timeline(pipeline.run(ones, ones).measured, comm);
  });
  EXPECT_EQ(errors, nothing(schedule.ranks));
  return timelines[0];
}

/// For timeline.py.
std::string file_of(const Schedule& schedule) { return ::testing::TempDir() + "timeline_" + schedule.name + ".json"; }

// A sleep is never shorter than it should be, and the machine may be busy: bounds from below only.
TEST(SleepingStages, AreNoFasterThanSimulated) {
  for (const Schedule& schedule :
       {gpipe(4, 8), one_forward_one_backward(4, 8), interleaved(4, 8, 2), zero_bubble_h1(4, 8)}) {
    const Timeline measured = run_sleepers(schedule);
    const Simulation simulated = simulate(schedule);
    ASSERT_EQ(measured.size(), 4u);
    double busiest = 0;
    for (std::size_t r = 0; r < measured.size(); ++r) {
      std::size_t next = 0;
      double busy = 0;
      for (const TimedAction& timed : simulated.timeline[r]) {  // the same calculations in the same order
        if (is_transfer(timed.action.kind)) continue;
        ASSERT_LT(next, measured[r].size());
        EXPECT_EQ(measured[r][next++].action, timed.action) << schedule.name;
      }
      EXPECT_EQ(next, measured[r].size());
      for (const TimedAction& timed : measured[r]) busy += timed.end - timed.start;
      busiest = std::max(busiest, busy);
    }
    EXPECT_GE(makespan_of(measured), busiest);
    // The first stage does all of its backward in W, so ZB-H1 takes a little less than simulated there.
    const double units = schedule.name == "zb-h1" ? 3.0 * schedule.micro_batches : simulated.makespan;
    EXPECT_GE(makespan_of(measured), units * kUnitSeconds) << schedule.name;
    const std::vector<double> idle = idle_of(measured);
    RecordProperty("idle_measured_" + schedule.name, std::to_string(idle.back()));
    RecordProperty("idle_simulated_" + schedule.name, std::to_string(simulated.idle.back()));
    write_timeline(file_of(schedule), schedule, measured, simulate(schedule, measured_costs(measured)).timeline);
  }
}

TEST(Timeline, IsWrittenAsJson) {
  const Schedule schedule = gpipe(2, 1);
  const Timeline timeline = simulate(schedule).timeline;
  EXPECT_EQ(timeline_json(schedule, timeline, timeline),
            "{\"schedule\": \"gpipe\", \"ranks\": 2, \"stages\": 2, \"micro_batches\": 1,\n"
            "\"measured\": [\n"
            "  [[\"F\",0,0,0.000000000,1.000000000],[\"B\",0,0,4.000000000,6.000000000]],\n"
            "  [[\"F\",1,0,1.000000000,2.000000000],[\"B\",1,0,2.000000000,4.000000000]]],\n"
            "\"simulated\": [\n"
            "  [[\"F\",0,0,0.000000000,1.000000000],[\"B\",0,0,4.000000000,6.000000000]],\n"
            "  [[\"F\",1,0,1.000000000,2.000000000],[\"B\",1,0,2.000000000,4.000000000]]]}\n");
  const std::string path = ::testing::TempDir() + "timeline.json";
  write_timeline(path, schedule, timeline, timeline);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(), timeline_json(schedule, timeline, timeline));
  EXPECT_THROW(write_timeline("/nowhere/at/all", schedule, timeline, timeline), Error);
}

TEST(Costs, OfASimulatedTimelineAreWhatItWasMadeWith) {
  Costs costs;
  costs.forward = 3;
  costs.backward_input = 5;
  costs.backward_weight = 2;
  costs.stage_factor = {1, 0.5, 1.5};
  const Schedule schedule = zero_bubble_h1(3, 6);
  const Simulation simulation = simulate(schedule, costs);
  const Costs found = measured_costs(simulation.timeline);
  EXPECT_DOUBLE_EQ(found.forward, 3);
  EXPECT_DOUBLE_EQ(found.backward_input, 5);
  EXPECT_DOUBLE_EQ(found.backward_weight, 2);
  EXPECT_THAT(found.stage_factor,
              ::testing::ElementsAre(::testing::DoubleEq(1), ::testing::DoubleEq(0.5), ::testing::DoubleEq(1.5)));
  const std::vector<double> idle = idle_of(simulation.timeline);
  for (std::size_t r = 0; r < idle.size(); ++r) EXPECT_NEAR(idle[r], simulation.idle[r], 1e-12);
}

}  // namespace
}  // namespace tutti::training::pipeline_timeline_test
