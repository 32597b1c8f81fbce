// The bootstrap: joining, exchanging, dying, leaving.
#include "transport/bootstrap/bootstrap.h"

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include "tests/transport/bootstrap/bootstrap_support.h"
#include "transport/bootstrap/client.h"
#include "transport/sockets/interfaces.h"

namespace tutti::bootstrap::bootstrap_test {
namespace {

/// The contract: death is known to all others within this time.
constexpr auto kDeathIsKnown = 2s;

/// Collects failures; waits for them.
class Failures {
 public:
  std::function<void(const Failure&)> sink() {
    return [this](const Failure& failure) {
      const std::lock_guard lock(mutex_);
      failures_.push_back(failure);
      came_.notify_all();
    };
  }
  std::vector<Failure> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    came_.wait_for(lock, kDeathIsKnown, [&] { return failures_.size() >= count; });
    return failures_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<Failure> failures_;
};

void leave_all(std::vector<std::unique_ptr<Bootstrap>>& ranks) {
  on_threads(all_ranks(static_cast<int>(ranks.size())), [&](int rank) {
    auto& bootstrap = ranks[static_cast<std::size_t>(rank)];
    if (bootstrap == nullptr) return;
    EXPECT_TRUE(bootstrap->leave().ok());
    bootstrap.reset();
  });
}

class MeetTest : public ::testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(MeetTest, AllRanksGetAllBlobsInRankOrder) {
  const auto [size, address] = GetParam();
  std::unique_ptr<sockets::Listener> listener = std::string(address) == "@"
                                                    ? sockets::Listener::open_local().take()
                                                    : sockets::Listener::open({address, 0}).take();
  const sockets::Endpoint server = listener->endpoint();
  on_threads(all_ranks(size), [&, size = size](int rank) {
    Config config = config_of(rank, size, server);
    if (rank == 0) config.listener = std::move(listener);
    auto met = Bootstrap::connect(std::move(config));
    ASSERT_TRUE(met.ok()) << met.status().message();
    Bootstrap& bootstrap = *met.value();
    ASSERT_EQ(bootstrap.roster().size(), static_cast<std::size_t>(size));
    for (const Identity& identity : bootstrap.roster()) EXPECT_EQ(identity.pid, ::getpid());
    for (int round = 0; round < 20; ++round) {
      if (round == 10) bootstrap.watch([](const Failure& failure) { ADD_FAILURE() << failure.message; });
      const std::string mine(static_cast<std::size_t>(rank * 1000 + round), static_cast<char>('a' + rank % 26));
      auto all = bootstrap.all_gather(mine);
      ASSERT_TRUE(all.ok()) << all.status().message();
      ASSERT_EQ(all.value().size(), static_cast<std::size_t>(size));
      for (int other = 0; other < size; ++other) {
        EXPECT_EQ(all.value()[static_cast<std::size_t>(other)],
                  std::string(static_cast<std::size_t>(other * 1000 + round), static_cast<char>('a' + other % 26)));
      }
    }
    EXPECT_TRUE(bootstrap.barrier().ok());
    EXPECT_TRUE(bootstrap.leave().ok());
  });
}

INSTANTIATE_TEST_SUITE_P(SizesAndSockets, MeetTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 16), ::testing::Values("@", "127.0.0.1", "")));

// No client from another host shows a better one.
TEST(Bootstrap, OnOneHostTheirAddressIsWhereTheyMeet) {
  const sockets::OwnAddress own = sockets::own_address({}).value();
  if (own.address.empty()) GTEST_SKIP() << "tutti-test: not run: this host has only itself";
  for (const std::string& at : {own.address, std::string("127.0.0.1")}) {
    auto listener = sockets::Listener::open({at, 0}).take();
    const sockets::Endpoint server = listener->endpoint();
    on_threads(all_ranks(3), [&](int rank) {
      Config config = config_of(rank, 3, server);
      if (rank == 0) config.listener = std::move(listener);
      const auto met = Bootstrap::connect(std::move(config));
      ASSERT_TRUE(met.ok()) << met.status().message();
      for (const Identity& who : met.value()->roster()) EXPECT_EQ(who.address, sockets::is_loopback(at) ? "" : at);
      EXPECT_TRUE(met.value()->leave().ok());
    });
  }
}

