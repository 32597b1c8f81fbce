// The suite of wires on the smallest one, which shows that the suite itself is right.
#include <memory>
#include <string>

#include "tests/transport/wire/local_wire.h"
#include "tests/transport/wire/wire_suite_redirect.h"

namespace tutti::testing {
namespace {

const WireMaker kLocal{
    "Local",
    [](const WireJob& job) -> Result<std::unique_ptr<Wire>> {
      return std::unique_ptr<Wire>(std::make_unique<LocalWire>(job));
    },
    [] {
      return std::string(LocalWire::allowed() ? "" : "the kernel does not let processes write each other's memory");
    }};

INSTANTIATE_TEST_SUITE_P(Local, WireSuite, every_way(kLocal), name_of_wire_test);

}  // namespace
}  // namespace tutti::testing
