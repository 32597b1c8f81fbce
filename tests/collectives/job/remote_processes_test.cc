// Ranks that count as being on other hosts (TUTTI_HOST_ID), so that their data goes by a network: over this machine's
// own interfaces. A failure prints the seed; TUTTI_TEST_SEED repeats it.
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/collectives/conformance.h"
#include "tests/collectives/job/remote.h"
#include "tests/collectives/random_programs.h"
#include "tests/collectives/transfer_programs.h"
#include "tests/support/emulated.h"
#include "tests/support/usage.h"
#include "transport/shm/arena.h"
#include "transport/ucx/ucx.h"

namespace tutti::testing::remote_processes_test {
namespace {

using Body = std::function<std::string(Communicator&)>;

const Hosts kPlacements[] = {{"a", "b"}, {"a", "b", "a"}, {"a", "a", "b", "b"}, {"a", "b", "c", "a"}};

class Remote : public ::testing::TestWithParam<Hosts> {
 protected:
  void SetUp() override { NEEDS_NETWORK(); }
  static std::vector<Outcome> run(const Body& body, const Environment& environment = {}) {
    return run_processes(static_cast<int>(GetParam().size()), body, environment, {}, GetParam());
  }
};

TEST_P(Remote, RandomPrograms) {
  const unsigned seed = program_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  const Environment environments[] = {{}, {{"TUTTI_SCRATCH", "64K"}}};
  for (const Environment& environment : environments) {
    const auto body = [&](Communicator& comm) -> std::string {
      RandomProgram(comm, seed, true).run(100);
      return "";
    };
    expect_no_errors(run(body, environment));
  }
}

TEST_P(Remote, RandomTransfers) {
  const unsigned seed = program_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  const auto body = [&](Communicator& comm) -> std::string {
    run_transfer_programs(comm, seed, 3);
    return "";
  };
  expect_no_errors(run(body));
}

TEST_P(Remote, CommunicatorsOfPartsOfTheJob) {
  const auto body = [](Communicator& comm) -> std::string {
    for (int turn = 0; turn < 3; ++turn) {
      Communicator half = comm.split(comm.rank() % 2, -comm.rank());
      int sum = 1;
      half.all_reduce(&sum, &sum, 1, DataType::i32);
      if (sum != half.size()) throw std::runtime_error("the sum is " + std::to_string(sum));
    }
    return "";
  };
  expect_no_errors(run(body));
}

TEST_P(Remote, ADifferentCallIsNamedOnAllRanks) {
  const auto body = [](Communicator& comm) -> std::string {
    std::vector<float> data(1000);
    try {
      // A rank that is slow to leave this call may hear of the others' failure in it.
      comm.all_reduce(data.data(), data.data(), data.size(), DataType::f32);
      if (comm.rank() == 1) {
        comm.broadcast(data.data(), data.data(), 10, DataType::f32, 0);
      } else {
        comm.all_reduce(data.data(), data.data(), data.size(), DataType::f32);
      }
      comm.barrier();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  for (const Outcome& outcome : run(body, {{"TUTTI_TIMEOUT", "20s"}})) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_NE(outcome.said.find("called all_reduce(1000 x f32, sum) as its call 2"), std::string::npos) << outcome.said;
    EXPECT_NE(outcome.said.find("called broadcast(10 x f32, root 0) as its call 2"), std::string::npos) << outcome.said;
  }
}

TEST_P(Remote, ARankThatDiesIsNamedOnAllOthers) {
  const auto body = [](Communicator& comm) -> std::string {
    std::vector<float> data(100'000);
    try {
      for (int call = 0;; ++call) {
        if (comm.rank() == 1 && call == 20) ::raise(SIGKILL);
        comm.all_reduce(data.data(), data.data(), data.size(), DataType::f32);
      }
    } catch (const Error& error) {
      return error.what();
    }
  };
  const std::vector<Outcome> outcomes = run(body, {{"TUTTI_TIMEOUT", "20s"}});
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (rank == 1) continue;
    EXPECT_EQ(outcomes[rank].error, "");
    EXPECT_NE(outcomes[rank].said.find("rank 1 ("), std::string::npos) << outcomes[rank].said;
    EXPECT_NE(outcomes[rank].said.find("died"), std::string::npos) << outcomes[rank].said;
  }
}

/// Address space that this process may still take; -1: as before.
void limit_address_space(std::int64_t more) {
  static rlimit before;
  if (more >= 0) ::getrlimit(RLIMIT_AS, &before);
  rlimit limit = before;
  if (more >= 0) limit.rlim_cur = status_kb("VmSize:") * 1024 + static_cast<std::size_t>(more);
  MUST(::setrlimit(RLIMIT_AS, &limit) == 0);
}

/// A rank that cannot reach the others' memory is silent for them, unless it says so.
TEST_P(Remote, ARankThatCannotConnectIsNamedOnAllRanks) {
  NOT_EMULATED("the limit of address space is not the emulated program's");
  const auto body = [](Communicator& comm) -> std::string {
    sum_up(comm);
    if (comm.rank() == 1) limit_address_space(8 << 20);  // less than the shadow of one peer's window
    Communicator child;
    const std::string mine = error_in([&] { child = comm.split(0, 0); });
    if (comm.rank() == 1) limit_address_space(-1);
    const std::string said = comm.rank() == 1 ? mine : mine == "no error" ? error_in([&] { sum_up(child); }) : "";
    sum_up(comm);  // the parent serves as before
    return said;
  };
  const std::vector<Outcome> outcomes = run(body, {{"TUTTI_TIMEOUT", "20s"}, {"TUTTI_SCRATCH", "16M"}});
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_EQ(outcomes[rank].error, "") << "rank " << rank;
    EXPECT_NE(outcomes[rank].said.find("no address space for the"), std::string::npos) << outcomes[rank].said;
    if (rank == 1) continue;
    EXPECT_EQ(outcomes[rank].said.find("rank 1 (host "), 0u) << outcomes[rank].said;
    EXPECT_NE(outcomes[rank].said.find("could not join the communicator"), std::string::npos) << outcomes[rank].said;
  }
}

TEST_P(Remote, AnEmptyCallIsComparedWithThoseOfAllRanks) {
  // Rank 1 makes another second call than the others, which are free to run ahead of it.
  const auto body = [](Communicator& comm) -> std::string {
    return error_in([&] {
      sum_up(comm);  // a rank that is slow to leave it may hear of the failure in it
      if (comm.rank() == 1) return comm.barrier();
      for (int i = 0; i < 1000; ++i) comm.all_reduce(nullptr, nullptr, 0, DataType::f32);
      comm.barrier();
    });
  };
  for (const Outcome& outcome : run(body, {{"TUTTI_TIMEOUT", "20s"}})) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_NE(outcome.said.find("called all_reduce(0 x f32, sum) as its call 2"), std::string::npos) << outcome.said;
    EXPECT_NE(outcome.said.find("rank 1 ("), std::string::npos) << outcome.said;
    EXPECT_NE(outcome.said.find("called barrier() as its call 2"), std::string::npos) << outcome.said;
  }
}

/// The first message makes its connection: a sender that starts it and computes must not keep it from its receiver.
TEST_P(Remote, AStartedSendLeavesWhileItsSenderComputes) {
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& received = *static_cast<std::atomic<int>*>(memory);
  const auto body = [&](Communicator& comm) -> std::string {
    int value = 17;
    if (comm.rank() == 0) {
      Work sent = comm.send_async(&value, 1, DataType::i32, 1);
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (received.load() == 0 && std::chrono::steady_clock::now() < end) sched_yield();
      MUST(received.load() == 17);
      sent.wait();
    } else if (comm.rank() == 1) {
      comm.recv(&value, 1, DataType::i32, 0);
      received.store(value);
    }
    return "";
  };
  expect_no_errors(run(body));
  ::munmap(memory, 4096);
}

/// Data which goes with its signal has cells for 64 calls. A receiver reports its place before they are used up, even
/// if it has gone away computing.
TEST_P(Remote, ARootRunsAheadOfReceiversThatCompute) {
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& sent = *static_cast<std::atomic<int>*>(memory);
  const auto body = [&](Communicator& comm) -> std::string {
    constexpr int kFirst = 50;  // while no other rank has come
    constexpr int kComes = 40;  // then the others do so many, and compute until
    constexpr int kAhead = 85;  // the root has done these
    constexpr int kAll = 200;
    CallOptions chain;
    chain.algorithm = "chain";
    comm.barrier();  // makes the connections
    for (int call = 0; call < kAll; ++call) {
      const int needed = call == 0 ? kFirst : kAhead;
      if (comm.rank() != 0 && (call == 0 || call == kComes)) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (sent.load() < needed && std::chrono::steady_clock::now() < end) sched_yield();
        MUST(sent.load() >= needed);
      }
      std::vector<int> data(1000, comm.rank() == 0 ? call : -1);
      comm.broadcast(data.data(), data.data(), data.size(), DataType::i32, 0, chain);
      MUST(data.front() == call && data.back() == call);
      if (comm.rank() == 0) sent.store(call + 1);
    }
    return "";
  };
  expect_no_errors(run(body));
  ::munmap(memory, 4096);
}