TEST(Bootstrap, RankZeroMayComeLast) {
  const sockets::Endpoint server = unused_local_endpoint();
  std::vector<std::thread> clients;
  for (int rank = 1; rank < 4; ++rank) {
    clients.emplace_back([&, rank] {
      auto met = Bootstrap::connect(config_of(rank, 4, server));
      ASSERT_TRUE(met.ok()) << met.status().message();
      EXPECT_TRUE(met.value()->barrier().ok());
      EXPECT_TRUE(met.value()->leave().ok());
    });
  }
  auto met = Bootstrap::connect(config_of(0, 4, server));
  ASSERT_TRUE(met.ok()) << met.status().message();
  EXPECT_TRUE(met.value()->barrier().ok());
  EXPECT_TRUE(met.value()->leave().ok());
  for (std::thread& client : clients) client.join();
}

TEST(Bootstrap, TheSameAddressServesOneJobAfterAnother) {
  const sockets::Endpoint server = unused_local_endpoint();
  on_threads(all_ranks(3), [&](int rank) {
    for (int i = 0; i < 20; ++i) {
      auto met = Bootstrap::connect(config_of(rank, 3, server));
      ASSERT_TRUE(met.ok()) << met.status().message();
      const auto all = met.value()->all_gather(std::to_string(i));
      ASSERT_TRUE(all.ok()) << all.status().message();
      EXPECT_EQ(all.value(), std::vector<std::string>(3, std::to_string(i)));
      EXPECT_TRUE(met.value()->leave().ok());
    }
  });
}

TEST(Bootstrap, AnAbsentRankIsNamedOnEveryRankThatCame) {
  const sockets::Endpoint server = unused_local_endpoint();
  on_threads({0, 1, 2}, [&](int rank) {
    auto met = Bootstrap::connect(config_of(rank, 4, server, 300ms));
    ASSERT_FALSE(met.ok());
    EXPECT_EQ(met.status().code(), Code::timeout);
    EXPECT_EQ(met.status().message(), "rank 3 of 4 has not come within 0.3 s; ranks 0, 1, 2 are here");
  });
}

TEST(Bootstrap, SeveralAbsentRanksAreNamedByRankZero) {
  auto met = Bootstrap::connect(config_of(0, 9, unused_local_endpoint(), 50ms));
  ASSERT_FALSE(met.ok());
  EXPECT_EQ(met.status().message(), "ranks 1-8 of 9 have not come within 0.05 s; rank 0 is here");
}

TEST(Bootstrap, AnAbsentServerIsNamed) {
  const sockets::Endpoint server = unused_local_endpoint();
  auto met = Bootstrap::connect(config_of(1, 2, server, 100ms));
  ASSERT_FALSE(met.ok());
  EXPECT_EQ(met.status().code(), Code::timeout);
  EXPECT_EQ(met.status().message(),
            "rank 0 of 2 has not come within 0.1 s; no process answers at " + server.text() +
                ": Connection refused; it is looked for on host " + sockets::host_name() +
                " alone, and in this network namespace: ranks that are elsewhere need TUTTI_MASTER_ADDR");
}

TEST(Bootstrap, ARankMissingFromAnExchangeIsNamedAndTheNextOneWorks) {
  auto ranks = meet(3, 300ms);
  on_threads({0, 2}, [&](int rank) {
    const auto all = ranks[static_cast<std::size_t>(rank)]->all_gather("x");
    ASSERT_FALSE(all.ok());
    EXPECT_EQ(all.status().code(), Code::timeout);
    EXPECT_EQ(all.status().message(), "rank 1 of 3 has not come to exchange 1 within 0.3 s; ranks 0, 2 are there");
  });
  EXPECT_EQ(ranks[1]->all_gather("late").status().code(), Code::timeout);
  leave_all(ranks);
}

std::vector<bool> all_of(int size) { return std::vector<bool>(static_cast<std::size_t>(size), true); }

TEST(SurvivorExchange, ThoseWhoAreLeftGetTheSame) {
  auto ranks = meet(5, 5s);
  ranks[4].reset();  // dies
  EXPECT_TRUE(ranks[3]->leave().ok());
  for (std::uint64_t name = 1; name <= 3; ++name) {
    on_threads({0, 1, 2}, [&](int rank) {
      const auto all = ranks[static_cast<std::size_t>(rank)]
                           ->exchange_with_survivors(
                               name, [] { return all_of(5); }, std::to_string(rank), 5s)
                           .blobs;
      ASSERT_TRUE(all.ok()) << all.status().message();
      EXPECT_EQ(all.value(), (std::vector<std::string>{"0", "1", "2", "", ""}));
    });
  }
  ranks[3].reset();
  leave_all(ranks);
}

