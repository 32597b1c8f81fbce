// Sends, receives and all_to_allv among threads.
#include <thread>

#include "tests/collectives/exchanges.h"
#include "tests/collectives/ranks.h"

namespace tutti::testing {
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

// Both use the same mailboxes, and these messages are of the same size and type.
TEST(Group, AMessageOfACollectiveDoesNotPassForAnother) {
  const auto body = [](Communicator& comm) {
    const std::size_t counts[] = {1, 1};
    const std::size_t offsets[] = {0, 1};
    std::int32_t out[] = {1, 2};
    std::int32_t in[] = {0, 0};
    std::int32_t other = 7;
    if (comm.rank() == 0) comm.send(&other, 1, DataType::i32, 1);
    comm.all_to_allv(out, counts, offsets, in, counts, offsets, DataType::i32);
    comm.recv(&other, 1, DataType::i32, 1 - comm.rank());
  };
  Options options;
  options.timeout = std::chrono::seconds(20);  // taken for each other, they leave the last recv without a message
  const std::vector<std::string> errors = run_threads(2, body, options);
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_NE(errors[1].find("which receives 1 x i32 in all_to_allv as its call 1"), std::string::npos) << errors[1];
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
}  // namespace tutti::testing
