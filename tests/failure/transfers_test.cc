// What ends sends and receives that cannot end well: deadlines, each message its own; peers that leave or die; aborts;
// messages that are not what was expected. Always in a sentence that names what waited.
#include <gmock/gmock.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/calls/window_sizing.h"
#include "collectives/communicator/communicator.h"
#include "tests/collectives/must.h"
#include "tests/collectives/ranks.h"
#include "tests/failure/processes.h"

namespace tutti::testing::transfers_test {
namespace {

using ::testing::HasSubstr;

Status failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {};
}

bool has(const Status& status, Code code, const std::string& text) {
  if (status.code() == code && status.message().find(text) != std::string::npos) return true;
  throw std::runtime_error("expected '" + text + "', got: " + status.message());
}

TEST(TransferFailures, ADeadlineNamesTheReceive) {
  struct Wait {
    int peer;
    const char* text;
  };
  for (const Wait wait :
       {Wait{1, "in recv(3 x f32, tag 4) from rank 1"}, Wait{kAnySource, "in recv(3 x f32, tag 4) from any rank"}}) {
    for (const bool background : {false, true}) {
      std::atomic<bool> over{false};
      expect_no_errors(run_threads(
          2,
          [&](Communicator& comm) {
            if (comm.rank() == 1) {  // is there, and busy with something else
              while (!over) std::this_thread::yield();
              return;
            }
            float x[3] = {};
            const Status failure = failure_of([&] {
              if (background) comm.recv_async(x, 3, DataType::f32, wait.peer, 4).wait();
              if (!background) comm.recv(x, 3, DataType::f32, wait.peer, 4);
            });
            over = true;
            MUST(has(failure, Code::timeout, wait.text));
            MUST(has(failure, Code::timeout, "has not answered; rank 0"));
            MUST(has(failure_of([&] { comm.barrier(); }), Code::timeout, failure.message()));
          },
          with_timeout(200ms)));
    }
  }
}

TEST(TransferFailures, ADeadlineNamesWhoHoldsUpThePeer) {
  std::atomic<bool> over{false};
  const std::vector<std::string> errors = run_threads(
      4,
      [&](Communicator& comm) {
        float x = 0, y = 0;
        if (comm.rank() == 0) {  // is busy with something else
          while (!over) std::this_thread::yield();
        } else if (comm.rank() == 2) {
          const Status failure = failure_of([&] { comm.recv(&x, 1, DataType::f32, 1, 4); });
          over = true;
          throw Error(failure.code(), failure.message());
        }
        const int other = 4 - comm.rank();  // 1 and 3 wait for each other without end
        while (comm.rank() != 0) {
          comm.group_start();
          comm.send(&x, 1, DataType::f32, other, 2);
          comm.recv(&y, 1, DataType::f32, other, 2);
          comm.group_end();
        }
      },
      with_timeout(1s));
  for (const int rank : {1, 2, 3}) {
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                ::testing::ContainsRegex("rank 1 .* has not answered and waits itself, while rank 0 .* stands still; "
                                         "rank 2 .* waited 1.0 s in recv"));
  }
}

TEST(TransferFailures, ADeadlineIsTheMessagesOwn) {
  std::vector<std::string> errors = run_threads(
      2,
      [](Communicator& comm) {
        float x = 0, y = 0, z = 0;
        Work never;
        if (comm.rank() == 0) never = comm.recv_async(&x, 1, DataType::f32, 1, 1);
        // Others come and go without end.
        for (;;) {
          comm.group_start();
          comm.send(&y, 1, DataType::f32, 1 - comm.rank(), 2);
          comm.recv(&z, 1, DataType::f32, 1 - comm.rank(), 2);
          comm.group_end();
        }
      },
      with_timeout(300ms));
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("rank 0"));
    EXPECT_THAT(error, HasSubstr("waited 0.3 s in recv(1 x f32, tag 1) from rank 1"));
  }
}

TEST(TransferFailures, ADeadlineTellsOfAMessageThatHasNoRoom) {
  Options options = with_timeout(200ms);
  options.memory_limit = std::size_t{64} << 20;
  const std::size_t window = window_sizes(2, options, 0).value().bytes();
  options.memory_limit = window + executor::PlanWalker::kBounceBytes;
  const std::vector<std::string> errors = run_threads(
      2,
      [](Communicator& comm) {
        float x[100] = {};
        if (comm.rank() == 0) comm.send(x, 100, DataType::f32, 1, 5);
        if (comm.rank() == 1) comm.recv(x, 1, DataType::f32, 0, 6);
      },
      options);
  EXPECT_EQ(errors[0], "");
  EXPECT_THAT(errors[1], HasSubstr("in recv(1 x f32, tag 6) from rank 0"));
  EXPECT_THAT(errors[1],
              HasSubstr("before which lies one of tag 5 that no recv matches; memory_limit leaves no room for "
                        "its 400 bytes"));
}