// Who dies, or turns out to come no more, while the others wait for it.
TEST(SurvivorExchange, NoRankWaitsForOneThatIsGone) {
  auto ranks = meet(4, 5s);
  std::atomic<int> asked{0};
  on_threads({0, 1, 2}, [&](int rank) {
    const auto among = [&asked, rank] {
      std::vector<bool> who = all_of(4);
      who[3] = rank != 1 || asked.load() < 20;  // only one of them gets to know
      ++asked;
      return who;
    };
    const auto all = ranks[static_cast<std::size_t>(rank)]->exchange_with_survivors(1, among, "x", 5s).blobs;
    ASSERT_TRUE(all.ok()) << all.status().message();
    EXPECT_EQ(all.value(), (std::vector<std::string>{"x", "x", "x", ""}));
  });
  on_threads({0, 1, 2}, [&](int rank) {
    const auto among = [&asked, &ranks, rank] {
      if (rank == 0 && ++asked == 60) ranks[3].reset();
      return all_of(4);
    };
    const auto all = ranks[static_cast<std::size_t>(rank)]->exchange_with_survivors(2, among, "y", 5s).blobs;
    ASSERT_TRUE(all.ok()) << all.status().message();
    EXPECT_EQ(all.value(), (std::vector<std::string>{"y", "y", "y", ""}));
  });
  leave_all(ranks);
}

TEST(SurvivorExchange, WhoDoesNotComeIsTold) {
  auto ranks = meet(3, 5s);
  on_threads({0, 2}, [&](int rank) {
    const Bootstrap::Survivors survivors = ranks[static_cast<std::size_t>(rank)]->exchange_with_survivors(
        1, [] { return all_of(3); }, "x", 200ms);
    const auto& all = survivors.blobs;
    ASSERT_FALSE(all.ok());
    EXPECT_EQ(all.status().code(), Code::timeout);
    EXPECT_EQ(survivors.late_rank, 1);
    EXPECT_EQ(all.status().message(), "rank 1 has not come to the exchange of survivors within 0.2 s");
  });
  EXPECT_EQ(ranks[1]
                ->exchange_with_survivors(
                    1, [] { return all_of(3); }, "late", 5s)
                .blobs.status()
                .code(),
            Code::timeout);
  leave_all(ranks);
}

TEST(Bootstrap, TooLargeAnExchangeFailsOnEveryRank) {
  auto ranks = meet(3);
  on_threads(all_ranks(3), [&](int rank) {
    Bootstrap& bootstrap = *ranks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(bootstrap.all_gather(std::string(kMaxPayload / 2, 'x')).status().code(), Code::invalid_argument);
    EXPECT_TRUE(bootstrap.barrier().ok());
  });
  EXPECT_EQ(ranks[0]->all_gather(std::string(kMaxPayload, 'x')).status().code(), Code::invalid_argument);
  leave_all(ranks);
}

TEST(Bootstrap, AnAnnouncementReachesAllOthersAsItWasMade) {
  auto ranks = meet(4);
  std::vector<Failures> failures(4);
  for (std::size_t rank = 0; rank < 4; ++rank) ranks[rank]->watch(failures[rank].sink());
  EXPECT_TRUE(ranks[2]->announce(77, Code::mismatch, "from two").ok());
  EXPECT_TRUE(ranks[0]->announce(78, Code::aborted, "from zero").ok());
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const std::vector<Failure> got = failures[rank].wait_for(2);
    ASSERT_EQ(got.size(), 2u) << rank;
    for (const Failure& failure : got) {
      EXPECT_EQ(failure.comm_id, failure.rank == 2 ? 77u : 78u);
      EXPECT_EQ(failure.code, failure.rank == 2 ? Code::mismatch : Code::aborted);
      EXPECT_EQ(failure.message, failure.rank == 2 ? "from two" : "from zero");
    }
  }
  leave_all(ranks);
}

