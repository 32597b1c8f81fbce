// Sends, receives and all_to_allv among processes: by place, by the kernel's copy, and through slots.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/collectives/calls/exchanges.h"
#include "tests/collectives/processes.h"

namespace tutti::testing::group_processes_test {
namespace {

TEST(GroupOfProcesses, ExchangeEverything) {
  for (const int ranks : {2, 3, 5}) {
    for (const char* cross_memory : {"on", "off"}) {
      const auto body = [](Communicator& comm) -> std::string {
        exchange_everything(comm);
        return "";
      };
      expect_no_errors(run_processes(ranks, body, {{"TUTTI_CROSS_MEMORY", cross_memory}}));
    }
  }
}

// Rank 1 has closed its communicator, and its process has ended, as soon as its message is in the mailbox.
TEST(GroupOfProcesses, AMessageOutlivesItsSender) {
  for (int turn = 0; turn < 20; ++turn) {
    const auto body = [](Communicator& comm) -> std::string {
      std::int32_t value = 5;
      if (comm.rank() == 1) {
        comm.send(&value, 1, DataType::i32, 0);
      } else {
        comm.recv(&value, 1, DataType::i32, 1);
        MUST(value == 5);
      }
      return "";
    };
    expect_no_errors(run_processes(2, body));
  }
}

// A rank whose part is done may end while the others are still at it.
TEST(GroupOfProcesses, TheFirstToFinishMayLeave) {
  for (int turn = 0; turn < 10; ++turn) {
    const auto body = [](Communicator& comm) -> std::string {
      std::vector<float> data(400'000, 1.0f);
      comm.broadcast(data.data(), data.data(), data.size(), DataType::f32, 0, {.algorithm = "chain"});
      MUST(data.back() == 1.0f);
      return "";
    };
    expect_no_errors(run_processes(4, body));
  }
}

}  // namespace
}  // namespace tutti::testing::group_processes_test
