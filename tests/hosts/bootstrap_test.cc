// The bootstrap between hosts: ranks join, exchange, and learn of a host's death; a link that goes down
// is a named error within the deadline, and one that comes back in time is none.
#include "transport/bootstrap/bootstrap.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/collectives/processes.h"
#include "tests/hosts/job.h"
#include "transport/bootstrap/environment.h"
#include "transport/ucx/ucx.h"

namespace tutti::testing::bootstrap_test {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<bootstrap::Bootstrap> meet(std::chrono::milliseconds deadline) {
  const bootstrap::LaunchEnvironment around = bootstrap::launch_environment();
  const bootstrap::LaunchPlace place = bootstrap::launch_place(around).value();
  const bootstrap::JoinInfo info = bootstrap::join_info_of(place, "the tests' own", around.user).value();
  bootstrap::Config config;
  config.rank = place.rank;
  config.size = place.size;
  config.server = info.server;
  config.secret = info.secret;
  config.deadline = deadline;
  auto met = bootstrap::Bootstrap::connect(std::move(config));
  if (!met.ok()) throw std::runtime_error(met.status().message());
  return met.take();
}

/// Returns the outcome of all_gather: its error, or whether the blobs were right.
std::string exchange(bootstrap::Bootstrap& bootstrap, std::size_t bytes) {
  const auto blob = [&](int rank) {
    return std::string(bytes + static_cast<std::size_t>(rank), static_cast<char>('a' + rank));
  };
  const auto all = bootstrap.all_gather(blob(bootstrap.rank()));
  if (!all.ok()) return all.status().message();
  for (int r = 0; r < bootstrap.size(); ++r) {
    if (all.value()[static_cast<std::size_t>(r)] != blob(r)) return "wrong blob of rank " + std::to_string(r);
  }
  return "exact";
}

// `fe80::1%eth0` names the bootstrap server, and the hosts have no other address: they meet, and TCP and UCX could not
// go on.
TEST(BootstrapOfHosts, L15HostsWithLinkLocalAddressesAloneAreToldSo) {
  Hosts hosts(2);
  NEEDS_HOSTS(hosts);
  for (const char* network : {"tcp", "ucx"}) {
    SCOPED_TRACE(network);
    if (network == std::string("ucx") && !in_child(transport::UcxWire::missing).said.empty()) continue;
    const auto body = [](const Place& place) {
      const std::string own = "ip -6 address replace fe80::" + std::to_string(place.rank() + 1) + "/64 dev eth0 nodad";
      if (std::system(("ip address flush dev eth0 && " + own).c_str()) != 0) place.give_up("no address");
      ::setenv("TUTTI_MASTER_ADDR", "fe80::1%eth0", 1);
      place.fails([] { (void)Communicator::from_environment(with_timeout(30s)); });
    };
    Job job(hosts, 1, body, {{"TUTTI_NETWORK", network}});
    ASSERT_TRUE(job.finish(30s));
    for (int r = 0; r < 2; ++r) {
      EXPECT_EQ(job.slot(r).failure[0].code, Code::unsupported);
      EXPECT_THAT(job.error(r),
                  HasSubstr(std::string(network) + ": this host's interface eth0 has link-local addresses of "
                                                   "IPv6 alone; expected another address"));
    }
  }
}

TEST(BootstrapOfHosts, BetweenHosts) {
  for (const int count : {2, 3, 4}) {
    Hosts hosts(count);
    NEEDS_HOSTS(hosts);
    for (const int each : {1, 2}) {
      SCOPED_TRACE(std::to_string(count) + " hosts, " + std::to_string(each) + " ranks on each");
      Job job(hosts, each, [each](const Place& place) {
        const auto met = meet(30s);
        for (int r = 0; r < place.size(); ++r) {
          const bootstrap::Identity& who = met->roster()[static_cast<std::size_t>(r)];
          if (who.host != Hosts::name(r / each)) place.give_up("rank " + std::to_string(r) + " is on " + who.host);
        }
        for (const std::size_t bytes : {0, 1, 100'000}) {
          if (const std::string said = exchange(*met, bytes); said != "exact") place.give_up(said);
        }
        if (!met->leave().ok()) place.give_up("leave");
      });
      EXPECT_TRUE(job.finish());
    }
  }
}

TEST(BootstrapOfHosts, ADeadHostIsNamedToAllOthers) {
  for (const int victim : {0, 2}) {
    Hosts hosts(3);
    NEEDS_HOSTS(hosts);
    Job job(hosts, 2, [](const Place& place) {
      const auto met = meet(60s);
      place.step();
      for (std::string said = "exact"; said == "exact"; place.step()) {
        said = exchange(*met, 1000);
        if (said != "exact") place.note(said);
      }
    });
    for (int r = 0; r < 6; ++r) ASSERT_TRUE(job.wait_progress(r, 10));
    const std::int64_t killed_ns = job.signal_host(victim, SIGKILL);
    ASSERT_TRUE(job.finish(30s, job.ranks_of(victim)));
    EXPECT_LT(static_cast<double>(now_ns() - killed_ns) * 1e-9, kBoundSeconds);
    for (int r = 0; r < 6; ++r) {
      if (job.host_of(r) == victim) continue;
      EXPECT_THAT(job.note(r), HasSubstr("(host " + Hosts::name(victim) + ", pid ")) << "rank " << r;
    }
  }
}

TEST(BootstrapOfHosts, ALinkThatStaysDownIsATimeoutThatNamesItsHost) {
  Hosts hosts(3);
  NEEDS_HOSTS(hosts);
  Job job(hosts, 1, [](const Place& place) {
    const auto met = meet(2s);
    place.step();
    place.wait_for_go();
    place.note(exchange(*met, 1000));
    place.step();
  });
  for (int r = 0; r < 3; ++r) ASSERT_TRUE(job.wait_progress(r, 1));
  hosts.link(2, false);
  job.go();
  ASSERT_TRUE(job.finish(30s));
  for (const int r : {0, 1}) {
    EXPECT_THAT(job.note(r), HasSubstr("rank 2 of 3 has not come to exchange 1 within 2 s")) << "rank " << r;
  }
  EXPECT_THAT(job.note(2), HasSubstr(job.name(0)));
}

// The kernel notices after about 15 s, whether something was on its way to the host or not.
TEST(BootstrapOfHosts, AHostWhoseLinkStaysDownIsLostAndItsAddressIsNamed) {
  Hosts hosts(3);
  NEEDS_HOSTS(hosts);
  Job job(hosts, 1, [](const Place& place) {
    const auto met = meet(120s);
    place.step();
    place.wait_for_go();
    place.note(exchange(*met, 1000));
  });
  for (int r = 0; r < 3; ++r) ASSERT_TRUE(job.wait_progress(r, 1));
  hosts.link(2, false);
  job.go();
  ASSERT_TRUE(job.finish(60s));
  const auto lost = [&](int rank) {
    const std::string name = job.name(rank);
    return HasSubstr(name.substr(0, name.size() - 1) + ", " + Hosts::address(rank) + " on eth0) is lost: ");
  };
  for (const int r : {0, 1}) EXPECT_THAT(job.note(r), lost(2)) << "rank " << r;
  EXPECT_THAT(job.note(2), lost(0));
}

TEST(BootstrapOfHosts, ALinkThatComesBackIsNoError) {
  Hosts hosts(2);
  NEEDS_HOSTS(hosts);
  Job job(hosts, 1, [](const Place& place) {
    const auto met = meet(60s);
    for (int i = 1; i <= 3; ++i) {
      place.step();
      place.wait_for_go(i);
      if (const std::string said = exchange(*met, 500'000); said != "exact") place.give_up(said);
    }
  });
  for (int i = 1; i <= 3; ++i) {
    for (int r = 0; r < 2; ++r) ASSERT_TRUE(job.wait_progress(r, i));
    hosts.link(1, false);
    job.go(i);
    // Nothing can have come through; whether a rank has begun to send by now does not matter.
    EXPECT_EQ(job.slot(1).progress, i);
    hosts.link(1, true);
  }
  EXPECT_TRUE(job.finish());
}

TEST(BootstrapOfHosts, AHostThatIsStoppedIsATimeoutThatNamesIt) {
  Hosts hosts(2);
  NEEDS_HOSTS(hosts);
  Job job(hosts, 2, [](const Place& place) {
    const auto met = meet(1s);
    place.step();
    place.wait_for_go();
    place.note(exchange(*met, 10));
  });
  for (int r = 0; r < 4; ++r) ASSERT_TRUE(job.wait_progress(r, 1));
  for (const int rank : job.ranks_of(1)) job.stop(rank);
  job.go();
  ASSERT_TRUE(job.finish(30s, job.ranks_of(1)));
  for (const int r : {0, 1})
    EXPECT_THAT(job.note(r), HasSubstr("ranks 2, 3 of 4 have not come to exchange 1 within 1 s")) << r;
}

}  // namespace
}  // namespace tutti::testing::bootstrap_test
