// The loop around a call on device memory: its stream, its copies, graphs. On the fake driver, over a communicator of
// one rank that copies in the stream.
#if TUTTI_HAS_CUDA
#include <gtest/gtest.h>

#include "device/memory_kind.h"
#include "perf/driver/device_limit.h"
#include "perf/driver/measure.h"
#include "tests/perf/one_rank.h"
#include "tests/support/fake_driver.h"
#include "tests/support/fake_walkers.h"

namespace tutti::perf {
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
int all_reduce_perf(std::vector<const char*> words) {
  FakeDriver cuda;
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

TEST(DeviceProgram, RightInTheLegacyStreamAndDeterministic) {
  EXPECT_EQ(all_reduce_perf({"-t", "2", "-b", "64K", "-e", "64K", "-n", "3", "-c", "1", "-y", "1"}), 0);
  EXPECT_EQ(all_reduce_perf({"-t", "3", "-b", "12K", "-e", "12K", "-n", "1", "-c", "1", "-d", "all", "-o", "all",
                             "--deterministic"}),
            0);
}

struct Vector {
  float words[4];
};

void add(const testing::FakeBlock& block, Vector* to, const Vector* from, unsigned long long count) {
  for (unsigned long long i = block.index; i < count; i += block.count) {
    for (int w = 0; w < 4; ++w) to[i].words[w] += from[i].words[w];
  }
}

TEST(DeviceLimit, TheHostLoopIsAnAllReduce) {
  FakeDriver cuda;
  cuda.kernel("tutti_add", add);
  DeviceLimit limit(4096, 3);
  for (int r = 0; r < 3; ++r) limit.gpu().fill(limit.buffer(r), 0, 4096);
  auto* first = reinterpret_cast<float*>(limit.buffer(0));
  reinterpret_cast<float*>(limit.buffer(1))[1023] = 1;
  reinterpret_cast<float*>(limit.buffer(2))[1023] = 2;
  EXPECT_GT(limit.loop_us(4096, 0), 0);
  // Four calls: 1 + 2 are 3, and from then on everybody has the sum, which triples each time.
  EXPECT_EQ(first[1023], 3 * 3 * 3 * 3);
  EXPECT_EQ(reinterpret_cast<float*>(limit.buffer(2))[1023], first[1023]);
  EXPECT_EQ(first[0], 0);
  EXPECT_GT(limit.copy_us(4096, 0), 0);
}

}  // namespace
}  // namespace tutti::perf
#endif