/// Whatever their callers do: here they do nothing.
TEST(Bootstrap, WhoAsksIsAnsweredByAll) {
  auto ranks = meet(4);
  for (const int asker : {0, 2}) {
    const std::uint64_t comm_id = 70 + static_cast<std::uint64_t>(asker);
    std::mutex mutex;
    std::condition_variable came;
    std::map<int, std::uint64_t> answers;
    for (const int rank : all_ranks(4)) {
      Bootstrap& own = *ranks[static_cast<std::size_t>(rank)];
      own.watch([](const Failure& failure) { ADD_FAILURE() << failure.message; },
                [&, rank, asker, comm_id](const ProgressReport& report) {
                  EXPECT_EQ(report.comm_id, comm_id);
                  EXPECT_EQ(report.asker, asker);
                  if (report.rank < 0) {
                    EXPECT_TRUE(own.report_progress(report, 1000 + static_cast<unsigned>(rank)).ok());
                    return;
                  }
                  EXPECT_EQ(rank, asker);
                  const std::lock_guard lock(mutex);
                  answers[report.rank] = report.word;
                  came.notify_all();
                });
    }
    EXPECT_TRUE(ranks[static_cast<std::size_t>(asker)]->query_progress(comm_id).ok());
    std::unique_lock lock(mutex);
    EXPECT_TRUE(came.wait_for(lock, 30s, [&] { return answers.size() == 4; }));
    for (const auto& [rank, word] : answers) EXPECT_EQ(word, 1000u + static_cast<unsigned>(rank));
    lock.unlock();
    for (const auto& rank : ranks) rank->watch([](const Failure&) {});  // the old callback's captures end here
  }
  leave_all(ranks);
}

/// Also when who says it leaves at once. Who stays hears its own.
TEST(Bootstrap, ALeaveNoticeReachesThoseItIsFor) {
  for (const int leaver : {0, 2}) {
    const auto l = static_cast<std::size_t>(leaver);
    auto ranks = meet(4);
    std::mutex mutex;
    std::condition_variable came;
    std::vector<std::set<std::string>> heard(4);  // by rank: "comm_id came rank"
    for (const int rank : all_ranks(4)) {
      const auto r = static_cast<std::size_t>(rank);
      ranks[r]->watch([](const Failure&) {}, {},
                      [&, r](const LeaveNotice& leave_notice) {
                        const std::lock_guard lock(mutex);
                        for (const int of : leave_notice.ranks) {
                          heard[r].insert(fmt::format("{} {} {}", leave_notice.comm_id, leave_notice.came, of));
                        }
                        came.notify_all();
                      });
    }
    EXPECT_TRUE(ranks[1]->send_leave_notice(5, true, {leaver}).ok());
    {
      std::unique_lock lock(mutex);  // else it leaves before it hears
      EXPECT_TRUE(came.wait_for(lock, 30s, [&] { return !heard[l].empty(); }));
    }
    EXPECT_TRUE(ranks[l]->send_leave_notice(6, false, {1, 3}).ok());
    EXPECT_TRUE(ranks[l]->leave().ok());
    std::unique_lock lock(mutex);
    EXPECT_TRUE(came.wait_for(lock, 30s, [&] { return heard[1].size() == 2 && heard[3].size() == 1; }));
    const std::string last = fmt::format("6 0 {}", leaver);
    EXPECT_EQ(heard[1], (std::set<std::string>{"5 1 1", last}));
    EXPECT_EQ(heard[3], (std::set<std::string>{last}));
    EXPECT_EQ(heard[l].count("5 1 1"), 1u);
    EXPECT_TRUE(heard[leaver == 0 ? 2 : 0].empty());
    lock.unlock();
    for (const auto& rank : ranks) rank->watch([](const Failure&) {});  // the old callback's captures end here
    leave_all(ranks);
  }
}

TEST(Bootstrap, OfFailuresOfOneScopeAllHearTheSame) {
  auto ranks = meet(4);
  std::vector<Failures> failures(4);
  for (std::size_t rank = 0; rank < 4; ++rank) ranks[rank]->watch(failures[rank].sink());
  on_threads(all_ranks(4), [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    EXPECT_TRUE(ranks[r]->announce(9, Code::mismatch, "from " + std::to_string(rank)).ok());
    EXPECT_TRUE(ranks[r]->barrier().ok());  // comes behind the announcements
  });
  const std::string first = failures[0].wait_for(1).at(0).message;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const std::vector<Failure> got = failures[rank].wait_for(1);
    ASSERT_EQ(got.size(), 1u) << rank;
    EXPECT_EQ(got[0].message, first);
  }
  leave_all(ranks);
}

