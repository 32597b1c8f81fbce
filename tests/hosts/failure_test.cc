// Hosts that die, stop or lose their link, and calls that differ between hosts: named errors within the deadline, and
// nothing left behind. Links that are slow, or down for a while: exact results.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/collectives/processes.h"
#include "tests/failure/any_call.h"
#include "tests/hosts/job.h"
#include "transport/ucx/ucx.h"

namespace tutti::testing::failure_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kMost = 60'000;  // elements
constexpr double kSlack = 2.0;         // seconds that an error may come after its deadline

void call_until_failure(const Place& place, std::uint32_t seed, std::chrono::milliseconds timeout) {
  testing::call_until_failure(place, Communicator::from_environment(with_timeout(timeout)), seed, kMost, seed % 2 == 0);
}

double seconds(std::int64_t from_ns, std::int64_t to_ns) { return static_cast<double>(to_ns - from_ns) * 1e-9; }

// Both errors of every rank that is not on `host` are one sentence, in time, that names a rank on `host`. All survivors
// of a host say the same; what a dead rank's last call was, another host may know better.
void expect_named(const Job& job, int hosts, int each, int host, std::int64_t since_ns, double within, Code code) {
  std::map<int, std::string> sentences;
  for (int r = 0; r < hosts * each; ++r) {
    if (job.host_of(r) == host) continue;
    SCOPED_TRACE("rank " + std::to_string(r));
    EXPECT_EQ(job.slot(r).failures, 2);
    for (const Slot::Failure& failure : {job.slot(r).failure[0], job.slot(r).failure[1]}) {
      EXPECT_EQ(failure.code, code) << failure.text;
      EXPECT_LT(seconds(since_ns, failure.at_ns), within);
      std::string& sentence = sentences[job.host_of(r)];
      if (sentence.empty()) sentence = failure.text;
      EXPECT_EQ(failure.text, sentence);
      EXPECT_THAT(sentence, HasSubstr("(host " + Hosts::name(host) + ", pid "));
    }
  }
}

struct Shape {
  int hosts;
  int each;
  std::string network = "tcp";
};

class HostFailure : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    const std::string missing = GetParam().network == "ucx" ? in_child(transport::UcxWire::missing).said : "";
    if (!missing.empty()) GTEST_SKIP() << "tutti-test: not run: " << missing;
  }
  static std::vector<Processes::Setting> environment() { return {{"TUTTI_NETWORK", GetParam().network}}; }
};

TEST_P(HostFailure, ADeadHostIsNamedToAllOthers) {
  const auto& [count, each, network] = GetParam();
  std::mt19937 random(new_seed());
  for (int victim = 0; victim < count; ++victim) {
    SCOPED_TRACE("kills " + Hosts::name(victim));
    Hosts hosts(count);
    NEEDS_HOSTS(hosts);
    const std::uint32_t seed = random();
    Job job(
        hosts, each, [&](const Place& place) { call_until_failure(place, seed, 60s); }, environment());
    ASSERT_TRUE(job.wait_progress(victim * each, 20));
    const std::int64_t killed_ns = job.signal_host(victim, SIGKILL);
    ASSERT_TRUE(job.finish(30s, job.ranks_of(victim)));
    expect_named(job, count, each, victim, killed_ns, kBoundSeconds, Code::peer_died);
    if (HasFailure()) return;
  }
}

TEST_P(HostFailure, AStoppedHostIsATimeoutThatNamesIt) {
  const auto& [count, each, network] = GetParam();
  const int victim = count - 1;
  Hosts hosts(count);
  NEEDS_HOSTS(hosts);
  const std::uint32_t seed = new_seed();
  Job job(
      hosts, each, [&](const Place& place) { call_until_failure(place, seed, 2s); }, environment());
  ASSERT_TRUE(job.wait_progress(victim * each, 20));
  std::int64_t stopped_ns = 0;
  for (const int rank : job.ranks_of(victim)) job.stop(rank);
  stopped_ns = now_ns();
  ASSERT_TRUE(job.finish(30s, job.ranks_of(victim)));
  expect_named(job, count, each, victim, stopped_ns, 2.0 + kSlack, Code::timeout);
  for (const int rank : job.ranks_of(victim)) job.signal(rank, SIGCONT);
  EXPECT_TRUE(job.finish(30s)) << "who was stopped hears of it when it goes on";
}

