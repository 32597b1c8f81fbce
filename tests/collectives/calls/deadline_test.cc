// How long a call waits: a deadline that is changed, and an embedding program that wants its thread back.
#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <string>

#include "tests/collectives/must.h"
#include "tests/collectives/ranks.h"

namespace tutti::testing::deadline_test {
namespace {

using namespace std::chrono_literals;

Code code_of(const std::function<void()>& call, std::string* sentence = nullptr) {
  try {
    call();
    return Code::ok;
  } catch (const Error& error) {
    if (sentence != nullptr) *sentence = error.what();
    return error.code();
  }
}

TEST(Deadline, SetTimeoutHoldsForCallsThatFollow) {
  Options options;
  options.timeout = 1h;
  std::promise<void> given_up;
  std::shared_future<void> until = given_up.get_future().share();
  expect_no_errors(run_threads(
      2,
      [&](Communicator& comm) {
        std::int32_t value = 1;
        comm.all_reduce(&value, &value, 1, DataType::i32);
        MUST(code_of([&] { comm.set_timeout(0ms); }) == Code::invalid_argument);
        if (comm.rank() == 1) return until.wait();
        comm.set_timeout(100ms);
        std::string sentence;
        MUST(code_of([&] { comm.barrier(); }, &sentence) == Code::timeout);
        MUST(sentence.find("barrier") != std::string::npos);
        given_up.set_value();
      },
      options));
}

TEST(Deadline, AnInterruptedCallEndsOnAllRanks) {
  std::atomic<int> asked{0};
  Options options;
  options.interrupted = [&asked] { return asked.fetch_add(1) == 2; };
  std::promise<void> ended;
  std::shared_future<void> until = ended.get_future().share();
  expect_no_errors(run_threads(
      2,
      [&](Communicator& comm) {
        std::string sentence;
        if (comm.rank() == 1) until.wait();
        MUST(code_of([&] { comm.barrier(); }, &sentence) == Code::aborted);
        MUST(sentence.find("rank 0") == 0);
        MUST(sentence.find("was interrupted in barrier() as its call 1") != std::string::npos);
        if (comm.rank() == 0) ended.set_value();
      },
      options));
  EXPECT_EQ(asked.load(), 3);
}

TEST(Deadline, StartedCallsAreNotInterrupted) {
  std::atomic<int> asked{0};
  Options options;
  options.interrupted = [&asked] { return asked.fetch_add(1) >= 0; };
  std::promise<void> waited;
  std::shared_future<void> until = waited.get_future().share();
  expect_no_errors(run_threads(
      2,
      [&](Communicator& comm) {
        if (comm.rank() == 1) until.wait();
        Work work = comm.barrier_async();
        if (comm.rank() == 0) {
          MUST(!work.wait(200ms));  // long enough to be asked, were it to be asked at all
          waited.set_value();
        }
        work.wait();
      },
      options));
  EXPECT_EQ(asked.load(), 0);
}

}  // namespace
}  // namespace tutti::testing::deadline_test
