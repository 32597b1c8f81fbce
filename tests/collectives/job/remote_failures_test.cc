// What ranks are told that count as being on other hosts (TUTTI_HOST_ID) when a call cannot end well.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tests/collectives/job/remote.h"
#include "tests/support/wait_readable.h"

namespace tutti::testing::remote_failures_test {
namespace {

/// Data and the word of the call are one message there.
TEST(RemoteNeighbours, ADifferentSmallCallIsNamed) {
  NEEDS_NETWORK();
  const auto body = [](Communicator& comm) -> std::string {
    std::vector<int> data(4);
    return error_in([&] {
      comm.all_reduce(data.data(), data.data(), data.size(), DataType::i32);
      comm.all_reduce(data.data(), data.data(), comm.rank() == 2 ? 3 : 4, DataType::i32);
    });
  };
  for (const Outcome& outcome : run_processes(3, body, {{"TUTTI_TIMEOUT", "20s"}}, {}, {"a", "b", "c"})) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_NE(outcome.said.find("called all_reduce(4 x i32, sum) as its call 2"), std::string::npos) << outcome.said;
    EXPECT_NE(outcome.said.find("called all_reduce(3 x i32, sum) as its call 2"), std::string::npos) << outcome.said;
  }
}

/// Ranks 1 and 2 would tell each other of their calls by signals that come after what they wait for, and that does not
/// come: they say it by themselves then, long before any deadline.
TEST(RemoteNeighbours, ADifferentCallIsNamedWhileAnotherIsLate) {
  NEEDS_NETWORK();
  int ended[2];
  ASSERT_EQ(::pipe(ended), 0);
  const auto body = [&](Communicator& comm) -> std::string {
    int value = 1;
    const auto down_the_chain = [&] {
      CallOptions chain;
      chain.algorithm = "chain";
      comm.broadcast(&value, &value, 1, DataType::i32, 0, chain);
    };
    down_the_chain();
    if (comm.rank() != 1 && comm.rank() != 2) {
      MUST(wait_readable(ended[0], std::chrono::seconds(100)));  // no rank reads it, so all find it
      return "";
    }
    // In the chain rank 1 waits for 0, then signals 2; in the barrier rank 2 waits for 1, and signals it at last.
    std::string said = error_in([&] { comm.rank() == 1 ? down_the_chain() : comm.barrier(); });
    MUST(TEMP_FAILURE_RETRY(::write(ended[1], "!", 1)) == 1);
    return said;
  };
  const std::vector<Outcome> outcomes =
      run_processes(5, body, {{"TUTTI_TIMEOUT", "30s"}}, {}, {"a", "b", "c", "d", "e"});
  ::close(ended[0]);
  ::close(ended[1]);
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, "");
  for (const int rank : {1, 2}) {
    const std::string& said = outcomes[static_cast<std::size_t>(rank)].said;
    EXPECT_NE(said.find("called broadcast(1 x i32, root 0) as its call 2"), std::string::npos) << said;
    EXPECT_NE(said.find("called barrier() as its call 2"), std::string::npos) << said;
  }
}

struct Late {
  std::string algorithm;
  std::function<void(Communicator&)> call;
  int late;    // this rank never comes
  int finder;  // its deadline passes first
  int ranks;
  bool linked;  // all of them have been, by a call before
};

