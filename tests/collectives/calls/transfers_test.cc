// Sends and receives with tags, from any source, and in progress side by side, among threads.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collectives/calls/window_sizing.h"
#include "collectives/communicator/communicator.h"
#include "tests/collectives/must.h"
#include "tests/collectives/random_programs.h"
#include "tests/collectives/ranks.h"
#include "tests/collectives/transfer_programs.h"

namespace tutti::testing::transfers_test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kLarge = 500'000;  // by place, and far more than a mailbox holds

std::vector<std::int32_t> filled(std::size_t count, std::int32_t value) {
  return std::vector<std::int32_t>(count, value);
}

bool all_are(const std::vector<std::int32_t>& data, std::int32_t value) {
  return std::all_of(data.begin(), data.end(), [value](std::int32_t x) { return x == value; });
}

void on_ranks(int ranks, const Body& body) {
  Options options;
  options.timeout = 60s;
  expect_no_errors(run_threads(ranks, body, options));
}

TEST(Transfers, RandomPrograms) {
  const unsigned seed = program_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  Options options;
  options.timeout = 60s;
  for (const int ranks : {2, 3, 4}) {
    expect_no_errors(run_threads(
        ranks, [&](Communicator& comm) { run_transfer_programs(comm, seed, 4); }, options));
  }
}

TEST(Transfers, AReceiveTakesTheFirstMessageOfItsTag) {
  on_ranks(2, [](Communicator& comm) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{5000}, kLarge}) {
      if (comm.rank() == 0) {
        std::vector<std::vector<std::int32_t>> data;
        for (int i = 0; i < 6; ++i) data.push_back(filled(count, i));
        std::vector<Work> works;
        for (int i = 0; i < 6; ++i) works.push_back(comm.send_async(data[i].data(), count, DataType::i32, 1, i / 2));
        for (Work& work : works) work.wait();
      } else {
        for (const int i : {4, 2, 5, 0, 1, 3}) {
          auto in = filled(count, -1);
          int source = -1;
          comm.recv(in.data(), count, DataType::i32, 0, i / 2, &source);
          MUST(all_are(in, i) && source == 0);
          MUST((comm.memory().messages > 0) == (i != 3));
        }
      }
    }
  });
}

TEST(Transfers, BothSidesMaySendFirst) {
  on_ranks(2, [](Communicator& comm) {
    const int peer = 1 - comm.rank();
    for (int turn = 0; turn < 20; ++turn) {
      const auto out = filled(kLarge, comm.rank());
      auto in = filled(kLarge, -1);
      Work sent = comm.send_async(out.data(), out.size(), DataType::i32, peer);
      comm.recv(in.data(), in.size(), DataType::i32, peer);
      sent.wait();
      MUST(all_are(in, peer));
    }
  });
}

TEST(Transfers, AReceiveThatWaitsHoldsUpNothing) {
  on_ranks(3, [](Communicator& comm) {
    for (const bool blocking : {false, true}) {
      std::int32_t late = -1;
      if (comm.rank() == 0) {
        Work waiting = comm.recv_async(&late, 1, DataType::i32, 1, 7);
        for (const int peer : {1, 2}) {
          const auto out = filled(kLarge, 3);
          auto in = filled(kLarge, -1);
          if (blocking) {
            comm.send(out.data(), out.size(), DataType::i32, peer, 8);
            comm.recv(in.data(), in.size(), DataType::i32, peer, 8);
          } else {
            Work sent = comm.send_async(out.data(), out.size(), DataType::i32, peer, 8);
            comm.recv_async(in.data(), in.size(), DataType::i32, peer, 8).wait();
            sent.wait();
          }
          MUST(all_are(in, 4));
          MUST(!waiting.test());
        }
        const std::int32_t go = 1;
        comm.send(&go, 1, DataType::i32, 1, 9);
        waiting.wait();
        MUST(late == 5);
      } else {
        auto data = filled(kLarge, -1);
        comm.recv(data.data(), data.size(), DataType::i32, 0, 8);
        MUST(all_are(data, 3));
        data = filled(kLarge, 4);
        comm.send(data.data(), data.size(), DataType::i32, 0, 8);
        if (comm.rank() == 2) continue;
        std::int32_t go = 0;
        comm.recv(&go, 1, DataType::i32, 0, 9);
        const std::int32_t value = 5;
        comm.send(&value, 1, DataType::i32, 0, 7);
      }
    }
  });
}

