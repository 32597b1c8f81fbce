// Operations in flight: their order, their outcome, and what may be done meanwhile.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/collectives/must.h"
#include "tests/collectives/ranks.h"

namespace tutti::testing::async_test {
namespace {

using namespace std::chrono_literals;

TEST(Async, OperationsRunInTheOrderOfTheCalls) {
  expect_no_errors(run_threads(3, [](Communicator& comm) {
    // Each step needs the result of the one before: x -> sum over ranks of x.
    std::vector<std::int64_t> x(1000, 1);
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {
      works.push_back(comm.all_reduce_async(x.data(), x.data(), x.size(), DataType::i64));
    }
    works.back().wait();
    std::int64_t wanted = 1;
    for (int i = 0; i < 20; ++i) wanted *= 3;
    for (const std::int64_t value : x) MUST(value == wanted);
    for (Work& work : works) {
      MUST(work.test());
      MUST(work.status() == Code::ok);
      work.wait();
    }
  }));
}

TEST(Async, ManyInFlightOfDifferentKinds) {
  expect_no_errors(run_threads(4, [](Communicator& comm) {
    const auto n = static_cast<std::size_t>(comm.size());
    const auto rank = static_cast<std::size_t>(comm.rank());
    constexpr int kWorks = 100;
    std::vector<std::vector<std::int32_t>> in(kWorks), out(kWorks);
    std::vector<Work> works;
    for (int i = 0; i < kWorks; ++i) {
      const std::size_t count = 1 + static_cast<std::size_t>(i) * 13;
      in[i].assign(count * n, i + comm.rank());
      out[i].assign(count * n, -1);
      switch (i % 10) {
        case 0: works.push_back(comm.all_reduce_async(in[i].data(), out[i].data(), count, DataType::i32)); break;
        case 1: works.push_back(comm.reduce_scatter_async(in[i].data(), out[i].data(), count, DataType::i32)); break;
        case 2: works.push_back(comm.all_gather_async(in[i].data(), out[i].data(), count, DataType::i32)); break;
        case 3: works.push_back(comm.broadcast_async(in[i].data(), out[i].data(), count, DataType::i32, i % 4)); break;
        case 4:
          works.push_back(comm.reduce_async(in[i].data(), out[i].data(), count, DataType::i32, ReduceOp::max, i % 4));
          break;
        case 5: works.push_back(comm.all_to_all_async(in[i].data(), out[i].data(), count, DataType::i32)); break;
        case 6: works.push_back(comm.gather_async(in[i].data(), out[i].data(), count, DataType::i32, i % 4)); break;
        case 7: works.push_back(comm.scatter_async(in[i].data(), out[i].data(), count, DataType::i32, i % 4)); break;
        case 8: {
          // Gone when the work begins.
          const std::vector<std::size_t> counts(n, count), offsets{0, count, 2 * count, 3 * count};
          works.push_back(comm.all_to_allv_async(in[i].data(), counts.data(), offsets.data(), out[i].data(),
                                                 counts.data(), offsets.data(), DataType::i32));
          break;
        }
        default: works.push_back(comm.barrier_async()); break;
      }
    }
    for (int i = kWorks - 1; i >= 0; --i) {  // waited for in any order
      works[i].wait();
      const std::size_t count = 1 + static_cast<std::size_t>(i) * 13;
      const int sum = 4 * i + 6;
      for (std::size_t k = 0; k < count * n; ++k) {
        int wanted = -1;
        const int kind = i % 10;
        const bool is_root = static_cast<int>(rank) == i % 4;
        if (kind <= 1 && k < count) wanted = sum;
        if (kind == 2 || kind == 5 || kind == 8 || (kind == 6 && is_root)) wanted = i + static_cast<int>(k / count);
        if ((kind == 3 || kind == 7) && k < count) wanted = i + i % 4;
        if (kind == 4 && k < count && is_root) wanted = i + 3;
        MUST(out[i][k] == wanted);
      }
    }
  }));
}

TEST(Async, ABlockingCallComesAfterWhatWasStarted) {
  expect_no_errors(run_threads(2, [](Communicator& comm) {
    for (int turn = 0; turn < 200; ++turn) {
      std::int32_t value = 1;
      const Work work = comm.all_reduce_async(&value, &value, 1, DataType::i32);
      comm.all_reduce(&value, &value, 1, DataType::i32);
      MUST(value == 4);
      MUST(work.test());
    }
  }));
}

TEST(Async, ReportsAnswerForWhatWasStarted) {
  expect_no_errors(run_threads(2, [](Communicator& comm) {
    std::vector<float> data(50'000, 1.0f);
    for (int turn = 0; turn < 50; ++turn) {
      const Work work = comm.all_reduce_async(data.data(), data.data(), data.size(), DataType::f32, ReduceOp::max,
                                              {.algorithm = turn % 2 == 0 ? "ring" : "two_shot"});
      MUST(comm.explain_last_call().algorithm == (turn % 2 == 0 ? "ring" : "two_shot"));
      MUST(comm.traffic().calls == static_cast<std::uint64_t>(turn) + 1);
      MUST(comm.memory().plans > 0);
    }
  }));
}

TEST(Async, WaitWithALimitGivesUpAndTheOperationGoesOn) {
  std::atomic<bool> may_join{false};
  expect_no_errors(run_threads(2, [&](Communicator& comm) {
    std::int32_t value = comm.rank() + 1;
    if (comm.rank() == 1) {
      while (!may_join.load()) std::this_thread::yield();
    }
    Work work = comm.all_reduce_async(&value, &value, 1, DataType::i32);
    if (comm.rank() == 0) {
      MUST(!work.wait(20ms));
      MUST(!work.test());
      MUST(work.status() == Code::ok);
      may_join.store(true);
    }
    work.wait();
    MUST(value == 3);
    MUST(work.wait(0ms));
  }));
}

TEST(Async, ACallbackRunsOnceWhenDoneOrAtOnce) {
  expect_no_errors(run_threads(2, [](Communicator& comm) {
    std::vector<std::int32_t> data(10'000, 1);
    for (int turn = 0; turn < 200; ++turn) {
      std::promise<bool> first;  // set twice, it throws
      std::promise<bool> second;
      Work work = comm.all_reduce_async(data.data(), data.data(), data.size(), DataType::i32, ReduceOp::max);
      work.then([&](const Error* error) { first.set_value(error == nullptr && data.back() == 1); });
      if (turn % 2 == 0) work.wait();
      work.then([&](const Error* error) { second.set_value(error == nullptr); });
      MUST(first.get_future().get());
      MUST(second.get_future().get());
      MUST(work.test());
      // After the callback the caller may start the next call.
      comm.barrier();
    }
    Work().then([](const Error* error) { MUST(error == nullptr); });
  }));
}

TEST(Async, ACallbackIsToldTheError) {
  expect_no_errors(run_threads(2, [](Communicator& comm) {
    std::int32_t value = 1;
    if (comm.rank() == 1) {
      comm.abort("enough");
      return;
    }
    std::promise<std::string> told;
    Work work;
    try {
      work = comm.all_reduce_async(&value, &value, 1, DataType::i32);
    } catch (const Error& error) {  // the abort was quicker
      MUST(std::string(error.what()).find("enough") != std::string::npos);
      return;
    }
    work.then([&](const Error* error) { told.set_value(error == nullptr ? "done" : error->what()); });
    MUST(told.get_future().get().find("enough") != std::string::npos);
  }));
}

TEST(Async, DestroyedWithoutWaitingItIsDoneAllTheSame) {
  std::vector<std::vector<float>> data(3, std::vector<float>(100'000, 2.0f));
  std::vector<Work> works(3);
  {
    std::vector<Communicator> all = Communicator::in_process(3);
    std::vector<std::thread> threads;
    for (int r = 0; r < 3; ++r) {
      threads.emplace_back([&, r] {
        Communicator comm = std::move(all[static_cast<std::size_t>(r)]);
        std::vector<float>& mine = data[static_cast<std::size_t>(r)];
        comm.all_reduce_async(mine.data(), mine.data(), mine.size(), DataType::f32);
        works[static_cast<std::size_t>(r)] =
            comm.all_reduce_async(mine.data(), mine.data(), mine.size(), DataType::f32);
      });  // the communicator goes first; it finishes what was started
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (int r = 0; r < 3; ++r) {
    works[static_cast<std::size_t>(r)].wait();
    for (const float value : data[static_cast<std::size_t>(r)]) ASSERT_EQ(value, 18.0f);
  }
}

TEST(Async, SendsAndReceivesKeepTheirOrder) {
  expect_no_errors(run_threads(2, [](Communicator& comm) {
    constexpr int kMessages = 50;
    std::vector<std::vector<std::int32_t>> data(kMessages);
    std::vector<Work> works;
    for (int i = 0; i < kMessages; ++i) {
      data[i].assign(static_cast<std::size_t>(i) * 200, comm.rank() == 0 ? i : -1);
      works.push_back(comm.rank() == 0 ? comm.send_async(data[i].data(), data[i].size(), DataType::i32, 1)
                                       : comm.recv_async(data[i].data(), data[i].size(), DataType::i32, 0));
    }
    for (Work& work : works) work.wait();
    for (int i = 0; i < kMessages; ++i) {
      for (const std::int32_t value : data[i]) MUST(value == i);
    }
  }));
}

TEST(Async, AWrongCallFailsAtOnceAndLeavesTheCommunicatorWhole) {
  expect_no_errors(run_threads(2, [](Communicator& comm) {
    Code code = Code::ok;
    try {
      comm.broadcast_async(nullptr, nullptr, 1, DataType::f32, 7).wait();
    } catch (const Error& error) {
      code = error.code();
    }
    MUST(code == Code::invalid_argument);
    std::int32_t value = 1;
    comm.all_reduce_async(&value, &value, 1, DataType::i32).wait();
    MUST(value == 2);
  }));
}

TEST(Async, AbortEndsWhatIsPending) {
  expect_no_errors(run_threads(2, [](Communicator& comm) {
    if (comm.rank() == 1) return;  // never joins
    std::int32_t value = 1;
    Work first = comm.all_reduce_async(&value, &value, 1, DataType::i32);
    Work second = comm.all_reduce_async(&value, &value, 1, DataType::i32);
    comm.abort("the test says so");
    for (Work* work : {&first, &second}) {
      std::string text;
      try {
        work->wait();
      } catch (const Error& error) {
        text = error.what();
        MUST(error.code() == Code::aborted);
      }
      MUST(text.find("the test says so") != std::string::npos);
      MUST(work->status() == Code::aborted);
    }
  }));
}

}  // namespace
}  // namespace tutti::testing::async_test
