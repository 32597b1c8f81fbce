// C9: a timer's signals end no wait and no rank, with and without SA_RESTART.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

#include "tests/collectives/processes.h"

namespace {
/// Looks at one descriptor that do not wait are interrupted, as by a signal at that very moment.
bool interrupted = false;
}  // namespace

/// In place of the C library's.
extern "C" int poll(pollfd* items, nfds_t count, int milliseconds) {
  if (interrupted && count == 1 && milliseconds == 0) {
    errno = EINTR;
    return -1;
  }
  timespec limit{milliseconds / 1000, milliseconds % 1000 * 1'000'000L};
  return static_cast<int>(syscall(SYS_ppoll, items, count, milliseconds < 0 ? nullptr : &limit, nullptr, 0));
}

namespace tutti::testing::signals_test {
namespace {

// Rank 0 looks whether rank 1, which is late, lives.
TEST(Signals, C9ALookThatIsInterruptedIsNoDeath) {
  const auto outcomes = run_processes(2, [](Communicator& comm) {
    interrupted = true;
    for (int i = 0; i < 5; ++i) {
      if (comm.rank() == 1) ::usleep(20'000);
      std::int32_t value = 1;
      comm.all_reduce(&value, &value, 1, DataType::i32);
      if (value != 2) return "it gives " + std::to_string(value);
    }
    interrupted = false;
    return std::string();
  });
  expect_no_errors(outcomes);
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.said, "");
}

void storm(int flags) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = flags;
  sigaction(SIGALRM, &action, nullptr);
  const itimerval every{{0, 300}, {0, 300}};
  setitimer(ITIMER_REAL, &every, nullptr);
}

struct Way {
  const char* name;
  int flags;
  std::vector<std::string> hosts;
  const char* network;
};

class Storm : public ::testing::TestWithParam<Way> {};

TEST_P(Storm, C9EveryCallIsRight) {
  const Way& way = GetParam();
  if (!way.hosts.empty()) NEEDS_NETWORK();
  const auto outcomes = run_ranks(
      2,
      [&](int) {
        storm(way.flags);
        // Communicators too, since many of their calls to the kernel are those of the making.
        for (int made = 0; made < 10; ++made) {
          Communicator comm = Communicator::from_environment();
          for (std::int32_t i = 0; i < 1000; ++i) {
            std::int32_t value = i + comm.rank();
            comm.all_reduce(&value, &value, 1, DataType::i32);
            if (value != 2 * i + 1) return "call " + std::to_string(i) + " gives " + std::to_string(value);
            if (i % 100 == 0) ::usleep(2000);  // the rank that waits looks whether the other lives
          }
          std::vector<std::int32_t> large(1 << 20, 1);
          comm.all_reduce(large.data(), large.data(), large.size(), DataType::i32);
          if (large.back() != 2) return std::string("the large one is wrong");
        }
        return std::string();
      },
      {{"TUTTI_NETWORK", way.network}}, {}, way.hosts);
  expect_no_errors(outcomes);
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.said, "");
}

INSTANTIATE_TEST_SUITE_P(Ways, Storm,
                         ::testing::Values(Way{"shm", 0, {}, "auto"}, Way{"shm_restart", SA_RESTART, {}, "auto"},
                                           Way{"tcp", 0, {"a", "b"}, "tcp"},
                                           Way{"tcp_restart", SA_RESTART, {"a", "b"}, "tcp"}),
                         [](const ::testing::TestParamInfo<Way>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tutti::testing::signals_test