/// Not those whose part is done, who may be neighbours or not, and poll as little as who is late.
TEST(RemoteFailures, OnlyTheLateRankIsNamed) {
  NEEDS_NETWORK();
  const auto to_root = [](Communicator& comm) {
    float value = 1, sum = 0;
    comm.reduce(&value, &sum, 1, DataType::f32, ReduceOp::sum, 0);
  };
  const auto from_root = [](Communicator& comm) {
    float value = 1;
    comm.broadcast(&value, &value, 1, DataType::f32, 0);
  };
  for (const Late& t : {Late{"linear", to_root, 2, 0, 4, true}, Late{"chain", from_root, 1, 3, 4, true},
                        Late{"chain", from_root, 1, 4, 5, false}}) {
    SCOPED_TRACE(t.algorithm + " of " + std::to_string(t.ranks));
    int found[2];
    ASSERT_EQ(::pipe(found), 0);
    const auto body = [&](Communicator& comm) -> std::string {
      const int rank = comm.rank();
      if (t.linked) sum_up(comm);
      if (rank == t.finder) comm.set_timeout(std::chrono::seconds(1));
      std::string said = rank == t.late ? "no error" : error_in([&] { t.call(comm); });
      if (rank == t.finder) MUST(TEMP_FAILURE_RETRY(::write(found[1], "!", 1)) == 1);
      MUST(wait_readable(found[0], std::chrono::seconds(100)));  // no rank reads it, so all find it
      return said != "no error" ? said : error_in([&] { sum_up(comm); });
    };
    Hosts hosts;
    for (int rank = 0; rank < t.ranks; ++rank) hosts.emplace_back(1, static_cast<char>('a' + rank));
    const std::vector<Outcome> outcomes = run_processes(t.ranks, body, {{"TUTTI_ALGORITHM", t.algorithm}}, {}, hosts);
    ::close(found[0]);
    ::close(found[1]);
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.error, "");
      EXPECT_EQ(outcome.said.find("rank " + std::to_string(t.late) + " (host "), 0u) << outcome.said;
      const std::string rest = outcome.said.substr(std::min(outcome.said.find(')'), outcome.said.size()));
      EXPECT_EQ(rest.find(") has not entered it; rank " + std::to_string(t.finder) + " ("), 0u) << outcome.said;
    }
  }
}

/// Both processes are well, and meet by another way; only the link's device can tell. In ./dev rdma-vm.
TEST(RemoteFailures, APortThatGoesDownIsNamedWithTheDevicesWords) {
  NEEDS_NETWORK();
  const char* const cable = std::getenv("TUTTI_TEST_CABLE");
  if (cable == nullptr) GTEST_SKIP() << "tutti-test: not run: TUTTI_TEST_CABLE names no two devices";
  const auto body = [](Communicator& comm) -> std::string {
    std::vector<float> data(1 << 20);
    const auto sum = [&] { comm.all_reduce(data.data(), data.data(), data.size(), DataType::f32, ReduceOp::sum); };
    sum();
    comm.barrier();
    if (comm.rank() == 0) MUST(std::system("ip link set cable0 down") == 0);
    return error_in([&] {
      for (int call = 0; call < 100; ++call) sum();
    });
  };
  const std::vector<Outcome> outcomes = run_processes(2, body, {{"TUTTI_TIMEOUT", "60s"}}, {}, {"a", "b"});
  EXPECT_EQ(std::system("ip link set cable0 up"), 0);
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_NE(outcome.said.find("all_reduce"), std::string::npos) << outcome.said;
    EXPECT_NE(outcome.said.find("the connection has failed on this side: its port may be down (vendor error"),
              std::string::npos)
        << outcome.said;
  }
  EXPECT_NE(outcomes[0].said.find("rank 1"), std::string::npos) << outcomes[0].said;
  EXPECT_NE(outcomes[1].said.find("rank 0"), std::string::npos) << outcomes[1].said;
}

TEST(RemoteFailures, AreReportedAfterRankZeroHasLeft) {
  NEEDS_NETWORK();
  const auto body = [](Communicator& comm) -> std::string {
    Communicator rest = without_rank_zero(comm);
    if (comm.rank() == 0) return "";
    if (comm.rank() == 1) rest.abort("enough");
    return error_in([&] { sum_up(rest); });
  };
  const std::vector<Outcome> outcomes = run_processes(4, body, {{"TUTTI_TIMEOUT", "20s"}}, {}, {"a", "b", "c", "c"});
  expect_no_errors(outcomes);
  for (std::size_t rank = 1; rank < outcomes.size(); ++rank) {
    EXPECT_EQ(outcomes[rank].said.find("rank 0 of a group (job rank 1, host "), 0u) << outcomes[rank].said;
    EXPECT_NE(outcomes[rank].said.find("aborted the communicator: enough"), std::string::npos) << outcomes[rank].said;
  }
}