/// Messages to remote ranks are written into memory of the sender's own, which counts.
TEST_P(Remote, TheMemoryOfSendsIsReported) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer's own memory would be counted too";
#endif
  const char* network = ::getenv("TUTTI_NETWORK");
  if (network != nullptr && network == std::string("verbs")) {
    GTEST_SKIP() << "the bounce buffers of verbs, which all communicators share, would be counted too";
  }
  const auto body = [](Communicator& world) -> std::string {
    std::vector<std::byte> mine(4 << 20), theirs(4 << 20);
    const auto send_all = [&](Communicator& comm) {
      for (int step = 1; step < comm.size(); ++step) {
        comm.group_start();
        comm.send(mine.data(), mine.size(), DataType::u8, (comm.rank() + step) % comm.size());
        comm.recv(theirs.data(), theirs.size(), DataType::u8, (comm.rank() - step + comm.size()) % comm.size());
        comm.group_end();
      }
    };
    send_all(world);  // what the network's library takes
    const std::size_t arena_before = transport::Arena::process().value()->allocated();
    Communicator comm = world.split(0, 0);
    const std::size_t in_arena = transport::Arena::process().value()->allocated() - arena_before;
    sum_up(comm);
    const std::size_t before = status_kb("RssAnon:");
    send_all(comm);
    const std::size_t written = (status_kb("RssAnon:") - before) * 1024;
    const std::size_t reported = comm.memory().scratch;
    constexpr std::size_t kHeap = 512 << 10;  // of the network's library, which grows with what is under way
    if (written > reported - in_arena + kHeap) {
      return std::to_string(written) + " bytes were written, " + std::to_string(reported - in_arena) + " are reported";
    }
    return "";
  };
  for (const Outcome& outcome : run(body)) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.said, "");
  }
}

