// The suite of wires over verbs: on all devices of this machine, from each to itself; and over a cable between two
// devices (TUTTI_TEST_CABLE="rxe2,rxe3": members take them in turn), where packets travel and may be lost. ./dev
// rdma-vm runs it.
#include <cstdlib>

#include "tests/transport/wire_suite.h"
#include "transport/verbs/verbs.h"

namespace tutti::testing {
namespace {

using transport::VerbsWire;

std::string no_device() {
  const Result<std::string> devices = VerbsWire::devices();
  return devices.ok() ? "" : devices.status().message();
}

const WireMaker kVerbs{"Verbs", [](const WireJob& job) { return VerbsWire::open(job); }, no_device};

std::string cable() {
  const char* named = std::getenv("TUTTI_TEST_CABLE");
  return named != nullptr ? named : "";
}

const WireMaker kCable{"Cable",
                       [](const WireJob& job) {
                         const std::string ends = cable();
                         const std::size_t comma = ends.find(',');
                         const bool first = job.hosts[static_cast<std::size_t>(job.own)] % 2 == 0;
                         return VerbsWire::open(job, first ? ends.substr(0, comma) : ends.substr(comma + 1));
                       },
                       [] { return cable().empty() ? "TUTTI_TEST_CABLE names no two devices" : no_device(); }};

INSTANTIATE_TEST_SUITE_P(Devices, WireSuite, every_way(kVerbs), name_of_wire_test);
INSTANTIATE_TEST_SUITE_P(Cable, WireSuite, every_way(kCable), name_of_wire_test);

}  // namespace
}  // namespace tutti::testing
