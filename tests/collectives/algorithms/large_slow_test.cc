// Counts past 2^31 elements: no offset or count may pass through 32 bits on its way. Two processes, about 5 GiB in all.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/collectives/must.h"
#include "tests/collectives/processes.h"

namespace tutti::testing::large_slow_test {
namespace {

constexpr std::size_t kCount = (std::size_t{1} << 31) + 12'345;

bool enough_memory() {
  std::ifstream info("/proc/meminfo");
  for (std::string word; info >> word;) {
    if (word != "MemAvailable:") continue;
    std::size_t kb = 0;
    info >> kb;
    return kb > std::size_t{7} << 20;
  }
  return false;
}

// Period 241, a prime, so that a piece that went to a wrong multiple of 2^k shows.
std::uint8_t value(int rank, std::size_t i) {
  return static_cast<std::uint8_t>((i % 241) / 2 + static_cast<std::size_t>(rank));
}

void fill(std::uint8_t* at, int rank, std::size_t begin, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) at[i] = value(rank, begin + i);
}

class Large : public ::testing::Test {
 protected:
  void run(const std::function<std::string(Communicator&)>& body, const Environment& environment = {}) {
    if (!enough_memory()) {
      std::puts("tutti-test: not run, needs 7 GiB of free memory");
      return;
    }
    expect_no_errors(run_processes(2, body, environment));
  }
};

TEST_F(Large, AllReduceRegisteredInPlace) {
  run([](Communicator& comm) -> std::string {
    Buffer<std::uint8_t> data(kCount);
    fill(data.data(), comm.rank(), 0, kCount);
    comm.all_reduce(data.data(), data.data(), kCount, DataType::u8);
    for (std::size_t i = 0; i < kCount; ++i) {
      if (data[i] != static_cast<std::uint8_t>(value(0, i) + value(1, i))) MUST(i == kCount);
    }
    return "";
  });
}

TEST_F(Large, AllReducePlainThroughScratch) {
  run(
      [](Communicator& comm) -> std::string {
        std::vector<std::int8_t> data(kCount);
        fill(reinterpret_cast<std::uint8_t*>(data.data()), comm.rank(), 0, kCount);
        comm.all_reduce(data.data(), data.data(), kCount, DataType::i8, ReduceOp::max);
        for (std::size_t i = 0; i < kCount; ++i) {
          if (data[i] != static_cast<std::int8_t>(value(1, i))) MUST(i == kCount);
        }
        return "";
      },
      {{"TUTTI_CROSS_MEMORY", "off"}});
}

TEST_F(Large, BroadcastPlain) {
  run([](Communicator& comm) -> std::string {
    std::vector<std::uint8_t> data(kCount);
    if (comm.rank() == 1) fill(data.data(), 1, 0, kCount);
    comm.broadcast(data.data(), data.data(), kCount, DataType::u8, 1);
    for (std::size_t i = 0; i < kCount; ++i) {
      if (data[i] != value(1, i)) MUST(i == kCount);
    }
    return "";
  });
}

TEST_F(Large, AllGatherWhoseBlocksTogetherPassIt) {
  run([](Communicator& comm) -> std::string {
    constexpr std::size_t kBlock = kCount / 2 + 7;
    std::vector<std::uint8_t> data(2 * kBlock);
    fill(data.data() + static_cast<std::size_t>(comm.rank()) * kBlock, comm.rank(), 0, kBlock);
    comm.all_gather(data.data() + static_cast<std::size_t>(comm.rank()) * kBlock, data.data(), kBlock, DataType::u8);
    for (std::size_t i = 0; i < 2 * kBlock; ++i) {
      if (data[i] != value(static_cast<int>(i / kBlock), i % kBlock)) MUST(i == kCount);
    }
    return "";
  });
}

TEST_F(Large, SendAndReceive) {
  run([](Communicator& comm) -> std::string {
    std::vector<std::uint8_t> data(kCount);
    if (comm.rank() == 0) {
      fill(data.data(), 0, 0, kCount);
      comm.send(data.data(), kCount, DataType::u8, 1);
      return "";
    }
    comm.recv(data.data(), kCount, DataType::u8, 0);
    for (std::size_t i = 0; i < kCount; ++i) {
      if (data[i] != value(0, i)) MUST(i == kCount);
    }
    return "";
  });
}

}  // namespace
}  // namespace tutti::testing::large_slow_test
