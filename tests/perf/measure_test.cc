// The loop around a call and the figures made of it, over a communicator of one rank that copies, rightly or wrongly.
#include "perf/driver/measure.h"

#include <gtest/gtest.h>

#include "perf/driver/report.h"
#include "tests/perf/one_rank.h"

namespace tutti::perf::measure_test {
namespace {

struct Measured {
  Row row;
  int calls = 0;
};

Measured measure(Settings settings, int wrong_bytes = 0) {
  settings.memory = MemoryKind::plain;
  auto impl = std::make_shared<OneRank>();
  impl->wrong_bytes = wrong_bytes;
  Communicator comm(impl);
  const Whole collective;
  Bench bench(settings, collective, comm);
  Measured run;
  run.row = bench.measure({.bytes = 4096});
  run.calls = impl->calls;
  return run;
}

TEST(Measure, ARightResultHasNoWrongElements) {
  const Measured run = measure({});
  EXPECT_EQ(run.row.size, 4096u);
  EXPECT_EQ(run.row.count, 1024u);
  EXPECT_TRUE(run.row.out_of_place.checked);
  EXPECT_EQ(run.row.out_of_place.wrong, 0u);
  EXPECT_EQ(run.row.in_place.wrong, 0u);
  EXPECT_EQ(run.row.out_of_place.algorithm, "copy");
  EXPECT_GT(run.row.out_of_place.time_us, 0);
  EXPECT_DOUBLE_EQ(run.row.out_of_place.bus_bandwidth, run.row.out_of_place.algorithm_bandwidth * 0.5);
  EXPECT_NEAR(run.row.out_of_place.algorithm_bandwidth * run.row.out_of_place.time_us * 1e3, 4096, 1e-6);
}

TEST(Measure, EachWrongElementIsCounted) {
  const Measured run = measure({}, 3);
  EXPECT_EQ(run.row.out_of_place.wrong, 3u);
  EXPECT_EQ(run.row.in_place.wrong, 3u);
  Settings twice;
  twice.check = 2;
  EXPECT_EQ(measure(twice, 3).row.out_of_place.wrong, 6u);
}

TEST(Measure, CallsAreWarmUpsIterationsAndChecks) {
  Settings settings;
  settings.iters = 7;
  settings.agg_iters = 3;
  settings.warmup_iters = 2;
  settings.check = 4;
  EXPECT_EQ(measure(settings).calls, 2 * (2 + 7 * 3 + 4));
  settings.in_place = false;
  const Measured run = measure(settings);
  EXPECT_EQ(run.calls, 2 + 7 * 3 + 4);
  EXPECT_FALSE(run.row.in_place.measured);
  settings.check = 0;
  EXPECT_FALSE(measure(settings).row.out_of_place.checked);
}

TEST(Measure, ThePartsOfAMeasurementAreEachOverRanks) {
  const std::vector<double> times = {1, 9, 3, 2, 8, 7};  // two ranks, three parts
  EXPECT_EQ(median_of_parts(times, 3, Average::max), 7);
  EXPECT_EQ(median_of_parts(times, 3, Average::min), 3);
  EXPECT_EQ(median_of_parts(times, 3, Average::mean), 5);
  EXPECT_EQ(median_of_parts(times, 3, Average::rank0), 3);
  EXPECT_EQ(median_of_parts({4, 6}, 1, Average::mean), 5);
}

TEST(Measure, PartsMakeNoMoreCalls) {
  for (const int parts : {1, 3, 7, 1000}) {
    Settings settings;
    settings.iters = 750;  // of which a part has 100 at least
    settings.parts = parts;
    settings.warmup_iters = settings.check = 0;
    settings.in_place = false;
    settings.percentiles = true;
    const Measured run = measure(settings);
    EXPECT_EQ(run.calls, 750);
    EXPECT_EQ(run.row.out_of_place.spread.times_us.size(), 750u);
    EXPECT_GT(run.row.out_of_place.time_us, 0);
  }
}

TEST(Measure, PercentilesAreOfTheIterationsThatAreNotSkipped) {
  Settings settings;
  settings.iters = 10;
  settings.percentiles = true;
  settings.per_iter_skip = 4;
  EXPECT_EQ(measure(settings).row.out_of_place.spread.times_us.size(), 6u);
  settings.per_iter_skip = 40;
  EXPECT_TRUE(measure(settings).row.out_of_place.spread.times_us.empty());
}

TEST(Measure, ColdAndUnalignedCheckToo) {
  Settings settings;
  settings.cold = true;
  settings.unalign = 3;
  EXPECT_EQ(measure(settings).row.out_of_place.wrong, 0u);
  EXPECT_EQ(measure(settings, 1).row.out_of_place.wrong, 1u);
}

TEST(Spread, NearestRank) {
  const Spread spread = spread_of({5, 1, 4, 2, 3});
  EXPECT_EQ(spread.min, 1);
  EXPECT_EQ(spread.max, 5);
  EXPECT_EQ(spread.mean, 3);
  EXPECT_EQ(spread.p50, 3);
  EXPECT_EQ(spread.p99, 5);
  EXPECT_DOUBLE_EQ(spread.stdev * spread.stdev, 2);
  EXPECT_EQ(spread.times_us.front(), 5) << "in the order of the iterations";
  EXPECT_TRUE(spread_of({}).times_us.empty());
}

TEST(Report, NumbersFitTheirColumns) {
  EXPECT_EQ(fitted(0.333, 7), "0.33");
  EXPECT_EQ(fitted(1234.567, 7), "1234.57");
  EXPECT_EQ(fitted(1234.567, 6), "1234.6");
  EXPECT_EQ(fitted(1234567.8, 7), "1234568");
  EXPECT_EQ(fitted(123456789.0, 7), "1.2e+08");
}

TEST(Report, TheSummaryAddsWrongElementsAndKnowsAFloor) {
  Row row;
  row.out_of_place = {.measured = true, .bus_bandwidth = 10, .wrong = 2};
  row.in_place = {.measured = true, .bus_bandwidth = 20, .wrong = 3};
  Row half_only;
  half_only.out_of_place = {.measured = true, .bus_bandwidth = 30};
  const Summary summary = summarize({row, half_only}, 0);
  EXPECT_EQ(summary.wrong, 5u);
  EXPECT_DOUBLE_EQ(summary.average_bus_bandwidth, 20);
  EXPECT_TRUE(summary.bandwidth_ok);
  EXPECT_TRUE(summarize({row, half_only}, 22).bandwidth_ok) << "0.9 of the floor is allowed";
  EXPECT_FALSE(summarize({row, half_only}, 23).bandwidth_ok);
}

}  // namespace
}  // namespace tutti::perf::measure_test