TEST(RemoteFailures, ADeathIsOneAfterRankZeroHasLeft) {
  NEEDS_NETWORK();
  const auto body = [](Communicator& comm) -> std::string {
    Communicator rest = without_rank_zero(comm);
    if (comm.rank() == 0) return "";
    try {
      for (int call = 0;; ++call) {
        if (comm.rank() == 1 && call == 20) ::raise(SIGKILL);
        sum_up(rest);
      }
    } catch (const Error& error) {
      return error.code() == Code::peer_died ? error.what() : "another error: " + std::string(error.what());
    }
  };
  // With and without a rank that sees it die.
  for (const Hosts& hosts : {Hosts{"a", "b", "c", "d"}, Hosts{"a", "b", "b", "c"}}) {
    const std::vector<Outcome> outcomes = run_processes(4, body, {{"TUTTI_TIMEOUT", "20s"}}, {}, hosts);
    for (const std::size_t rank : {2u, 3u}) {
      EXPECT_EQ(outcomes[rank].error, "");
      EXPECT_EQ(outcomes[rank].said.find("rank 0 of a group (job rank 1, host "), 0u) << outcomes[rank].said;
      EXPECT_NE(outcomes[rank].said.find(" died "), std::string::npos) << outcomes[rank].said;
    }
  }
}

/// The rank that receives never writes to the other, nor do their processes in the calls before.
TEST(RemoteFailures, ADeathIsFoundByWhoOnlyReceivesAfterRankZeroHasLeft) {
  NEEDS_NETWORK();
  int found[2];
  ASSERT_EQ(::pipe(found), 0);
  const auto body = [&](Communicator& comm) -> std::string {
    Communicator rest = without_rank_zero(comm);
    if (comm.rank() == 4) ::raise(SIGKILL);
    std::string said;
    if (comm.rank() == 1) {
      float value = 0;
      said = error_in([&] { rest.recv(&value, 1, DataType::f32, 3); });
      MUST(TEMP_FAILURE_RETRY(::write(found[1], "!", 1)) == 1);
    }
    MUST(comm.rank() == 0 || wait_readable(found[0], std::chrono::seconds(100)));  // no rank reads it, so all find it
    return said;
  };
  const Environment environment{{"TUTTI_NETWORK", "tcp"}, {"TUTTI_ALGORITHM", "ring"}, {"TUTTI_TIMEOUT", "60s"}};
  const std::vector<Outcome> outcomes = run_processes(8, body, environment, {}, kEightHosts);
  ::close(found[0]);
  ::close(found[1]);
  EXPECT_EQ(outcomes[1].said.find("rank 3 of a group (job rank 4, host "), 0u) << outcomes[1].said;
  EXPECT_NE(outcomes[1].said.find(") died, or is cut off: "), std::string::npos) << outcomes[1].said;
}

/// Rank 0 stands still, and with it the bootstrap server, which others would be asked through: of those that this rank
/// has heard nothing from nothing is known, and they are not named.
TEST(RemoteFailures, AStoppedServerIsNamedAlone) {
  NEEDS_NETWORK();
  struct Shared {
    std::atomic<int> here{0};
    std::atomic<pid_t> stopped{0};
    std::atomic<int> done{0};
  };
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Shared& shared = *new (memory) Shared;
  const auto body = [&](Communicator& comm) -> std::string {
    shared.here.fetch_add(1);
    while (shared.here.load() < comm.size()) sched_yield();  // who still makes it needs the bootstrap server
    if (comm.rank() == 0) {
      shared.stopped.store(::getpid());
      ::raise(SIGSTOP);
      return "";
    }
    while (shared.stopped.load() == 0) sched_yield();
    std::vector<int> data(100'000, 1);
    comm.set_timeout(std::chrono::seconds(1));
    std::string said = error_in([&] { comm.all_reduce(data.data(), data.data(), data.size(), DataType::i32); });
    if (shared.done.fetch_add(1) + 2 == comm.size()) ::kill(shared.stopped.load(), SIGCONT);
    return said;
  };
  const Environment environment{{"TUTTI_ALGORITHM", "ring"}};
  const std::vector<Outcome> outcomes = run_processes(5, body, environment, {}, {"a", "b", "c", "d", "e"});
  ::munmap(memory, sizeof(Shared));
  for (std::size_t rank = 1; rank < outcomes.size(); ++rank) {
    const std::string& said = outcomes[rank].said;
    EXPECT_EQ(outcomes[rank].error, "");
    EXPECT_EQ(said.find("rank 0 (host "), 0u) << said;
    EXPECT_EQ(said.substr(std::min(said.find(')'), said.size())).find(") has not entered it; rank "), 0u) << said;
  }
}

}  // namespace
}  // namespace tutti::testing::remote_failures_test
