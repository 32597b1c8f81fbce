// A link of a given speed: no call ends before its bytes could have passed, and nothing else changes.
#include "perf/training/throttled_communicator.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace tutti::perf::throttled_communicator_test {
namespace {

using Clock = std::chrono::steady_clock;

/// body(rank, communicator over the link) on a thread for each rank; what each threw.
std::vector<std::string> on_link(int ranks, const LinkOptions& link,
                                 const std::function<void(int, Communicator&)>& body) {
  std::vector<Communicator> comms = Communicator::in_process(ranks);
  std::vector<std::string> errors(comms.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < comms.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Communicator slow = throttle(comms[rank], link);
        body(static_cast<int>(rank), slow);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

Call call_of(Collective collective, std::size_t count) {
  return {.collective = collective, .count = count, .type = DataType::f32};
}

TEST(LinkBytes, AreThoseOfARing) {
  EXPECT_EQ(link_bytes(call_of(Collective::all_reduce, 100), 4), 600);
  EXPECT_EQ(link_bytes(call_of(Collective::all_gather, 100), 4), 1200);
  EXPECT_EQ(link_bytes(call_of(Collective::reduce_scatter, 100), 4), 1200);
  EXPECT_EQ(link_bytes(call_of(Collective::all_to_all, 100), 4), 1200);
  EXPECT_EQ(link_bytes(call_of(Collective::broadcast, 100), 4), 400);
  EXPECT_EQ(link_bytes(call_of(Collective::barrier, 0), 4), 0);
  for (const Collective collective : {Collective::all_reduce, Collective::all_gather, Collective::broadcast}) {
    EXPECT_EQ(link_bytes(call_of(collective, 100), 1), 0) << "one rank sends nothing";
  }
  const std::vector<Transfer> transfers{{.sending = true, .count = 10, .type = DataType::f64},
                                        {.sending = false, .count = 99, .type = DataType::f64}};
  EXPECT_EQ(link_bytes(transfers), 80);
}

// 2 ranks send 4000 bytes each in an all_reduce of 1000 f32: 20 ms at 200 kB/s.
TEST(ThrottledCommunicator, NoCallEndsBeforeItsBytesPassed) {
  const auto errors = on_link(2, {.bytes_per_second = 200e3}, [](int rank, Communicator& slow) {
    std::vector<float> data(1000, static_cast<float>(rank + 1));
    const Clock::time_point begin = Clock::now();
    slow.all_reduce(data.data(), data.data(), data.size(), DataType::f32);
    EXPECT_GE(seconds_since(begin), 0.020);
    EXPECT_EQ(data, std::vector<float>(1000, 3.0f));
    Work first = slow.all_reduce_async(data.data(), data.data(), data.size(), DataType::f32);
    std::vector<float> other(1000, 1.0f);
    Work second = slow.all_reduce_async(other.data(), other.data(), other.size(), DataType::f32);
    second.wait();
    EXPECT_TRUE(first.test()) << "calls go over the link one after another";
    EXPECT_GE(seconds_since(begin), 0.060);
    EXPECT_EQ(data, std::vector<float>(1000, 6.0f));
    EXPECT_EQ(other, std::vector<float>(1000, 2.0f));
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(ThrottledCommunicator, WithoutOverlapAStartedCallIsDone) {
  const auto errors = on_link(2, {.bytes_per_second = 400e3, .overlap = false}, [](int, Communicator& slow) {
    std::vector<float> data(1000, 1.0f);
    const Clock::time_point begin = Clock::now();
    const Work work = slow.all_reduce_async(data.data(), data.data(), data.size(), DataType::f32);
    EXPECT_TRUE(work.test());
    EXPECT_GE(seconds_since(begin), 0.010);
    EXPECT_EQ(data, std::vector<float>(1000, 2.0f));
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(ThrottledCommunicator, SplitsAreAsSlow) {
  const auto errors = on_link(4, {.bytes_per_second = 400e3}, [](int rank, Communicator& slow) {
    Communicator pair = slow.split(rank / 2, rank);
    ASSERT_EQ(pair.size(), 2);
    std::vector<float> data(1000, 1.0f);
    const Clock::time_point begin = Clock::now();
    pair.all_reduce(data.data(), data.data(), data.size(), DataType::f32);
    EXPECT_GE(seconds_since(begin), 0.010);
    EXPECT_EQ(data, std::vector<float>(1000, 2.0f));
    EXPECT_FALSE(slow.split(-1, rank)) << "a negative colour gets none";
  });
  EXPECT_EQ(errors, std::vector<std::string>(4));
}

TEST(ThrottledCommunicator, ASplitSharesTheLink) {
  const auto errors = on_link(2, {.bytes_per_second = 200e3}, [](int rank, Communicator& slow) {
    Communicator other = slow.split(0, rank);
    std::vector<float> one(1000, 1.0f), two(1000, 2.0f);
    const Clock::time_point begin = Clock::now();
    Work first = slow.all_reduce_async(one.data(), one.data(), one.size(), DataType::f32);
    Work second = other.all_reduce_async(two.data(), two.data(), two.size(), DataType::f32);
    first.wait();
    second.wait();
    EXPECT_GE(seconds_since(begin), 0.040) << "two at once need as long as two in turn";
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

// The link is so slow that the call would take an hour; the abort must not wait for it.
TEST(ThrottledCommunicator, AnAbortEndsWhatWaitsForAPeer) {
  const auto errors = on_link(2, {.bytes_per_second = 1e-3}, [](int rank, Communicator& slow) {
    float value = 1;
    if (rank == 1) return slow.abort("rank 1: had enough");
    slow.all_reduce_async(&value, &value, 1, DataType::f32).wait();
  });
  EXPECT_NE(errors[0].find("had enough"), std::string::npos) << errors[0];
}

TEST(ThrottledCommunicator, RefusesWhatItCannotDo) {
  const auto errors = on_link(1, {.bytes_per_second = 0}, [](int, Communicator&) {});
  EXPECT_EQ(errors[0], "rank 0: throttle: bytes_per_second is 0; it must be above 0");
  const auto others = on_link(1, {}, [](int, Communicator& slow) {
    float value = 1;
    const std::size_t one = 1, zero = 0;
    slow.all_to_allv_async(&value, &one, &zero, &value, &one, &zero, DataType::f32);
  });
  EXPECT_NE(others[0].find("all_to_allv over a throttled link is not supported"), std::string::npos) << others[0];
}

}  // namespace
}  // namespace tutti::perf::throttled_communicator_test