TEST_P(Remote, AMemoryLimitIsKept) {
  const auto body = [](Communicator& comm) -> std::string {
    MUST(comm.memory().scratch <= 3'000'000);
    use_all(comm);
    MUST(comm.memory().scratch <= 3'000'000);
    return "";
  };
  expect_no_errors(run(body, {{"TUTTI_MEMORY_LIMIT", "3000000"}}));
}

/// Who has had nothing to do with each other for many calls may both wait for a word of the other before they use a
/// cell.
TEST(RemoteNeighbours, MeetAfterManyCallsApart) {
  NEEDS_NETWORK();
  const auto body = [](Communicator& comm) -> std::string {
    std::vector<int> data(4);
    for (const int apart : {1, 31, 32, 33, 63, 64, 65, 200}) {
      for (int call = 0; call < apart; ++call) {
        std::fill(data.begin(), data.end(), comm.rank() == 0 ? call : -1);
        CallOptions chain;
        chain.algorithm = "chain";  // each rank to the next
        comm.broadcast(data.data(), data.data(), data.size(), DataType::i32, 0, chain);
        MUST(data.front() == call && data.back() == call);
      }
      std::fill(data.begin(), data.end(), comm.rank());
      comm.all_reduce(data.data(), data.data(), data.size(), DataType::i32);
      MUST(data.front() == comm.size() * (comm.size() - 1) / 2 && data.back() == data.front());
    }
    return "";
  };
  // With cells for 64 calls, and for 32.
  for (const Hosts& hosts : {Hosts{"a", "b", "c"}, Hosts{"a", "b", "c", "a", "b", "c", "a", "b", "c"}}) {
    expect_no_errors(run_processes(static_cast<int>(hosts.size()), body, {{"TUTTI_TIMEOUT", "60s"}}, {}, hosts));
  }
}

/// Connections over TCP that this process has.
int connections() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    const int fd = std::stoi(entry.path().filename());
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    count += peer.ss_family == AF_INET || peer.ss_family == AF_INET6 ? 1 : 0;
  }
  return count;
}

/// With what its parameter names, TUTTI_NETWORK.
class NetLinksOver : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    NEEDS_NETWORK();
    const std::string missing = GetParam() == std::string("ucx") ? in_child(transport::UcxWire::missing).said : "";
    if (!missing.empty()) GTEST_SKIP() << "tutti-test: not run: " << missing;
  }
};