// Which of the two hosts is at fault cannot be known; each names one on the other side.
TEST_P(HostFailure, ALinkThatStaysDownIsAnErrorOnBothSides) {
  const auto& [count, each, network] = GetParam();
  const int victim = count - 1;
  Hosts hosts(count);
  NEEDS_HOSTS(hosts);
  const std::uint32_t seed = new_seed();
  Job job(
      hosts, each, [&](const Place& place) { call_until_failure(place, seed, 3s); }, environment());
  for (int r = 0; r < count * each; ++r) ASSERT_TRUE(job.wait_progress(r, 20));
  hosts.link(victim, false);
  const std::int64_t cut_ns = now_ns();
  ASSERT_TRUE(job.finish(60s));
  for (int r = 0; r < count * each; ++r) {
    SCOPED_TRACE("rank " + std::to_string(r));
    ASSERT_EQ(job.slot(r).failures, 2);
    EXPECT_LT(seconds(cut_ns, job.slot(r).failure[1].at_ns), 2 * 3.0 + kSlack);
    EXPECT_EQ(job.error(r), job.error(r, 1));
    const std::string blamed = job.error(r).substr(0, job.error(r).find("; "));  // then: who has waited for them
    const auto on_victim = HasSubstr("(host " + Hosts::name(victim) + ", pid ");
    if (job.host_of(r) == victim) {
      EXPECT_THAT(blamed, AllOf(HasSubstr("(host "), Not(on_victim))) << job.error(r);
    } else {
      EXPECT_THAT(blamed, on_victim) << job.error(r);
    }
  }
}

void exact_calls(const Place& place, std::uint32_t seed, int calls) {
  Communicator comm = Communicator::from_environment(with_timeout(60s));
  Field field(kMost * 8 * static_cast<std::size_t>(place.size()), true);
  std::mt19937 random(seed);
  for (int salt = 0; salt < calls; ++salt) {
    const AnyCall call = random_call(random, place.size(), kMost);
    perform(comm, call, field, salt);
    if (const std::string wrong = check(call, field, place.rank(), place.size(), salt); !wrong.empty()) {
      place.give_up(wrong);
    }
    field.mark_recv();
    place.step();
  }
}

/// TCP segments that all hosts have sent again so far.
long sent_again(const Job& job, int hosts) {
  long sum = 0;
  for (int host = 0; host < hosts; ++host) {
    std::ifstream file("/proc/" + std::to_string(job.pid(job.ranks_of(host)[0])) + "/net/snmp");
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("Tcp:")) lines.push_back(line);
    }
    if (lines.size() != 2) continue;
    std::istringstream names(lines[0]), values(lines[1]);
    for (std::string name, value; names >> name && values >> value;)
      sum += name == "RetransSegs" ? std::stol(value) : 0;
  }
  return sum;
}

// Three times it stays down until something was lost. Where nothing is for three seconds it comes back all the same,
// and the next cut counts: UCX took a longer silence for a death.
TEST_P(HostFailure, ALinkThatComesBackIsNoError) {
  const auto& [count, each, network] = GetParam();
  Hosts hosts(count);
  NEEDS_HOSTS(hosts);
  const std::uint32_t seed = new_seed();
  Job job(
      hosts, each, [&](const Place& place) { exact_calls(place, seed, 200); }, environment());
  int lossy = 0;
  for (int cut_at = 20; lossy < 3 && cut_at <= 140; cut_at += 20) {
    ASSERT_TRUE(job.wait_progress(0, cut_at));
    const long before = sent_again(job, hosts.count());
    hosts.link(1, false);
    lossy += eventually(3s, [&] { return sent_again(job, hosts.count()) > before; }) ? 1 : 0;
    hosts.link(1, true);
  }
  EXPECT_EQ(lossy, 3) << "cuts in which something was lost";
  EXPECT_TRUE(job.finish());
}

TEST_P(HostFailure, ASlowLinkIsNoError) {
  const auto& [count, each, network] = GetParam();
  Hosts hosts(count);
  NEEDS_HOSTS(hosts);
  const std::uint32_t seed = new_seed();
  Job job(
      hosts, each, [&](const Place& place) { exact_calls(place, seed, 120); }, environment());
  int at = 0;
  for (const char* rate : {"1gbit", "100mbit", "20mbit", "none"}) {
    ASSERT_TRUE(job.wait_progress(0, at += 25));
    hosts.rate(rate);
  }
  EXPECT_TRUE(job.finish());
}