// The messages are all there when the first is received: each rank's turn comes once in a round.
TEST(Transfers, FromAnySourceInTurnAndInOrder) {
  constexpr int kMessages = 20;
  for (const bool in_background : {false, true}) {
    on_ranks(4, [&](Communicator& comm) {
      if (comm.rank() != 0) {
        for (std::int32_t i = 0; i < kMessages; ++i) comm.send(&i, 1, DataType::i32, 0, 5);
        comm.barrier();
        return;
      }
      comm.barrier();
      std::vector<std::int32_t> values(3 * kMessages, -1);
      std::vector<int> sources(3 * kMessages, -1);
      std::vector<Work> works;
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (in_background) {
          works.push_back(comm.recv_async(&values[i], 1, DataType::i32, kAnySource, 5, &sources[i]));
        } else {
          comm.recv(&values[i], 1, DataType::i32, kAnySource, 5, &sources[i]);
        }
      }
      for (Work& work : works) work.wait();
      for (int round = 0; round < kMessages; ++round) {
        std::set<int> seen;
        for (int i = 3 * round; i < 3 * round + 3; ++i) {
          MUST(values[i] == round);
          seen.insert(sources[i]);
        }
        MUST(seen == (std::set<int>{1, 2, 3}));
      }
    });
  }
}

TEST(Transfers, TheFirstOfSeveralReceivesGetsTheMessage) {
  on_ranks(2, [](Communicator& comm) {
    for (const bool any_first : {true, false}) {
      if (comm.rank() == 0) {
        std::int32_t first = -1, second = -1;
        int source = -1;
        Work a =
            comm.recv_async(&first, 1, DataType::i32, any_first ? kAnySource : 1, 5, any_first ? &source : nullptr);
        Work b =
            comm.recv_async(&second, 1, DataType::i32, any_first ? 1 : kAnySource, 5, any_first ? nullptr : &source);
        const std::int32_t go = 0;
        comm.send(&go, 1, DataType::i32, 1);
        a.wait();
        b.wait();
        MUST(first == 10 && second == 11 && source == 1);
      } else {
        std::int32_t value = 0;
        comm.recv(&value, 1, DataType::i32, 0);
        for (value = 10; value < 12; ++value) comm.send(&value, 1, DataType::i32, 0, 5);
      }
    }
  });
}

TEST(Transfers, AGroupInTheBackgroundIsOneWork) {
  on_ranks(3, [](Communicator& comm) {
    const int next = (comm.rank() + 1) % 3, previous = (comm.rank() + 2) % 3;
    std::vector<std::vector<std::int32_t>> in(4, filled(kLarge, -1));
    const auto out = filled(kLarge, comm.rank());
    std::vector<Work> works;
    for (int g = 0; g < 2; ++g) {  // the second one joins the first
      comm.group_start();
      comm.recv(in[2 * g].data(), kLarge, DataType::i32, previous, g);
      comm.send(out.data(), kLarge, DataType::i32, next, g);
      comm.recv(in[2 * g + 1].data(), kLarge, DataType::i32, next, g);
      comm.send(out.data(), kLarge, DataType::i32, previous, g);
      works.push_back(comm.group_end_async());
    }
    for (Work& work : works) work.wait();
    for (int i = 0; i < 4; ++i) MUST(all_are(in[i], i % 2 == 0 ? previous : next));
    comm.group_start();
    comm.group_start();
    try {
      comm.group_end_async();
      MUST(!"refused");
    } catch (const Error& error) {
      MUST(error.code() == Code::invalid_argument);
    }
    comm.group_end();
    comm.group_end_async().wait();  // of nothing
  });
}

