// The suite of wires on TCP, by loopback, and where it listens.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/transport/wire/wire_suite_redirect.h"
#include "transport/sockets/socket.h"
#include "transport/tcp/tcp.h"

namespace tutti::testing {
namespace {

using transport::TcpWire;

const WireMaker kTcp{"Tcp", [](const WireJob& job) {
                       WireJob on_loopback = job;
                       on_loopback.own_ip = "127.0.0.1";
                       return TcpWire::open(on_loopback);
                     }};

INSTANTIATE_TEST_SUITE_P(Tcp, WireSuite, every_way(kTcp), name_of_wire_test);

WireJob alone_at(const std::string& ip) {
  WireJob job;
  job.hosts = {0};
  job.names = {"rank 0"};
  job.own_ip = ip;
  return job;
}

/// Errors are one sentence that says what was asked for.
TEST(TcpWire, NamesWhatIsNotThere) {
  const Outcome outcome = in_child([] { return TcpWire::open(alone_at("203.0.113.9")).status().message(); });
  EXPECT_EQ(outcome.said, "TCP: no interface of this host has the address 203.0.113.9");
}

std::string opened_with(const char* option, const std::string& value) {
  const Outcome outcome = in_child(
      [] {
        std::vector<std::unique_ptr<Wire>> wires;
        for (int i = 0; i < 2; ++i) {
          Result<std::unique_ptr<Wire>> wire = TcpWire::open(alone_at("127.0.0.1"));
          if (!wire.ok()) return wire.status().message();
          wires.push_back(wire.take());
        }
        return wires[1]->address().substr(0, wires[1]->address().rfind(' '));
      },
      {{option, value}});
  EXPECT_EQ(outcome.error, "");
  return outcome.said;
}

TEST(TcpWire, ListensWhereItMay) {
  const std::uint16_t port = sockets::Listener::open({"127.0.0.1", 0}).take()->endpoint().port;
  const std::string range = fmt::format("{}-{}", port, port + 20);
  const std::string address = opened_with("TUTTI_TCP_PORTS", range);
  EXPECT_THAT(address, ::testing::StartsWith("tutti tcp 1\n127.0.0.1 "));
  EXPECT_GT(std::stoi(address.substr(address.rfind(' '))), static_cast<int>(port));
  const std::string one = std::to_string(port);
  EXPECT_EQ(opened_with("TUTTI_TCP_PORTS", one),
            "TCP: this process cannot listen at 127.0.0.1 at any of TUTTI_TCP_PORTS=" + one +
                ": they are taken, or not allowed; expected one for each process of a host");
  for (const char* ports : {"0", "x", "70000", "200-100", "100-", "100-200 "}) {
    EXPECT_EQ(opened_with("TUTTI_TCP_PORTS", ports),
              fmt::format("TUTTI_TCP_PORTS is '{}'; expected ports, such as 29500-29600", ports));
  }
}

/// Returns the congestion control of each of this process's TCP connections.
std::vector<std::string> congestion_controls() {
  std::vector<std::string> names;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || peer.ss_family == AF_UNIX) continue;
    char name[16] = {};
    size = sizeof name;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0) names.emplace_back(name);
  }
  return names;
}

/// Expects `name` on the connections of two ranks that ran with TUTTI_TCP_CONGESTION=`asked_for`.
void expect_congestion_control(const std::string& asked_for, const std::string& name) {
  WireMaker maker = kTcp;
  maker.environment = {{"TUTTI_TCP_CONGESTION", asked_for}};
  run_job(maker, Members::processes, {0, 1}, [&](WireMember& member) {
    member.signal(1 - member.rank(), 0, 1);
    if (!member.until_signal(1 - member.rank(), 0, 1)) return;
    // If both sides have connected, the other connection may still be there.
    EXPECT_THAT(congestion_controls(), ::testing::Contains(name)) << "asked for '" << asked_for << "'";
    member.barrier();
  });
}

TEST(TcpWire, SharesAWayByTheCongestionControlThatIsAskedFor) {
  std::string of_kernel;
  std::ifstream("/proc/sys/net/ipv4/tcp_congestion_control") >> of_kernel;
  const bool bbr = of_kernel.starts_with("bbr");
  expect_congestion_control("", bbr ? "reno" : of_kernel);  // near as they are
  expect_congestion_control(bbr ? of_kernel : "reno", bbr ? of_kernel : "reno");
  EXPECT_THAT(opened_with("TUTTI_TCP_CONGESTION", "renoir"),
              ::testing::StartsWith("TUTTI_TCP_CONGESTION is 'renoir', which the kernel refuses (No such file or "
                                    "directory); expected one of: "));
}

}  // namespace
}  // namespace tutti::testing