// At 500 kbit/s the 8 MiB that each host has to send take two minutes.
TEST_P(HostFailure, ALinkTooSlowForTheDeadlineIsATimeoutThatNamesTheOtherSide) {
  const auto& [count, each, network] = GetParam();
  Hosts hosts(count);
  NEEDS_HOSTS(hosts);
  const auto body = [](const Place& place) {
    Communicator comm = Communicator::from_environment(with_timeout(2s));
    Buffer<float> data(std::size_t{2} << 20);
    place.step();
    place.wait_for_go();
    place.fails([&] { comm.all_reduce(data.data(), data.data(), data.size(), DataType::f32); });
    place.fails([&] { comm.barrier(); });
  };
  Job job(hosts, each, body, environment());
  for (int r = 0; r < count * each; ++r) ASSERT_TRUE(job.wait_progress(r, 1));
  hosts.rate("500kbit");
  job.go();
  ASSERT_TRUE(job.finish(60s));
  for (int r = 0; r < count * each; ++r) {
    SCOPED_TRACE("rank " + std::to_string(r));
    ASSERT_EQ(job.slot(r).failures, 2);
    EXPECT_EQ(job.slot(r).failure[0].code, Code::timeout) << job.error(r);
    EXPECT_EQ(job.error(r), job.error(r, 1));
    EXPECT_THAT(job.error(r), HasSubstr(", pid "));
  }
}

TEST_P(HostFailure, DifferentCallsAreNamed) {
  const auto& [count, each, network] = GetParam();
  Hosts hosts(count);
  NEEDS_HOSTS(hosts);
  const int odd = count * each - 1;
  const auto body = [odd](const Place& place) {
    Communicator comm = Communicator::from_environment(with_timeout(30s));
    std::vector<float> data(4000, 1.0F);
    comm.all_reduce(data.data(), data.data(), 100, DataType::f32);
    place.step();
    place.wait_for_go();  // a rank that is still in the call before gets the error there
    const std::size_t count = place.rank() == odd ? 128 : 100;
    place.fails([&] {
      comm.all_reduce(data.data(), data.data(), count, DataType::f32);
      comm.barrier();
    });
    place.fails([&] { comm.barrier(); });
  };
  Job job(hosts, each, body, environment());
  for (int r = 0; r < count * each; ++r) ASSERT_TRUE(job.wait_progress(r, 1));
  job.go();
  ASSERT_TRUE(job.finish(30s));
  for (int r = 0; r < count * each; ++r) {
    EXPECT_EQ(job.slot(r).failures, 2) << "rank " << r;
    EXPECT_EQ(job.slot(r).failure[0].code, Code::mismatch) << job.error(r);
    EXPECT_EQ(job.error(r), job.error(0)) << "rank " << r;
  }
  EXPECT_THAT(job.error(0), HasSubstr(job.name(odd)));
  EXPECT_THAT(job.error(0), HasSubstr("all_reduce(128 x f32"));
  EXPECT_THAT(job.error(0), HasSubstr("all_reduce(100 x f32"));
}

// After a host has died: no file in the hosts' shared memory, and every survivor has ended by itself.
TEST_P(HostFailure, NothingIsLeftBehind) {
  const auto& [count, each, network] = GetParam();
  Hosts hosts(count);
  NEEDS_HOSTS(hosts);
  const std::uint32_t seed = new_seed();
  Job job(
      hosts, each, [&](const Place& place) { call_until_failure(place, seed, 60s); }, environment());
  ASSERT_TRUE(job.wait_progress(0, 20));
  job.signal_host(count - 1, SIGKILL);
  ASSERT_TRUE(job.finish(30s, job.ranks_of(count - 1)));
  Job look(hosts, 1, [](const Place& place) {
    std::string left;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) left += entry.path().string() + " ";
    place.note(left);
  });
  ASSERT_TRUE(look.finish());
  for (int host = 0; host < count; ++host) EXPECT_EQ(look.note(host), "") << Hosts::name(host);
}

INSTANTIATE_TEST_SUITE_P(Hosts, HostFailure,
                         ::testing::Values(Shape{2, 1}, Shape{2, 2}, Shape{3, 2}, Shape{2, 1, "ucx"},
                                           Shape{2, 2, "ucx"}),
                         [](const auto& info) {
                           return fmt::format("{}x{}_{}", info.param.hosts, info.param.each, info.param.network);
                         });

}  // namespace
}  // namespace tutti::testing::failure_test
