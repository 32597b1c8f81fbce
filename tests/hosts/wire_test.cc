// The suite of wires between hosts: each member is a process on its rank one, and nothing goes but by eth0.
#include <cstddef>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/hosts/hosts.h"
#include "tests/transport/wire/wire_suite_redirect.h"
#include "transport/tcp/tcp.h"
#include "transport/ucx/ucx.h"

namespace tutti::testing {
namespace {

using transport::TcpWire;
using transport::UcxWire;

/// The hosts of all tests here, made before the first one: its children are to enter them, not to make their rank.
class SharedHosts : public ::testing::Environment {
 public:
  void SetUp() override { hosts_ = std::make_unique<Hosts>(3); }
  void TearDown() override { hosts_.reset(); }
  const Hosts& get() const { return *hosts_; }

 private:
  std::unique_ptr<Hosts> hosts_;
};
const SharedHosts& shared() {
  static const auto* hosts = static_cast<SharedHosts*>(::testing::AddGlobalTestEnvironment(new SharedHosts));
  return *hosts;
}

WireMaker between_hosts(std::string name, Result<std::unique_ptr<Wire>> (*open)(const WireJob&),
                        std::string (*missing)()) {
  (void)shared();
  WireMaker maker;
  maker.name = std::move(name);
  maker.open = [open](const WireJob& job) {
    WireJob on_host = job;
    on_host.own_ip = Hosts::address(job.hosts[static_cast<std::size_t>(job.rank)]);
    return open(on_host);
  };
  maker.missing = [missing] { return shared().get().why_not().empty() ? missing() : shared().get().why_not(); };
  maker.enter = [](int host) { shared().get().enter(host); };
  return maker;
}

const WireMaker kMakers[] = {between_hosts("Ucx", UcxWire::open, UcxWire::missing),
                             between_hosts("Tcp", TcpWire::open, [] { return std::string(); })};

INSTANTIATE_TEST_SUITE_P(BetweenHosts, WireSuite,
                         ::testing::Combine(::testing::ValuesIn(kMakers), ::testing::Values(Members::processes)),
                         name_of_wire_test);

/// Checks that all of this was between hosts: what is put is sent by the interface that info() names, as the kernel
/// counts.
class WireBetweenHosts : public ::testing::TestWithParam<WireMaker> {};

TEST_P(WireBetweenHosts, SendsByTheInterfaceThatItNames) {
  const WireMaker& maker = GetParam();
  const std::string missing = in_child(maker.missing).said;
  if (!missing.empty()) GTEST_SKIP() << "tutti-test: not run: " << missing;
  run_job(maker, Members::processes, {0, 1}, [](WireMember& member) {
    constexpr std::size_t kBytes = std::size_t{4} << 20;
    const int peer = 1 - member.rank();
    const auto sent = [] {
      std::size_t bytes = 0;
      std::ifstream("/sys/class/net/eth0/statistics/tx_bytes") >> bytes;
      return bytes;
    };
    EXPECT_EQ(member.wire().info().devices, "eth0");
    const std::size_t before = sent();
    const std::vector<std::byte> from(kBytes);
    const Ticket ticket = member.put(peer, 0, WireMember::kData, from.data(), kBytes);
    member.signal(peer, 0, 1);
    if (!member.until_signal(peer, 0, 1) || !member.until_completed(ticket)) return;
    member.barrier();  // the peer has all
    EXPECT_GE(sent() - before, kBytes);
  });
}
INSTANTIATE_TEST_SUITE_P(Wires, WireBetweenHosts, ::testing::ValuesIn(kMakers),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti::testing
