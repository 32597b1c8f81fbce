// The choice of an address, on the lists of machines that we do not own.
#include "transport/sockets/interfaces.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <memory>

#include "tests/transport/sockets/connect_to.h"
#include "tests/transport/sockets/full_listener.h"
#include "transport/sockets/socket.h"

namespace tutti::sockets::interfaces_test {
namespace {

using testing::connect_to;
using testing::FullListener;
using testing::SignalStorm;

using Addresses = std::vector<InterfaceAddress>;

const InterfaceAddress kLoopback{"lo", "127.0.0.1", true, true};
const InterfaceAddress kLoopback6{"lo", "::1", true, true};
const Addresses kCloud{kLoopback, kLoopback6, {"eth0", "10.1.0.4"}, {"eth0", "fe80::1"}};
// Bridges of containers and virtual machines come first, as after a restart of their daemons.
const Addresses kLaptop{kLoopback,
                        {"docker0", "172.17.0.1"},
                        {"br-1f2e", "172.18.0.1"},
                        {"virbr0", "192.168.122.1", false},
                        {"vethd3a", "fe80::2"},
                        {"enp3s0", "10.0.0.5", false},
                        {"wlp2s0", "192.168.1.20"},
                        {"wlp2s0", "2001:db8:1::20"}};
const Addresses kGpuNode{kLoopback,
                         {"bond0", "10.20.0.7"},
                         {"ib0", "10.30.0.7"},
                         {"ib1", "10.31.0.7"},
                         {"ib10", "10.40.0.7"},
                         {"docker0", "172.17.0.1"}};
const Addresses kOnlyIpv6{kLoopback6, {"eth0", "fe80::5"}, {"eth0", "fd00:7::5"}};

OwnAddress choose(const Addresses& all, const std::string& wanted = "", const Routes& routes = {}) {
  const Result<OwnAddress> result = choose_address(all, wanted, routes, "alpha");
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? result.value() : OwnAddress{};
}

std::string chosen(const Addresses& all, const std::string& wanted = "", const Routes& routes = {}) {
  const OwnAddress own = choose(all, wanted, routes);
  return own.address + " on " + own.interface;
}

std::string error(const Addresses& all, const std::string& wanted) {
  const Result<OwnAddress> result = choose_address(all, wanted, {}, "alpha");
  return result.ok() ? "(no error)" : result.status().message();
}

TEST(Interfaces, WithoutAnyHintTheFirstThatOthersReach) {
  EXPECT_EQ(chosen(kCloud), "10.1.0.4 on eth0");
  EXPECT_EQ(choose(kCloud).why, "order");
  EXPECT_EQ(chosen(kLaptop), "192.168.1.20 on wlp2s0");
  EXPECT_EQ(chosen(kGpuNode), "10.20.0.7 on bond0");
  EXPECT_EQ(chosen(kOnlyIpv6), "fd00:7::5 on eth0");
}

TEST(Interfaces, NothingIsGuessedWhereNoHostReachesThisOne) {
  EXPECT_EQ(choose({}).address, "");
  EXPECT_EQ(choose({kLoopback, kLoopback6}).address, "");
  EXPECT_EQ(choose({kLoopback, {"docker0", "172.17.0.1"}, {"virbr0", "192.168.122.1"}}).address, "");
  EXPECT_EQ(choose({kLoopback, {"eth0", "10.0.0.1", false}}).address, "");
  EXPECT_EQ(choose({kLoopback, {"eth0", "fe80::1"}}).address, "");
}

TEST(Interfaces, TunnelsVethsAndLinkLocalAddressesOnlyWhereThereIsNothingElse) {
  const InterfaceAddress without_carrier{"eth0", "10.0.0.7", true, false, false};
  for (const InterfaceAddress& one :
       Addresses{{"veth1", "10.66.0.1"}, {"tun0", "10.8.0.6"}, {"eth0", "169.254.3.4"}, without_carrier}) {
    EXPECT_EQ(choose({kLoopback, one}).address, one.address);
    EXPECT_EQ(choose({kLoopback, one, {"eth1", "10.0.0.9"}}).address, "10.0.0.9");
  }
}

TEST(Interfaces, TheDefaultRouteBeatsTheOrder) {
  const OwnAddress own = choose(kGpuNode, "", {"", "10.30.0.7"});
  EXPECT_EQ(own.address, "10.30.0.7");
  EXPECT_EQ(own.why, "the default route");
  // But not what it leaves by when that is a bridge of containers.
  EXPECT_EQ(chosen(kLaptop, "", {"", "172.17.0.1"}), "192.168.1.20 on wlp2s0");
}

TEST(Interfaces, TheRouteToTheServerBeatsTheDefaultRoute) {
  const OwnAddress own = choose(kGpuNode, "", {"10.31.0.7", "10.20.0.7"});
  EXPECT_EQ(own.address, "10.31.0.7");
  EXPECT_EQ(own.interface, "ib1");
  EXPECT_EQ(own.why, "the route to the bootstrap server");
  // A job among containers of one machine meets on their bridge.
  EXPECT_EQ(chosen(kLaptop, "", {"172.17.0.1", "192.168.1.20"}), "172.17.0.1 on docker0");
}

TEST(Interfaces, L15AMeetingPlaceThatIsLinkLocalTellsNothing) {
  EXPECT_EQ(chosen(kCloud, "", {"fe80::1", ""}), "10.1.0.4 on eth0");
  EXPECT_EQ(choose({kLoopback, {"eth0", "fe80::1"}}, "", {"fe80::1", ""}).address, "");
  EXPECT_EQ(error({kLoopback, {"eth0", "fe80::1"}}, "eth0"),
            "TUTTI_INTERFACE: host alpha has none of 'eth0' that is up (link-local addresses of IPv6 do not count); it "
            "has lo (127.0.0.1)");
  // A whole name stays one where its only address does not count.
  EXPECT_EQ(error({kLoopback, {"eth0", "fe80::1"}, {"eth01", "10.0.0.9"}}, "eth0"),
            "TUTTI_INTERFACE: host alpha has none of 'eth0' that is up (link-local addresses of IPv6 do not count); it "
            "has lo (127.0.0.1), eth01 (10.0.0.9)");
}

TEST(Interfaces, ALoopbackRouteTellsNothing) {
  // Rank 0 of a host whose own name means 127.0.1.1.
  EXPECT_EQ(chosen(kCloud, "", {"127.0.0.1", "10.1.0.4"}), "10.1.0.4 on eth0");
}

TEST(Interfaces, OfTheKindThatTheServerHas) {
  EXPECT_EQ(chosen(kLaptop, "wlp2s0", {"", ""}), "192.168.1.20 on wlp2s0");
  EXPECT_EQ(chosen(kLaptop, "wlp2s0", {"fd00::9", ""}), "2001:db8:1::20 on wlp2s0");
}

TEST(Interfaces, WantedByName) {
  EXPECT_EQ(chosen(kGpuNode, "ib0"), "10.30.0.7 on ib0");
  EXPECT_EQ(choose(kGpuNode, "ib0").why, "TUTTI_INTERFACE");
  EXPECT_EQ(chosen(kGpuNode, "ib1"), "10.31.0.7 on ib1") << "a whole name, not the beginning of ib10";
  EXPECT_EQ(chosen(kGpuNode, "ib"), "10.30.0.7 on ib0");
  EXPECT_EQ(chosen(kGpuNode, "ib", {"10.31.0.7", ""}), "10.31.0.7 on ib1") << "of several, the one with the route";
  EXPECT_EQ(chosen(kGpuNode, "ib0", {"10.31.0.7", ""}), "10.30.0.7 on ib0") << "wanted beats the route";
  EXPECT_EQ(chosen(kLaptop, "docker0"), "172.17.0.1 on docker0") << "a bridge, but only by its name";
  EXPECT_EQ(chosen(kCloud, "lo"), "127.0.0.1 on lo");
}

TEST(Interfaces, AListServesHostsThatDiffer) {
  EXPECT_EQ(chosen(kGpuNode, "eth0,ib1,bond0"), "10.31.0.7 on ib1");
  EXPECT_EQ(chosen(kCloud, "eth0,ib1,bond0"), "10.1.0.4 on eth0");
}

TEST(Interfaces, WantedByAddressOrNetwork) {
  EXPECT_EQ(chosen(kGpuNode, "10.31.0.7"), "10.31.0.7 on ib1");
  EXPECT_EQ(chosen(kGpuNode, "10.30.0.0/15"), "10.30.0.7 on ib0");
  EXPECT_EQ(chosen(kGpuNode, "10.40.0.0/16"), "10.40.0.7 on ib10");
  EXPECT_EQ(chosen(kGpuNode, "10.31.0.8/31,10.31.0.6/31"), "10.31.0.7 on ib1");
  EXPECT_EQ(chosen(kOnlyIpv6, "fd00:7::/32"), "fd00:7::5 on eth0");
  EXPECT_EQ(chosen(kCloud, "0.0.0.0/0"), "10.1.0.4 on eth0");
}

TEST(Interfaces, LeftOut) {
  EXPECT_EQ(chosen(kGpuNode, "^bond0"), "10.30.0.7 on ib0");
  EXPECT_EQ(chosen(kGpuNode, "^bond,ib0", {"10.30.0.7", "10.20.0.7"}), "10.31.0.7 on ib1");
  EXPECT_EQ(chosen(kGpuNode, "^10.20.0.0/16,10.30.0.0/15"), "10.40.0.7 on ib10");
  EXPECT_EQ(error(kCloud, "^eth0"),
            "TUTTI_INTERFACE: '^eth0' leaves host alpha no address that its peers could reach; it has lo (127.0.0.1, "
            "::1), eth0 (10.1.0.4)");
}

TEST(Interfaces, WhatIsNotHereIsAnErrorThatTellsWhatIs) {
  EXPECT_EQ(error(kCloud, "ib0"),
            "TUTTI_INTERFACE: host alpha has none of 'ib0' that is up; it has lo (127.0.0.1, ::1), eth0 (10.1.0.4)");
  EXPECT_NE(error(kLaptop, "enp3s0").find("none of 'enp3s0' that is up; it has lo (127.0.0.1), docker0 ("),
            std::string::npos);
  EXPECT_EQ(error({}, "eth0"), "TUTTI_INTERFACE: host alpha has none of 'eth0' that is up; it has no address");
}

TEST(Interfaces, WhatCannotBeReadIsAnError) {
  EXPECT_EQ(error(kCloud, "10.0.0.0/33"),
            "TUTTI_INTERFACE: '10.0.0.0/33' is no network; expected such as 10.7.0.0/16 or fd00:7::/32");
  for (const char* wrong : {"10.0.0/8", "eth0/24", "10.0.0.0/", "10.0.0.0/-1", "::/129"}) {
    EXPECT_NE(error(kCloud, wrong).find("is no network"), std::string::npos) << wrong;
  }
  for (const char* wrong : {"eth0,", ",", "^", "^eth0,,lo"}) {
    EXPECT_NE(error(kCloud, wrong).find("has an empty item"), std::string::npos) << wrong;
  }
}

TEST(Interfaces, ThisHost) {
  const Result<Addresses> all = list_addresses();
  ASSERT_TRUE(all.ok()) << all.status().message();
  for (const InterfaceAddress& one : all.value()) EXPECT_EQ(one.loopback, is_loopback(one.address)) << one.address;
  EXPECT_EQ(routes_to("127.0.0.1").to_peers, "127.0.0.1");
  EXPECT_EQ(routes_to("@a-name").to_peers, "");
  const Result<OwnAddress> own = own_address({});
  ASSERT_TRUE(own.ok()) << own.status().message();
  if (own.value().address.empty()) GTEST_SKIP() << "tutti-test: not run: this host has only itself";
  EXPECT_EQ(routes_to(own.value().address).to_peers, own.value().address);
  EXPECT_TRUE(is_own_address(own.value().address));
  // A list of the bootstrap server's addresses, by whichever it may be reached.
  EXPECT_EQ(routes_to("127.0.0.1," + own.value().address).to_peers, own.value().address);
  EXPECT_EQ(routes_to(own.value().address + ",localhost").to_peers, own.value().address);
}

TEST(Interfaces, WhichAddressesAreThisHosts) {
  for (const char* own : {"127.0.0.1", "127.0.1.1", "::1"}) EXPECT_TRUE(is_own_address(own)) << own;
  for (const char* other : {"", "198.51.100.7", "2001:db8::7", "alpha"}) EXPECT_FALSE(is_own_address(other)) << other;
}

TEST(Interfaces, RankZeroListensAtItsOwnAddressesOnly) {
  const Result<std::unique_ptr<Listener>> elsewhere = Listener::open({"198.51.100.7", 0});
  ASSERT_FALSE(elsewhere.ok());
  EXPECT_NE(elsewhere.status().message().find("cannot listen at 198.51.100.7:0: that is not an address of its host"),
            std::string::npos)
      << elsewhere.status().message();
}

TEST(Interfaces, AListOfAddressesIsTriedInTurn) {
  // The first is this host's, too, but it has no listener there.
  const auto listener = Listener::open({"127.0.0.1", 0}).take();
  const Result<Fd> fd = connect_to({"127.0.0.2,127.0.0.1", listener->endpoint().port}, 5000);
  ASSERT_TRUE(fd.ok()) << fd.status().message();
  EXPECT_EQ(local_address_of(fd.value().get()), "127.0.0.1");
}

/// A process may have timers of its own.
TEST(Interfaces, ASignalDoesNotEndAnAttempt) {
  const FullListener full;
  const SignalStorm storm;
  const Result<Fd> fd = connect_to(full.endpoint(), 200);
  EXPECT_EQ(fd.status().message(), "no process answers at " + full.endpoint().text() +
                                       ": Connection timed out (the host is down, the address is another's, or a "
                                       "firewall drops what is sent)");
  EXPECT_GT(SignalStorm::signals(), 0);
}

TEST(Interfaces, AnAttemptNeedsNoThreadToWait) {
  FullListener full;
  Result<Connecting> attempt = Connecting::begin(full.endpoint(), 60'000);
  ASSERT_TRUE(attempt.ok()) << attempt.status().message();
  Result<Fd> fd = attempt.value().finish();
  ASSERT_TRUE(fd.ok()) << fd.status().message();
  EXPECT_FALSE(fd.value()) << "the listener has no room";
  EXPECT_GE(attempt.value().fd(), 0);
  full.make_room();  // the kernel asks again after a second
  while (fd.ok() && !fd.value()) {
    pollfd item{attempt.value().fd(), POLLOUT, 0};
    (void)::poll(&item, 1, attempt.value().milliseconds_left());
    fd = attempt.value().finish();
  }
  EXPECT_TRUE(fd.ok()) << fd.status().message();
}

TEST(Interfaces, ARefusalIsKnownFromSilence) {
  const FullListener full;
  const Result<Fd> silent = connect_to(full.endpoint(), 0);
  EXPECT_FALSE(silent.ok());
  Result<Connecting> attempt = Connecting::begin({"127.0.0.2,127.0.0.3", full.endpoint().port}, 5000);
  Result<Fd> fd = attempt.value().finish();
  while (fd.ok() && !fd.value()) fd = attempt.value().finish();
  EXPECT_FALSE(fd.ok());
  EXPECT_TRUE(attempt.value().refused());
}

TEST(Interfaces, WhoListensAtSeveralAddressesIsReachedAtEach) {
  const auto listener = Listener::open({"127.0.0.2,127.0.0.3", 0}).take();
  for (const char* address : {"127.0.0.2", "127.0.0.3", "127.0.0.1"}) {
    const Result<Fd> fd = connect_to({address, listener->endpoint().port}, 5000);
    ASSERT_TRUE(fd.ok()) << fd.status().message();
    int error = 0;
    const Fd accepted = listener->accept(error);
    ASSERT_TRUE(accepted) << error;
    EXPECT_EQ(local_address_of(accepted.get()), address) << "as IPv4, whatever the socket is";
    EXPECT_EQ(remote_address_of(fd.value().get()), address);
    EXPECT_EQ(describe_peer(accepted.get()).substr(0, 4), "127.");
  }
}

}  // namespace
}  // namespace tutti::sockets::interfaces_test
