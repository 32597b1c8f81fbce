// The suite of wires on UCX: over TCP (loopback), over RDMA (in a guest that has it), and over shared memory, where UCX
// has RMA and takes other ways.
#include <gmock/gmock.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/transport/wire/wire_suite_redirect.h"
#include "transport/ucx/ucx.h"

namespace tutti::testing {
namespace {

using transport::UcxWire;

const WireMaker kTcp{"Tcp",
                     [](const WireJob& job) {
                       WireJob on_loopback = job;
                       on_loopback.own_ip = "127.0.0.1";
                       return UcxWire::open(on_loopback);
                     },
                     UcxWire::missing,
                     {{"UCX_TLS", "tcp"}}};
const WireMaker kSharedMemory{"SharedMemory", UcxWire::open, UcxWire::missing, {{"UCX_TLS", "posix,sysv,cma,self"}}, 2,
                              false};

/// TUTTI_TEST_UCX_DEVICE="rxe0:1" names an RDMA device that goes to itself (./dev rdma-vm). What UCX may go by is in
/// UCX_TLS then. Without one there are no such tests.
std::vector<WireMaker> over_rdma() {
  const char* device = std::getenv("TUTTI_TEST_UCX_DEVICE");
  if (device == nullptr) return {};
  return {WireMaker{"Rdma",
                    [device](const WireJob& job) {
                      ::setenv("UCX_NET_DEVICES", device, 1);
                      return UcxWire::open(job);
                    },
                    UcxWire::missing}};
}

INSTANTIATE_TEST_SUITE_P(UcxOverTcp, WireSuite, every_way(kTcp), name_of_wire_test);
INSTANTIATE_TEST_SUITE_P(UcxOverRdma, WireSuite,
                         ::testing::Combine(::testing::ValuesIn(over_rdma()),
                                            ::testing::Values(Members::threads, Members::processes)),
                         name_of_wire_test);
INSTANTIATE_TEST_SUITE_P(UcxOverSharedMemory, WireSuite, every_way(kSharedMemory), name_of_wire_test);

/// Errors are one sentence that says what was asked for.
std::string error_of(const WireJob& job, const Environment& environment = {}) {
  const Outcome outcome = in_child(
      [&] {
        if (!UcxWire::missing().empty()) return "not run: " + UcxWire::missing();
        return UcxWire::open(job).status().message();
      },
      environment);
  EXPECT_EQ(outcome.error, "");
  return outcome.said;
}

TEST(UcxWire, NamesWhatIsNotThere) {
  WireJob job;
  job.hosts = {0};
  job.names = {"rank 0"};
  job.own_ip = "203.0.113.9";
  const std::string no_address = error_of(job);
  if (no_address.starts_with("not run")) GTEST_SKIP() << "tutti-test: " << no_address;
  EXPECT_EQ(no_address, "UCX: no interface of this host has the address 203.0.113.9");
  job.own_ip = "";
  EXPECT_THAT(error_of(job, {{"UCX_NET_DEVICES", "nosuch0"}, {"UCX_TLS", "tcp"}}),
              ::testing::AllOf(::testing::HasSubstr("nosuch0"), ::testing::HasSubstr("transports tcp")));
}

}  // namespace
}  // namespace tutti::testing