/// Also where they wait for so long that they tell others that they still poll, and when communicators end. (Two ranks
/// that connect to each other at the same moment have two connections for a while.) Those that a network made for all
/// peers at once would be there before the first call, so all are counted; the bootstrap server's are none of TCP here.
TEST_P(NetLinksOver, AreMadeBetweenNeighboursOnly) {
  const auto body = [](Communicator& comm) -> std::string {
    const auto around = [](Communicator& ring) {
      const auto since = std::chrono::steady_clock::now();
      while (ring.rank() == 0 && std::chrono::steady_clock::now() - since < std::chrono::milliseconds(120)) {
        sched_yield();
      }
      std::vector<int> data(100'000, 1);
      ring.all_reduce(data.data(), data.data(), data.size(), DataType::i32);
      MUST(data.front() == ring.size() && data.back() == ring.size());
    };
    around(comm);
    const int of_ring = connections();
    int with_split = 0;  // which is another call
    {
      Communicator same = comm.split(0, comm.rank());
      with_split = connections();
      around(same);
    }
    around(comm);
    if (of_ring < 2 || of_ring > 4) return std::to_string(of_ring) + " connections of a ring";
    const int made = connections() - with_split;
    return made > 0 ? std::to_string(made) + " connections made after the split" : "";
  };
  const Environment environment{{"TUTTI_NETWORK", GetParam()}, {"TUTTI_ALGORITHM", "ring"}, {"UCX_TLS", "tcp"}};
  const std::vector<Outcome> outcomes = run_processes(8, body, environment, {}, kEightHosts);
  expect_no_errors(outcomes);
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.said, "");
}
INSTANTIATE_TEST_SUITE_P(Networks, NetLinksOver, ::testing::Values("tcp", "ucx"),
                         [](const auto& info) { return std::string(info.param); });

TEST(NetLinks, WhoHasClosedWithoutThemIsNamedAtOnce) {
  NEEDS_NETWORK();
  const auto body = [](Communicator& comm) -> std::string {
    float value = 0;
    return comm.rank() != 1 ? "" : error_in([&] { comm.recv(&value, 1, DataType::f32, 3); });
  };
  const std::vector<Outcome> outcomes = run_processes(4, body, {{"TUTTI_TIMEOUT", "100s"}}, {}, {"a", "b", "c", "d"});
  expect_no_errors(outcomes);
  EXPECT_EQ(outcomes[1].said.find("rank 3 (host "), 0u) << outcomes[1].said;
  EXPECT_NE(outcomes[1].said.find("has closed its communicator"), std::string::npos) << outcomes[1].said;
}

/// The leave notices of those that have written nothing to each other come, too: else a window stays for each of these
/// communicators. (A few stay for a while where a rank is more than a second late to say it.)
TEST(NetLinks, CommunicatorsEndWithoutThem) {
  NEEDS_NETWORK();
  for (const bool without_server : {false, true}) {
    SCOPED_TRACE(without_server ? "rank 0 has left" : "with a bootstrap server");
    const auto body = [&](Communicator& comm) -> std::string {
      Communicator rest = without_server ? without_rank_zero(comm) : comm.split(0, comm.rank());
      if (without_server && comm.rank() == 0) return "";
      const transport::Arena& arena = *transport::Arena::process().value();
      std::size_t window = 0;
      const std::size_t before = arena.allocated();
      for (int turn = 0; turn < 12; ++turn) {
        Communicator same = rest.split(0, rest.rank());
        if (turn == 0) window = arena.allocated() - before;
        std::vector<int> data(1000, 1);
        same.all_reduce(data.data(), data.data(), data.size(), DataType::i32);
      }
      MUST(window > 0);
      MUST(arena.allocated() <= before + 3 * window);
      return "";
    };
    const Environment environment{{"TUTTI_NETWORK", "tcp"}, {"TUTTI_ALGORITHM", "ring"}};
    expect_no_errors(run_processes(8, body, environment, {}, kEightHosts));
  }
}

std::string name_of_placement(const ::testing::TestParamInfo<Hosts>& info) {
  std::string name;
  for (const std::string& host : info.param) name += host;
  return name;
}
INSTANTIATE_TEST_SUITE_P(Placement, Remote, ::testing::ValuesIn(kPlacements), name_of_placement);

}  // namespace
}  // namespace tutti::testing::remote_processes_test
