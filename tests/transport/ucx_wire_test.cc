// The suite of wires on UCX: over TCP (loopback), and over shared memory, where UCX has RMA and takes other ways.
#include "tests/transport/wire_suite.h"
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

INSTANTIATE_TEST_SUITE_P(UcxOverTcp, WireSuite, every_way(kTcp), name_of_wire_test);
INSTANTIATE_TEST_SUITE_P(UcxOverSharedMemory, WireSuite, every_way(kSharedMemory), name_of_wire_test);

}  // namespace
}  // namespace tutti::testing
