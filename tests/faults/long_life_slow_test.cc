// A process that lives long: a million collectives, ten thousand communicators. What it holds stays.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/collectives/processes.h"
#include "tests/support/usage.h"

namespace tutti::testing::long_life_slow_test {
namespace {

constexpr std::size_t kSpare = 1 << 20;

class LongLife : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) NEEDS_NETWORK();
  }
  static void run(const std::function<std::string(Communicator&)>& body) {
    const std::vector<std::string> hosts = GetParam() ? std::vector<std::string>{"a", "b"} : std::vector<std::string>{};
    const auto outcomes = run_processes(2, body, {}, {}, hosts);
    expect_no_errors(outcomes);
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.said, "");
  }
};

TEST_P(LongLife, AMillionCollectives) {
  run([](Communicator& comm) {
    std::vector<std::int32_t> data(4);
    return growth(GetParam() ? 200'000 : 1'000'000, kSpare, [&] {
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::int32_t>(i);
      comm.all_reduce(data.data(), data.data(), data.size(), DataType::i32);
      if (data[3] != 6) throw std::runtime_error("wrong results");
    });
  });
}

TEST_P(LongLife, TenThousandCommunicators) {
  run([](Communicator& comm) {
    return growth(10'000, kSpare, [&] {
      Communicator child = comm.split(0, comm.rank());
      std::int32_t one = 1;
      child.all_reduce(&one, &one, 1, DataType::i32);
      if (one != 2) throw std::runtime_error("wrong results");
    });
  });
}

TEST_P(LongLife, FromTheirEnvironmentAgainAndAgain) {
  const std::vector<std::string> hosts = GetParam() ? std::vector<std::string>{"a", "b"} : std::vector<std::string>{};
  const auto outcomes = run_ranks(
      2,
      [](int) {
        return growth(300, 4 * kSpare, [] {
          Communicator comm = Communicator::from_environment();
          comm.barrier();
        });
      },
      {}, {}, hosts);
  expect_no_errors(outcomes);
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.said, "");
}

INSTANTIATE_TEST_SUITE_P(Ways, LongLife, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "hosts" : "shm"; });

}  // namespace
}  // namespace tutti::testing::long_life_slow_test