TEST(Transfers, CollectivesKeepTheirPlace) {
  on_ranks(2, [](Communicator& comm) {
    const int peer = 1 - comm.rank();
    for (int turn = 0; turn < 50; ++turn) {
      std::int32_t x = comm.rank(), y = -1, sum = 0;
      Work received = comm.recv_async(&y, 1, DataType::i32, peer);
      Work sent = comm.send_async(&x, 1, DataType::i32, peer);
      Work first = comm.all_reduce_async(&x, &sum, 1, DataType::i32);
      Work received_again =
          comm.recv_async(&y, 1, DataType::i32, peer);  // writes y once more, and does not mix them up
      Work sent_again = comm.send_async(&sum, 1, DataType::i32, peer);
      first.wait();
      MUST(received.test() && sent.test());
      comm.barrier();
      MUST(received_again.test() && sent_again.test());
      MUST(sum == 1 && y == 1);
    }
  });
}

// Messages that have no room stay in the mailbox until they are received.
TEST(Transfers, MemoryLimitBoundsWhatIsTakenAside) {
  Options options;
  options.memory_limit = std::size_t{64} << 20;
  const auto sizes = window_sizes(2, options, 0);
  options.memory_limit = sizes.value().bytes() + executor::PlanWalker::kBounceBytes + 1000;
  ASSERT_EQ(window_sizes(2, options, 0).value().bytes(), sizes.value().bytes());
  expect_no_errors(run_threads(
      2,
      [](Communicator& comm) {
        for (const std::size_t count : {std::size_t{1000}, kLarge}) {
          const std::int32_t one = 1;
          if (comm.rank() == 0) {
            const auto out = filled(count, 2);
            Work small = comm.send_async(&one, 1, DataType::i32, 1, 1);
            Work large = comm.send_async(out.data(), count, DataType::i32, 1, 2);
            Work last = comm.send_async(&one, 1, DataType::i32, 1, 3);
            for (Work* work : {&small, &large, &last}) work->wait();
          } else {
            std::int32_t first = 0, last = 0;
            auto in = filled(count, -1);
            Work waiting = comm.recv_async(&last, 1, DataType::i32, 0, 3);
            comm.recv(in.data(), count, DataType::i32, 0, 2);  // `first` is taken aside, this one cannot be
            comm.recv(&first, 1, DataType::i32, 0, 1);
            waiting.wait();
            MUST(first == 1 && last == 1 && all_are(in, 2));
            MUST(comm.memory().messages == 0);
          }
        }
      },
      options));
}

TEST(Transfers, AloneWithTags) {
  Communicator comm = std::move(Communicator::in_process(1).front());
  std::int32_t out[] = {1, 2}, in[] = {0, 0};
  int source = -1;
  comm.group_start();
  comm.recv(&in[0], 1, DataType::i32, 0, 2);
  comm.recv(&in[1], 1, DataType::i32, kAnySource, 1, &source);
  comm.send(&out[0], 1, DataType::i32, 0, 1);
  comm.send(&out[1], 1, DataType::i32, 0, 2);
  comm.group_end();
  EXPECT_EQ(in[0], 2);
  EXPECT_EQ(in[1], 1);
  EXPECT_EQ(source, 0);
  comm.group_start();
  comm.recv(&in[0], 1, DataType::i32, 0, 2);
  comm.send(&out[0], 1, DataType::i32, 0, 1);
  EXPECT_THROW(comm.group_end(), Error);
}

TEST(Transfers, WrongArgumentsAreTold) {
  on_ranks(2, [](Communicator& comm) {
    std::int32_t x = 0;
    const auto told = [](const std::function<void()>& call, const std::string& what) {
      try {
        call();
      } catch (const Error& error) {
        return error.code() == Code::invalid_argument && std::string(error.what()).find(what) != std::string::npos;
      }
      return false;
    };
    MUST(told([&] { comm.send(&x, 1, DataType::i32, 1, -1); }, "called send: tag is -1; expected 0 or more"));
    MUST(told([&] { comm.recv_async(&x, 1, DataType::i32, 1, -7); }, "called recv: tag is -7; expected 0 or more"));
    MUST(told([&] { comm.send(&x, 1, DataType::i32, kAnySource); }, "called send: peer is -1; expected 0 to 1"));
    MUST(told([&] { comm.recv(&x, 1, DataType::i32, 2); }, "called recv: peer is 2; expected 0 to 1, or any source"));
    comm.barrier();
  });
}

}  // namespace
}  // namespace tutti::testing::transfers_test
