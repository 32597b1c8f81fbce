// The loop around a call on device memory: its stream, its copies, graphs. On the fake driver, over a communicator of
// one rank that copies in the stream.
#if TUTTI_HAS_CUDA
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "device/memory_kind.h"
#include "perf/driver/measure.h"
#include "perf/driver/roofline_device.h"
#include "tests/perf/add_on_host.h"
#include "tests/perf/one_rank.h"
#include "tests/support/fake_cuda/driver.h"
#include "tests/support/fake_cuda/walkers.h"

namespace tutti::perf::device_test {
namespace {

using testing::FakeDriver;

class InStream final : public OneRank {
 public:
  explicit InStream(const FakeDriver& cuda) : cuda_(cuda) {}
  Code failure = Code::ok;
  std::vector<Stream> streams;

  void copy(const Call& call, std::size_t bytes) override {
    if (!device::kind_of(call.recv).on_device()) return OneRank::copy(call, bytes);
    if (streams.empty() || streams.back() != call.stream) streams.push_back(call.stream);
    EXPECT_EQ(
        cuda_.table().MemcpyAsync(reinterpret_cast<CUdeviceptr>(call.recv), reinterpret_cast<CUdeviceptr>(call.send),
                                  bytes, static_cast<CUstream>(call.stream)),
        CUDA_SUCCESS);
  }
  void damage(const Call& call, std::size_t byte) override {
    EXPECT_EQ(cuda_.table().MemsetD8Async(reinterpret_cast<CUdeviceptr>(call.recv) + byte, 0x77, 1,
                                          static_cast<CUstream>(call.stream)),
              CUDA_SUCCESS);
  }
  Status status() const override {
    return failure == Code::ok ? Status() : Status(failure, "rank 1 died in a call of the stream");
  }

 private:
  const FakeDriver& cuda_;
};

struct Measured {
  Row row;
  int calls = 0;
  std::vector<Stream> streams;
};

Measured measure(Settings settings, const FakeDriver& cuda, int wrong_bytes = 0, Code failure = Code::ok) {
  settings.memory = MemoryKind::device;
  auto impl = std::make_shared<InStream>(cuda);
  impl->wrong_bytes = wrong_bytes;
  impl->failure = failure;
  Communicator comm(impl);
  const Whole collective;
  Bench bench(settings, collective, comm);
  Measured run;
  run.row = bench.measure({.bytes = 4096});
  run.calls = impl->calls;
  run.streams = impl->streams;
  return run;
}

TEST(DeviceMeasure, RightAndWrongResults) {
  const FakeDriver cuda;
  const Measured right = measure({}, cuda);
  EXPECT_TRUE(right.row.out_of_place.checked);
  EXPECT_EQ(right.row.out_of_place.wrong, 0u);
  EXPECT_EQ(right.row.in_place.wrong, 0u);
  EXPECT_GT(right.row.out_of_place.time_us, 0);
  EXPECT_EQ(measure({}, cuda, 3).row.out_of_place.wrong, 3u);
  EXPECT_EQ(cuda.allocated(0), 0u);
}

TEST(DeviceMeasure, StreamsAsAsked) {
  const FakeDriver cuda;
  EXPECT_EQ(measure({}, cuda).streams.size(), 1u);
  EXPECT_NE(measure({}, cuda).streams[0], nullptr);
  Settings settings;
  settings.null_stream = true;
  EXPECT_EQ(measure(settings, cuda).streams, std::vector<Stream>{nullptr});
}

TEST(DeviceMeasure, GraphsAreCapturedOnceAndLaunchedOften) {
  const FakeDriver cuda;
  Settings settings;
  settings.iters = 7;
  settings.warmup_iters = 2;
  settings.check = 3;
  settings.graph_launches = 5;
  settings.in_place = false;
  settings.percentiles = true;
  const Measured run = measure(settings, cuda);
  EXPECT_EQ(run.calls, 2 + 7 + 3);  // a call that is captured is made once
  EXPECT_EQ(cuda.calls("cuGraphLaunch"), 1 + 5 + 3);
  EXPECT_EQ(run.row.out_of_place.wrong, 0u);
  EXPECT_EQ(run.row.out_of_place.spread.times_us.size(), 5u);
  EXPECT_EQ(measure(settings, cuda, 2).row.out_of_place.wrong, 6u);
}

TEST(DeviceMeasure, AFailureOfTheStreamIsThrown) {
  const FakeDriver cuda;
  try {
    (void)measure({}, cuda, 0, Code::peer_died);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::peer_died);
    EXPECT_STREQ(error.what(), "rank 1 died in a call of the stream");
  }
}

TEST(DeviceMeasure, RanksOfAHostTakeTurnsOverItsGpus) {
  const FakeDriver cuda({.devices = 2});
  EXPECT_EQ(gpu_name(0), "GPU 0 (Fake GPU)");
  EXPECT_EQ(gpu_name(3), "GPU 1 (Fake GPU)");
  const Gpu third(2, false);
  EXPECT_EQ(third.name(), "GPU 0 (Fake GPU)");
}

/// The program itself, its ranks as threads, down to the walkers.
int all_reduce_perf(std::vector<const char*> words, int devices = 1) {
  FakeDriver cuda({.devices = devices});
  testing::add_walkers(cuda);
  words.insert(words.begin(), {"all_reduce_perf", "--memory", "device", "-w", "1"});
  std::vector<char*> arguments;
  for (const char* word : words) arguments.push_back(const_cast<char*>(word));
  return perf_main(static_cast<int>(arguments.size()), arguments.data(), Whole());
}

TEST(DeviceProgram, RightOnThreads) {
  EXPECT_EQ(all_reduce_perf({"-t", "2", "-b", "0", "-e", "100K", "-i", "33333", "-n", "3", "-c", "2"}), 0);
  EXPECT_EQ(all_reduce_perf({"-t", "3", "-b", "8", "-e", "64K", "-f", "64", "-n", "2", "-c", "2", "-u", "3"}), 0);
}

TEST(DeviceProgram, RightFromGraphs) {
  EXPECT_EQ(all_reduce_perf({"-t", "2", "-b", "8", "-e", "64K", "-f", "64", "-n", "3", "-c", "2", "-G", "3"}), 0);
}

// Ranks that are threads on one GPU would stand in each other's way in its legacy stream; that is refused.
TEST(DeviceProgram, RightInTheLegacyStreamAndDeterministic) {
  EXPECT_EQ(all_reduce_perf({"-t", "2", "-b", "64K", "-e", "64K", "-n", "3", "-c", "1", "-y", "1"}, 2), 0);
  EXPECT_EQ(all_reduce_perf({"-t", "3", "-b", "12K", "-e", "12K", "-n", "1", "-c", "1", "-d", "all", "-o", "all",
                             "--deterministic"}),
            0);
}

constexpr std::size_t kLoopBytes = 4096;  // of which 3 ranks have 1360 each

/// Each rank's words before a host loop, all alike, and after it. `word`: of 4096 bytes.
class Loops {
 public:
  Loops() {
    add_adder(cuda_);
    limit_ = std::make_unique<RooflineDevice>(kLoopBytes, 3);
    for (int r = 0; r < 3; ++r) {
      for (std::size_t i = 0; i < kLoopBytes / sizeof(float); ++i) word(r, i) = static_cast<float>(r + 1);
    }
  }
  float& word(int rank, std::size_t i) { return reinterpret_cast<float*>(limit_->buffer(rank))[i]; }
  RooflineDevice& limit() { return *limit_; }