TEST(TransferFailures, ARankThatLeavesIsNamed) {
  std::vector<Communicator> all = Communicator::in_process(3, with_timeout(60s));
  std::atomic<bool> left{false};
  std::thread one([comm = std::move(all[1])]() mutable { comm = {}; });
  std::thread two([&, comm = std::move(all[2])]() mutable {
    // A receive from any rank goes on as long as one is left to send.
    float x = 1;
    comm.send(&x, 1, DataType::f32, 0, 3);
    comm = {};
    left = true;
  });
  one.join();
  float x = 0;
  int source = -1;
  all[0].recv(&x, 1, DataType::f32, kAnySource, 3, &source);
  EXPECT_EQ(source, 2);
  two.join();
  const Status failure = failure_of([&] { all[0].recv(&x, 1, DataType::f32, kAnySource, 3); });
  EXPECT_EQ(failure.code(), Code::mismatch);
  EXPECT_THAT(failure.message(), HasSubstr("all other ranks have closed their communicators, and rank 0"));
  EXPECT_THAT(failure.message(), HasSubstr("is in recv(1 x f32, tag 3) from any rank"));
}

TEST(TransferFailures, AbortEndsAllThatWait) {
  expect_no_errors(run_threads(
      2,
      [](Communicator& comm) {
        float x = 0;
        std::vector<Work> works;
        works.push_back(comm.recv_async(&x, 1, DataType::f32, 1 - comm.rank(), 1));
        works.push_back(comm.recv_async(&x, 1, DataType::f32, kAnySource, 2));
        works.push_back(comm.all_reduce_async(&x, &x, 1, DataType::f32));
        works.push_back(comm.recv_async(&x, 1, DataType::f32, 1 - comm.rank(), 1));
        if (comm.rank() == 0) comm.abort("the test says so");
        for (Work& work : works) MUST(has(failure_of([&] { work.wait(); }), Code::aborted, "the test says so"));
        MUST(has(failure_of([&] { comm.send(&x, 1, DataType::f32, 1 - comm.rank()); }), Code::aborted,
                 "the test says so"));
        MUST(has(failure_of([&] { comm.send_async(&x, 1, DataType::f32, 1 - comm.rank()).wait(); }), Code::aborted,
                 "the test says so"));
      },
      with_timeout(60s)));
}

TEST(TransferFailures, AMessageOfAnotherSizeNamesBoth) {
  for (const bool aside : {false, true}) {
    for (const std::size_t count : {std::size_t{3}, std::size_t{5000}}) {
      const std::vector<std::string> errors = run_threads(
          2,
          [&](Communicator& comm) {
            std::vector<float> data(count + 1);
            if (comm.rank() == 0) {
              Work sent = comm.send_async(data.data(), count, DataType::f32, 1, 5);
              if (aside) comm.send(data.data(), 1, DataType::f32, 1, 6);
              sent.wait();
              comm.barrier();
            } else {
              if (aside) comm.recv(data.data(), 1, DataType::f32, 0, 6);
              comm.recv(data.data(), count + 1, DataType::f32, kAnySource, 5);
            }
          },
          with_timeout(60s));
      for (const std::string& error : errors) {
        EXPECT_THAT(error, HasSubstr("sends " + std::to_string(count) + " x f32 to rank 1"));
        EXPECT_THAT(error, HasSubstr("with tag 5, which receives " + std::to_string(count + 1) + " x f32"));
      }
    }
  }
}

TEST(TransferFailures, TheFlightRecorderShowsTags) {
  expect_no_errors(run_threads(2, [](Communicator& comm) {
    float x = 1;
    if (comm.rank() == 0) comm.send(&x, 1, DataType::f32, 1, 17);
    if (comm.rank() == 1) comm.recv(&x, 1, DataType::f32, kAnySource, 17);
    comm.barrier();
    const std::string text = comm.flight_recorder_text();
    MUST(text.find("send(1 x f32, tag 17) to rank 1") != std::string::npos);
    MUST(text.find("recv(1 x f32, tag 17) from any rank") != std::string::npos);
  }));
}

}  // namespace
}  // namespace tutti::testing::transfers_test
