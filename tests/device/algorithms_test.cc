// Every algorithm of the table, run by the device's walkers as host threads, against the scalar reference: the
// same bits, whatever the numbers, the number of ranks, blocks and rounds.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "collectives/algorithms/table.h"
#include "collectives/plan/layout.h"
#include "tests/support/device_job.h"
#include "tests/support/plan_oracle.h"

namespace tutti::testing::algorithms_test {
namespace {

using executor::Shape;
using executor::cuda::flatten;
using executor::cuda::limits_of;
using executor::cuda::prepare_for_device;
using executor::cuda::Program;

constexpr std::size_t kGuard = 64;  // bytes around buffers that must stay as they are
constexpr int kLanes = 8;

transport::DeviceWindowSizes small_window(int ranks, std::size_t express) {
  return {.ranks = ranks, .lanes = kLanes, .scratch_half = 16384, .published_half = 16384, .express_bytes = express};
}

std::size_t elements(plan::Placement placement, int ranks, std::size_t count) {
  return placement == plan::Placement::blocks ? static_cast<std::size_t>(ranks) * count : count;
}

struct Buffers {
  Buffers(std::size_t bytes, std::size_t shift, std::minstd_rand& random)
      : memory(bytes + 2 * kGuard + 16), at(kGuard + shift) {
    for (std::size_t i = 0; i < memory.size(); ++i) memory.data()[i] = static_cast<std::byte>(random());
  }
  std::byte* data() { return memory.data() + at; }
  AlignedBytes memory;
  std::size_t at;
};

struct Case {
  const algorithms::Algorithm* algorithm;
  int ranks;
  Shape shape;
  int strips;
  bool in_place;
  std::size_t express;
  bool cut;  // into kernels that do not wait
  unsigned seed;
};

std::string describe(const Case& c) {
  return std::string(name_of(c.shape.collective)) + " " + c.algorithm->name + ", " + std::to_string(c.ranks) +
         " ranks, " + std::to_string(c.shape.count) + " x " + name_of(c.shape.type) + ", " + name_of(c.shape.op) +
         ", root " + std::to_string(c.shape.root) + ", " + std::to_string(c.strips) + " strips, express " +
         std::to_string(c.express) + (c.in_place ? ", in place" : "") + (c.cut ? ", cut" : "") + ", seed " +
         std::to_string(c.seed);
}

// Twice in a row with the same buffers, as a replayed graph: the second time with what the first has left there.
void check_case(const Case& c, DeviceJob& job) {
  std::minstd_rand random(c.seed);
  const plan::Placements placements = plan::placements_of(c.shape.collective);
  const std::size_t element = size_of(c.shape.type);
  const auto plan = std::make_shared<const plan::Plan>(c.algorithm->build(
      {.collective = c.shape.collective, .ranks = c.ranks, .root = c.shape.root, .host_of_rank = {}}));
  std::vector<std::vector<std::byte>> programs;
  std::vector<Buffers> inputs;
  std::vector<Buffers> outputs;
  for (int r = 0; r < c.ranks; ++r) {
    const auto prepared = prepare_for_device(plan, r, c.shape, limits_of(job.sizes(), c.strips, 4096));
    ASSERT_TRUE(prepared.ok()) << prepared.status().message();
    programs.push_back(flatten(*prepared.value()));
    // Some ranks have buffers that are aligned as their elements only.
    const std::size_t shift = random() % 3 == 0 ? random() % 16 / element * element : 0;
    inputs.emplace_back(elements(placements.input, c.ranks, c.shape.count) * element, shift, random);
    outputs.emplace_back(elements(placements.output, c.ranks, c.shape.count) * element, shift, random);
  }
  const auto input_of = [&](int r) -> std::byte* {
    if (!c.in_place) return inputs[static_cast<std::size_t>(r)].data();
    // In place as the API has it: this rank's block of the larger buffer.
    const std::size_t block = static_cast<std::size_t>(r) * c.shape.count * element;
    if (placements.input == plan::Placement::own) return outputs[static_cast<std::size_t>(r)].data() + block;
    if (placements.output == plan::Placement::own) return inputs[static_cast<std::size_t>(r)].data();
    return outputs[static_cast<std::size_t>(r)].data();
  };
  const auto output_of = [&](int r) -> std::byte* {
    const std::size_t block = static_cast<std::size_t>(r) * c.shape.count * element;
    if (c.in_place && placements.output == plan::Placement::own && placements.input == plan::Placement::blocks) {
      return inputs[static_cast<std::size_t>(r)].data() + block;
    }
    return outputs[static_cast<std::size_t>(r)].data();
  };
  const auto factor_of = [&](int r) { return c.shape.op == ReduceOp::premul_sum ? 0.75 + r : 1.0; };

  for (int turn = 0; turn < 2; ++turn) {
    // The oracle works on copies of all memory.
    std::vector<std::vector<std::byte>> copies;
    const auto copy_of = [&](std::byte* p, Buffers& in) { return copies.back().data() + (p - in.memory.data()); };
    std::vector<OracleRank> oracle;
    std::vector<std::vector<std::byte>> expected_in;
    copies.reserve(2 * static_cast<std::size_t>(c.ranks));
    std::vector<std::size_t> out_copy;
    for (int r = 0; r < c.ranks; ++r) {
      Buffers& in = inputs[static_cast<std::size_t>(r)];
      Buffers& out = outputs[static_cast<std::size_t>(r)];
      const auto inside = [](std::byte* p, Buffers& b) {
        return p >= b.memory.data() && p <= b.memory.data() + b.memory.size();
      };
      OracleRank o;
      o.factor = factor_of(r);
      copies.emplace_back(in.memory.data(), in.memory.data() + in.memory.size());
      if (inside(input_of(r), in)) o.input = copy_of(input_of(r), in);
      if (inside(output_of(r), in)) o.output = copy_of(output_of(r), in);
      copies.emplace_back(out.memory.data(), out.memory.data() + out.memory.size());
      if (inside(input_of(r), out)) o.input = copy_of(input_of(r), out);
      if (inside(output_of(r), out)) o.output = copy_of(output_of(r), out);
      oracle.push_back(o);
    }
    ASSERT_TRUE(run_by_reference(plan, c.shape, oracle)) << describe(c);
    job.run([&](DeviceRank& rank) {
      const int r = rank.index();
      const DeviceCallArguments call{.input = input_of(r), .output = output_of(r), .factor = factor_of(r)};
      const auto& program = programs[static_cast<std::size_t>(r)];
      EXPECT_TRUE(c.cut ? rank.call_segmented(program, call) : rank.call(program, call)) << describe(c);
    });
    for (int r = 0; r < c.ranks; ++r) {
      const auto i = static_cast<std::size_t>(r);
      // The staged algorithms may leave partial sums in the output where the plan does: the oracle has done the same.
      ASSERT_EQ(std::memcmp(copies[2 * i].data(), inputs[i].memory.data(), copies[2 * i].size()), 0)
          << describe(c) << ", input memory of rank " << r << ", turn " << turn;
      ASSERT_EQ(std::memcmp(copies[2 * i + 1].data(), outputs[i].memory.data(), copies[2 * i + 1].size()), 0)
          << describe(c) << ", output memory of rank " << r << ", turn " << turn;
    }
  }
}

// Types and operations take turns over the cases; over all of them each meets each.
void check_algorithms(int ranks, int strips, std::size_t express, unsigned seed, bool cut = false) {
  std::minstd_rand random(seed);
  DeviceJob job(ranks, small_window(ranks, express));
  job.disturb(seed);
  for (const algorithms::Algorithm& algorithm : algorithms::table()) {
    if (algorithm.collective == Collective::all_to_allv) continue;  // its pieces differ: uneven_test
    if (cut && algorithm.opens_peers && ranks > 1) continue;
    // Many ranks take long on few cores: fewer sizes, the same kinds (nothing, one, what does not divide, many rounds).
    const std::vector<std::size_t> counts =
        ranks <= 4 ? std::vector<std::size_t>{0, 1, 5, 333, 2048, 9001} : std::vector<std::size_t>{0, 1, 333, 9001};
    for (const std::size_t count : counts) {
      const auto type = static_cast<DataType>(random() % kDataTypes);
      auto op = static_cast<ReduceOp>(random() % kReduceOps);
      if (!applies(op, type) || !reduces(algorithm.collective)) op = ReduceOp::sum;
      if (algorithm.collective == Collective::barrier && count > 0) continue;
      const int root = has_root(algorithm.collective) ? static_cast<int>(random() % static_cast<unsigned>(ranks)) : 0;
      const Case c{.algorithm = &algorithm,
                   .ranks = ranks,
                   .shape = {algorithm.collective, type, op, root, count},
                   .strips = algorithm.collective == Collective::barrier ? 1 : strips,
                   .in_place = algorithm.in_place && random() % 2 == 0,
                   .express = express,
                   .cut = cut,
                   .seed = static_cast<unsigned>(random())};
      check_case(c, job);
      if (::testing::Test::HasFatalFailure() || ::testing::Test::HasNonfatalFailure()) return;
    }
  }
}

class DeviceAlgorithms : public ::testing::TestWithParam<int> {};

TEST_P(DeviceAlgorithms, OneStrip) { check_algorithms(GetParam(), 1, 0, 100 + static_cast<unsigned>(GetParam())); }
TEST_P(DeviceAlgorithms, Express) { check_algorithms(GetParam(), 1, 2048, 200 + static_cast<unsigned>(GetParam())); }
TEST_P(DeviceAlgorithms, ThreeStrips) { check_algorithms(GetParam(), 3, 0, 300 + static_cast<unsigned>(GetParam())); }
TEST_P(DeviceAlgorithms, ThreeStripsExpress) {
  check_algorithms(GetParam(), 3, 2048, 400 + static_cast<unsigned>(GetParam()));
}
TEST_P(DeviceAlgorithms, CutAtTheWaits) {
  check_algorithms(GetParam(), 2, 0, 500 + static_cast<unsigned>(GetParam()), /*cut=*/true);
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceAlgorithms, ::testing::Range(1, 9));

}  // namespace
}  // namespace tutti::testing::algorithms_test