TEST(Bootstrap, FailuresBeforeWatchAreNotLost) {
  auto ranks = meet(2);
  EXPECT_TRUE(ranks[0]->announce(5, Code::aborted, "early").ok());
  // The exchange comes behind the announcement on the same connection, so afterwards rank 1 has both.
  on_threads(all_ranks(2), [&](int rank) { EXPECT_TRUE(ranks[static_cast<std::size_t>(rank)]->barrier().ok()); });
  Failures failures;
  ranks[1]->watch(failures.sink());
  const std::vector<Failure> got = failures.wait_for(1);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].message, "early");
  leave_all(ranks);
}

TEST(Bootstrap, LeavingIsNotDeath) {
  auto ranks = meet(3);
  std::vector<Failures> failures(3);
  for (std::size_t rank = 0; rank < 3; ++rank) ranks[rank]->watch(failures[rank].sink());
  EXPECT_TRUE(ranks[1]->leave().ok());
  ranks[1].reset();
  on_threads({0, 2}, [&](int rank) {
    const Status status = ranks[static_cast<std::size_t>(rank)]->barrier();
    EXPECT_EQ(status.code(), Code::aborted);
    EXPECT_NE(status.message().find("rank 1 (host "), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(" has left"), std::string::npos) << status.message();
    EXPECT_TRUE(ranks[static_cast<std::size_t>(rank)]->has_left(1));
  });
  EXPECT_TRUE(ranks[0]->leave().ok());
  EXPECT_EQ(ranks[2]->barrier().code(), Code::aborted);
  EXPECT_TRUE(ranks[2]->leave().ok());
  for (std::size_t rank : {0, 2}) EXPECT_TRUE(failures[rank].wait_for(0).empty());
}

TEST(Bootstrap, DestructionWithoutLeavingIsDeathAndEndsExchanges) {
  for (int victim = 0; victim < 3; ++victim) {
    auto ranks = meet(3);
    std::vector<Failures> failures(3);
    for (std::size_t rank = 0; rank < 3; ++rank) ranks[rank]->watch(failures[rank].sink());
    std::vector<int> others;
    for (int rank = 0; rank < 3; ++rank) {
      if (rank != victim) others.push_back(rank);
    }
    std::thread death([&] { ranks[static_cast<std::size_t>(victim)].reset(); });
    on_threads(others, [&](int rank) {
      const Status status = ranks[static_cast<std::size_t>(rank)]->barrier();
      EXPECT_EQ(status.code(), Code::peer_died);
      const std::string begin = "rank " + std::to_string(victim) + " (host ";
      EXPECT_EQ(status.message().rfind(begin, 0), 0u) << status.message();
      const std::vector<Failure> got = failures[static_cast<std::size_t>(rank)].wait_for(1);
      ASSERT_EQ(got.size(), 1u);
      EXPECT_EQ(got[0].rank, victim);
      EXPECT_EQ(got[0].message, status.message());
    });
    death.join();
    leave_all(ranks);
  }
}

// Rank 0 sees the death before its server does, as by a process that has ended, and leaves for that.
TEST(Bootstrap, ADeathThatRankZeroLeavesForIsTold) {
  for (int i = 0; i < 20; ++i) {
    auto ranks = meet(3);
    ranks[2].reset();  // its connection is closed by now, whether or not the server has seen it
    EXPECT_TRUE(ranks[0]->leave().ok());
    const Status status = ranks[1]->barrier();
    EXPECT_EQ(status.code(), Code::peer_died) << status.message();
    EXPECT_EQ(status.message().rfind("rank 2 (host ", 0), 0u) << status.message();
    EXPECT_TRUE(ranks[1]->leave().ok());
    if (HasFailure()) return;
  }
}

TEST(Bootstrap, NothingIsLeftBehind) {
  const int before = open_descriptors();
  for (int i = 0; i < 5; ++i) {
    auto ranks = meet(4);
    if (i % 2 == 0) leave_all(ranks);
  }
  EXPECT_EQ(open_descriptors(), before);
}

class KillTest : public ::testing::TestWithParam<int> {};

TEST_P(KillTest, AKilledRankIsNamedToAllOthers) {
  const int victim = GetParam();
  const sockets::Endpoint server = unused_local_endpoint();
  std::vector<Child> ranks;
  for (int rank = 0; rank < 4; ++rank) ranks.push_back(rank_process(rank, 4, server));
  for (Child& rank : ranks) ASSERT_EQ(rank.line(), "here");
  Child& dying = ranks[static_cast<std::size_t>(victim)];
  dying.signal(SIGKILL);
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == victim) continue;
    EXPECT_EQ(ranks[static_cast<std::size_t>(rank)].line(kDeathIsKnown),
              "peer died " + std::to_string(victim) + ": rank " + std::to_string(victim) + " (host " +
                  sockets::host_name() + ", pid " + std::to_string(dying.pid()) + ") died");
  }
}

