// The suite of wires on TCP, by loopback, and where it listens.
#include <fmt/format.h>

#include "tests/transport/wire_suite.h"
#include "transport/bootstrap/socket.h"
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
  job.names = {"member 0"};
  job.own_ip = ip;
  return job;
}

/// Errors are one sentence that says what was asked for.
TEST(TcpWire, NamesWhatIsNotThere) {
  const Outcome outcome = in_child([] { return TcpWire::open(alone_at("203.0.113.9")).status().message(); });
  EXPECT_EQ(outcome.said, "TCP: no interface of this host has the address 203.0.113.9");
}

std::string opened_with(const std::string& ports) {
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
      {{"TUTTI_TCP_PORTS", ports}});
  EXPECT_EQ(outcome.error, "");
  return outcome.said;
}

TEST(TcpWire, ListensWhereItMay) {
  const std::uint16_t port = bootstrap::Listener::open({"127.0.0.1", 0}).take()->endpoint().port;
  const std::string range = fmt::format("{}-{}", port, port + 20);
  const std::string address = opened_with(range);
  EXPECT_THAT(address, ::testing::StartsWith("tutti tcp 1\n127.0.0.1 "));
  EXPECT_GT(std::stoi(address.substr(address.rfind(' '))), static_cast<int>(port));
  const std::string one = std::to_string(port);
  EXPECT_EQ(opened_with(one), "TCP: this process cannot listen at 127.0.0.1 at any of TUTTI_TCP_PORTS=" + one +
                                  ": they are taken, or not allowed; expected one for each process of a host");
  for (const char* ports : {"0", "x", "70000", "200-100", "100-", "100-200 "}) {
    EXPECT_EQ(opened_with(ports), fmt::format("TUTTI_TCP_PORTS is '{}'; expected ports, such as 29500-29600", ports));
  }
}

}  // namespace
}  // namespace tutti::testing
