// Sends, receives and all_to_allv among threads.
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/collectives/calls/exchanges.h"
#include "tests/collectives/ranks.h"

namespace tutti::testing::group_test {
namespace {

TEST(Group, AmongThreads) {
  for (const int ranks : {1, 2, 3, 5}) expect_no_errors(run_threads(ranks, exchange_everything));
}

TEST(Group, PingPongOutsideOfGroups) {
  expect_no_errors(run_threads(2, [](Communicator& comm) {
    for (int turn = 0; turn < 300; ++turn) {
      std::vector<std::int32_t> data(static_cast<std::size_t>(turn) * 17 % 5000, turn);
      if (comm.rank() == turn % 2) {
        comm.send(data.data(), data.size(), DataType::i32, 1 - comm.rank());
      } else {
        std::vector<std::int32_t> got(data.size(), -1);
        comm.recv(got.data(), got.size(), DataType::i32, 1 - comm.rank());
        MUST(got == data);
      }
    }
  }));
}

TEST(AllToAllV, CountsThatDifferAreNamedOnEveryRank) {
  const auto body = [](Communicator& comm) {
    const std::size_t send_counts[] = {1, 2, 3};
    const auto mine = send_counts[comm.rank()];
    std::size_t recv_counts[] = {mine, mine, mine};
    if (comm.rank() == 2) recv_counts[1] = 4;  // has room for more than rank 1 sends
    const std::size_t offsets[] = {0, 10, 20};
    std::int32_t out[30] = {}, in[30] = {};
    comm.all_to_allv(out, send_counts, offsets, in, recv_counts, offsets, DataType::i32);
    comm.barrier();  // no rank had to wait for the two in the call itself
  };
  const std::vector<std::string> errors = run_threads(3, body);
  EXPECT_NE(errors[0].find("which receives 4 x i32 in all_to_allv as its call 1"), std::string::npos) << errors[0];
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_EQ(errors[0], errors[2]);
}

TEST(AllToAllV, WhatIsWrongWithTheArgumentsIsToldAndLosesNothing) {
  const std::size_t n = 7, none = 0, huge = SIZE_MAX / 8;
  expect_no_errors(run_threads(2, [&](Communicator& comm) {
    std::int32_t out[] = {1, 2}, in[] = {0, 0};
    const auto told = [&](const std::size_t* send_counts, const std::size_t* recv_counts, const std::size_t* offsets,
                          std::int32_t* send, std::int32_t* recv, const std::string& what) {
      const std::size_t at[] = {0, 1};
      try {
        comm.all_to_allv(send, send_counts, offsets, recv, recv_counts, at, DataType::i32);
      } catch (const Error& error) {
        return std::string(error.what()).find(what) != std::string::npos;
      }
      return false;
    };
    const std::size_t one[] = {1, 1}, two[] = {1, 2}, at[] = {0, 1}, far[] = {huge, huge}, back[] = {1, 0};
    const std::size_t other[] = {n, n}, nothing[] = {none, none};
    MUST(told(nullptr, one, at, out, in, "counts or offsets are null"));
    MUST(told(one, far, at, out, in, "a count for rank 0 is"));
    MUST(told(one, one, far, out, in, "an offset for rank 0 is"));
    MUST(told(one, other, at, out, in, "it sends 1 elements to itself and expects 7"));
    MUST(told(one, one, at, nullptr, in, "send is null; expected 2 elements"));
    MUST(told(one, one, at, out, nullptr, "recv is null; expected room for 2 elements"));
    MUST(told(one, one, back, out, out, "send is recv; expected the same counts and offsets both ways then"));
    MUST(told(two, two, back, out, out, "send is recv"));
    comm.all_to_allv(nullptr, nothing, at, nullptr, nothing, at, DataType::i32);
    comm.all_to_allv(out, one, at, in, one, at, DataType::i32);
    MUST(in[0] == 1 + comm.rank() && in[1] == 1 + comm.rank());
  }));
}

TEST(Group, NestedGroupsRunWithTheOutermost) {
  expect_no_errors(run_threads(2, [](Communicator& comm) {
    std::vector<std::int32_t> out(10'000, comm.rank()), in(10'000, -1);
    comm.group_start();
    comm.group_start();
    comm.send(out.data(), out.size(), DataType::i32, 1 - comm.rank());
    comm.group_end();
    MUST(in[0] == -1);
    comm.recv(in.data(), in.size(), DataType::i32, 1 - comm.rank());
    comm.group_end();
    for (const std::int32_t value : in) MUST(value == 1 - comm.rank());
  }));
}

// Rank 1 is gone as soon as its message is in the mailbox; rank 0 takes it long afterwards.
TEST(Group, AMessageOutlivesItsSendersCommunicator) {
  for (int turn = 0; turn < 20; ++turn) {
    std::vector<Communicator> all = Communicator::in_process(2);
    std::thread sender([&] {
      Communicator mine = std::move(all[1]);
      const std::int32_t value = 5;
      mine.send(&value, 1, DataType::i32, 0);
    });
    if (turn % 2 == 0) sender.join();
    std::int32_t value = 0;
    all[0].recv(&value, 1, DataType::i32, 1);
    EXPECT_EQ(value, 5);
    if (sender.joinable()) sender.join();
  }
}

}  // namespace
}  // namespace tutti::testing::group_test