 private:
  FakeDriver cuda_;
  std::unique_ptr<RooflineDevice> limit_;
};

// Four calls, of which a loop makes at least so many.
TEST(RooflineDevice, TheHostLoopIsAnAllReduce) {
  Loops loops;
  EXPECT_GT(loops.limit().loop_us(HostLoop::all_reduce, kLoopBytes, 0), 0);
  // 1 + 2 + 3 are 6; from then on all ranks have the sum, which triples each time.
  for (int r = 0; r < 3; ++r) {
    for (const std::size_t i : {0, 1023}) EXPECT_EQ(loops.word(r, i), 6 * 3 * 3 * 3) << r << " " << i;
  }
  EXPECT_GT(loops.limit().copy_us(kLoopBytes, 0), 0);
}

TEST(RooflineDevice, TheHostLoopIsAnAllGather) {
  Loops loops;
  EXPECT_GT(loops.limit().loop_us(HostLoop::all_gather, kLoopBytes, 0), 0);
  constexpr std::size_t kShare = 340;  // words
  for (int r = 0; r < 3; ++r) {
    for (std::size_t i = 0; i < 3 * kShare; ++i) ASSERT_EQ(loops.word(r, i), static_cast<float>(i / kShare + 1)) << r;
    EXPECT_EQ(loops.word(r, 3 * kShare), static_cast<float>(r + 1)) << "no rank's share";
  }
  EXPECT_EQ(loops.limit().loop_us(HostLoop::all_gather, 32, 0), 0) << "no share of whole 16 bytes";
}

TEST(RooflineDevice, TheHostLoopIsAReduceScatter) {
  Loops loops;
  EXPECT_GT(loops.limit().loop_us(HostLoop::reduce_scatter, kLoopBytes, 0), 0);
  constexpr std::size_t kShare = 340;
  for (int r = 0; r < 3; ++r) {
    const auto own = static_cast<std::size_t>(r) * kShare;
    // The other ranks' values are added each time: 6 less its own.
    const float sum = static_cast<float>(r + 1 + 4 * (6 - (r + 1)));
    for (std::size_t i = 0; i < 3 * kShare; ++i) {
      const bool mine = i >= own && i < own + kShare;
      ASSERT_EQ(loops.word(r, i), mine ? sum : static_cast<float>(r + 1)) << r << " " << i;
    }
  }
}

}  // namespace
}  // namespace tutti::perf::device_test
#endif