INSTANTIATE_TEST_SUITE_P(ServerAndClients, KillTest, ::testing::Values(0, 1, 3));

TEST(Bootstrap, ARankThatDiesBeforeAllHaveComeEndsTheBootstrap) {
  const sockets::Endpoint server = unused_local_endpoint();
  on_threads({0, 1, 2}, [&](int rank) {
    if (rank == 1) {
      const BootstrapEndpoint local(1, 4, {"alpha", 77});
      const auto joined = join(local, server, test_secret(), BootstrapEndpoint::Clock::now() + 30s, 30s);
      EXPECT_TRUE(joined.ok()) << joined.status().message();
      return;  // and its connection closes
    }
    auto met = Bootstrap::connect(config_of(rank, 4, server, 2s));
    ASSERT_FALSE(met.ok());
    // Rank 2 may also come after the bootstrap has failed, and then finds no server.
    if (rank == 2 && met.status().code() == Code::timeout) return;
    EXPECT_EQ(met.status().code(), Code::peer_died);
    EXPECT_EQ(met.status().message(), "rank 1 (host alpha, pid 77) died before all ranks had come");
  });
}

TEST(Bootstrap, AStoppedServerDoesNotBlockAnnouncements) {
  const sockets::Endpoint server = unused_local_endpoint();
  Child rank0 = rank_process(0, 2, server);
  auto met = Bootstrap::connect(config_of(1, 2, server, 200ms));
  ASSERT_TRUE(met.ok()) << met.status().message();
  ASSERT_EQ(rank0.line(), "here");
  rank0.signal(SIGSTOP);
  // More than sockets and queues hold together: in the end it says so instead of waiting.
  Status status;
  for (int i = 0; i < 100'000 && status.ok(); ++i) {
    status = met.value()->announce(1, Code::aborted, std::string(kMaxText, 'x'));
  }
  EXPECT_EQ(status.code(), Code::timeout);
  EXPECT_EQ(status.message(), "rank 0 (host " + sockets::host_name() + ", pid " + std::to_string(rank0.pid()) +
                                  ") does not read what it is sent");
  EXPECT_TRUE(met.value()->leave().ok());
}

TEST(Bootstrap, AStoppedServerIsNamedByAnExchange) {
  const sockets::Endpoint server = unused_local_endpoint();
  Child rank0 = rank_process(0, 2, server);
  auto met = Bootstrap::connect(config_of(1, 2, server, 200ms));
  ASSERT_TRUE(met.ok()) << met.status().message();
  ASSERT_EQ(rank0.line(), "here");
  rank0.signal(SIGSTOP);
  const Status status = met.value()->barrier();
  EXPECT_EQ(status.code(), Code::timeout);
  EXPECT_EQ(status.message(), "rank 0 (host " + sockets::host_name() + ", pid " + std::to_string(rank0.pid()) +
                                  ") has not answered within 0.2 s");
}

TEST(Bootstrap, AForkedChildDoesNotHideItsParentsDeath) {
  const sockets::Endpoint server = unused_local_endpoint();
  Child rank1([&](const Child::Say& say) {
    auto met = Bootstrap::connect(config_of(1, 2, server));
    const pid_t worker = ::fork();
    if (worker == 0) {
      for (;;) ::pause();
    }
    say(std::to_string(worker));
    for (;;) ::pause();
  });
  Failures failures;
  auto met = Bootstrap::connect(config_of(0, 2, server));
  ASSERT_TRUE(met.ok()) << met.status().message();
  met.value()->watch(failures.sink());
  const pid_t worker = std::stoi(rank1.line());
  rank1.signal(SIGKILL);
  const std::vector<Failure> got = failures.wait_for(1);
  ::kill(worker, SIGKILL);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].rank, 1);
}

TEST(Bootstrap, ACopyInAForkedChildEndsQuietly) {
  auto ranks = meet(2);
  Child child([&](const Child::Say& say) {
    for (auto& rank : ranks) rank.reset();
    say("done");
  });
  EXPECT_EQ(child.line(), "done");
  on_threads(all_ranks(2), [&](int rank) { EXPECT_TRUE(ranks[static_cast<std::size_t>(rank)]->barrier().ok()); });
  leave_all(ranks);
}

}  // namespace
}  // namespace tutti::bootstrap::bootstrap_test
