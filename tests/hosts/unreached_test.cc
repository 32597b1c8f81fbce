// A host that is not reached when it is first written to, as behind a firewall that drops: the deadline's sentence says
// by which network and interface no connection was made.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/collectives/processes.h"
#include "tests/hosts/job.h"
#include "transport/ucx/ucx.h"

namespace tutti::testing::unreached_test {
namespace {

class Unreached : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string missing = GetParam() == "ucx" ? in_child(transport::UcxWire::missing).said : "";
    if (!missing.empty()) GTEST_SKIP() << "tutti-test: not run: " << missing;
  }
};

TEST_P(Unreached, TheDeadlineNamesNetworkAndInterface) {
  Hosts hosts(2);
  NEEDS_HOSTS(hosts);
  const auto body = [](const Place& place) {
    Communicator comm = Communicator::from_environment(with_timeout(2s));
    place.step();
    place.wait_for_go();
    std::vector<int> data(100'000, 1);  // puts that have to be let go
    place.fails([&] { comm.all_reduce(data.data(), data.data(), data.size(), DataType::i32); });
    place.step();
  };
  Job job(hosts, 1, body, {{"TUTTI_NETWORK", GetParam()}});
  for (int r = 0; r < 2; ++r) ASSERT_TRUE(job.wait_progress(r, 1));
  hosts.link(1, false);
  job.go();
  for (int r = 0; r < 2; ++r) ASSERT_TRUE(job.wait_progress(r, 2));
  hosts.link(1, true);  // so that their leave notices need not wait
  ASSERT_TRUE(job.finish(30s));
  const std::string way = GetParam() == "ucx" ? ": nothing that was sent to it by UCX over eth0 has left within .* s"
                                              : ": no connection to 10.99.0..:.* by TCP over eth0 within .* s";
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(job.slot(r).failure[0].code, Code::timeout);
    EXPECT_THAT(job.error(r), ::testing::MatchesRegex("rank . .host .*" + way));
    EXPECT_THAT(job.error(r), ::testing::HasSubstr("; " + job.name(1 - r) + ": no"));
  }
}
INSTANTIATE_TEST_SUITE_P(Networks, Unreached, ::testing::Values("tcp", "ucx"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tutti::testing::unreached_test
