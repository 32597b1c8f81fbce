// After a host or a rank has died, those that are left on all hosts make a smaller communicator and go on.
#include <gmock/gmock.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/cpu.h"
#include "tests/failure/any_call.h"
#include "tests/hosts/job.h"

namespace tutti::testing::shrink_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Sums ones: the number of ranks that took part.
int count_ranks(Communicator& comm, std::size_t elements = 1000) {
  std::vector<float> ones(elements, 1.0F);
  comm.all_reduce(ones.data(), ones.data(), elements, DataType::f32);
  for (const float x : ones) {
    if (x != ones[0]) return -1;
  }
  return static_cast<int>(ones[0]);
}

void fail_once(const Place& place, Communicator& comm) {
  while (!place.fails([&] { count_ranks(comm, 100'000); })) {
  }
}

// Works, loses ranks, shrinks, until `last` are left. Progress says with how many it has last worked.
void live_on(const Place& place, int last) {
  Communicator comm = Communicator::from_environment(with_timeout(30s));
  for (;;) {
    if (count_ranks(comm) != comm.size()) place.give_up("wrong sum");
    place.set_progress(100 - comm.size());
    if (comm.size() == last) return;
    fail_once(place, comm);
    while (comm.size() > last) {
      const int before = comm.size();
      comm = comm.shrink();
      // Of several that are killed together one may be seen a moment later.
      if (comm.size() == last || !place.fails([&] { count_ranks(comm); })) break;
      if (comm.size() > before) place.give_up("did not shrink");
    }
  }
}

TEST(HostsShrink, WithoutAHost) {
  for (const int count : {2, 3}) {
    Hosts hosts(count);
    NEEDS_HOSTS(hosts);
    constexpr int kEach = 2;
    const int left = (count - 1) * kEach;
    Job job(hosts, kEach, [left](const Place& place) { live_on(place, left); });
    for (int r = 0; r < count * kEach; ++r) ASSERT_TRUE(job.wait_progress(r, 100 - count * kEach));
    job.signal_host(count - 1, SIGKILL);
    ASSERT_TRUE(job.finish(30s, job.ranks_of(count - 1))) << count << " hosts";
  }
}

// A rank of a host; then the only other one there, so that one host is left.
TEST(HostsShrink, WithoutARankAndThenItsHost) {
  Hosts hosts(2);
  NEEDS_HOSTS(hosts);
  Job job(hosts, 2, [](const Place& place) { live_on(place, 2); });
  for (int r = 0; r < 4; ++r) ASSERT_TRUE(job.wait_progress(r, 100 - 4));
  job.signal(3, SIGKILL);
  for (const int r : {0, 1, 2}) ASSERT_TRUE(job.wait_progress(r, 100 - 3, 30s)) << "rank " << r;
  job.signal(2, SIGKILL);
  ASSERT_TRUE(job.finish(30s, {2, 3}));
}

TEST(HostsShrink, DownToOneRank) {
  Hosts hosts(2);
  NEEDS_HOSTS(hosts);
  Job job(hosts, 1, [](const Place& place) { live_on(place, 1); });
  for (int r = 0; r < 2; ++r) ASSERT_TRUE(job.wait_progress(r, 100 - 2));
  job.signal(1, SIGKILL);
  ASSERT_TRUE(job.finish(30s, {1}));
}

// One more dies while the others shrink: before, in the midst of it, or after.
TEST(HostsShrink, ADeathMeanwhile) {
  for (int i = 0; i < setting("TRIES", 4); ++i) {
    Hosts hosts(3);
    NEEDS_HOSTS(hosts);
    Job job(hosts, 2, [](const Place& place) { live_on(place, 4); });
    for (int r = 0; r < 6; ++r) ASSERT_TRUE(job.wait_progress(r, 100 - 6));
    job.signal(5, SIGKILL);
    ASSERT_TRUE(eventually(10s, [&] { return job.slot(3).failures > 0; }));
    const std::int64_t until = now_ns() + i * 400'000;
    while (now_ns() < until) cpu_relax();
    job.signal(3, SIGKILL);
    ASSERT_TRUE(job.finish(30s, {3, 5})) << "try " << i;
  }
}

TEST(HostsShrink, WithoutTheBootstrapServerItSaysSo) {
  Hosts hosts(3);
  NEEDS_HOSTS(hosts);
  Job job(hosts, 1, [](const Place& place) {
    Communicator comm = Communicator::from_environment(with_timeout(30s));
    count_ranks(comm, 100'000);  // who dies while UCX 1.13 connects to it may take the other along
    place.step();
    fail_once(place, comm);
    place.fails([&] { comm = comm.shrink(); });
  });
  for (int r = 0; r < 3; ++r) ASSERT_TRUE(job.wait_progress(r, 1));
  job.signal(0, SIGKILL);
  ASSERT_TRUE(job.finish(30s, {0}));
  for (const int r : {1, 2}) {
    ASSERT_EQ(job.slot(r).failures, 2) << "rank " << r;
    // It has died, or its connection was reset.
    EXPECT_THAT(
        job.error(r, 1),
        StartsWith(job.name(r) + " called shrink, but the ranks of several hosts that are left meet at rank 0 of "
                                 "the job, which is gone: rank 0 (host alpha, pid "));
  }
}

TEST(HostsShrink, WhoDoesNotCallItIsNamed) {
  Hosts hosts(2);
  NEEDS_HOSTS(hosts);
  Job job(hosts, 2, [](const Place& place) {
    Communicator comm = Communicator::from_environment(with_timeout(2s));
    if (place.rank() == 1) comm.abort("once more");
    fail_once(place, comm);
    if (place.rank() == 2) {
      place.wait_for_go();
      return;
    }
    place.fails([&] { comm = comm.shrink(); });
    place.step();
  });
  for (const int r : {0, 1, 3}) ASSERT_TRUE(job.wait_progress(r, 1, 30s));
  job.go();
  ASSERT_TRUE(job.finish(30s));
  for (const int r : {0, 1, 3}) {
    ASSERT_EQ(job.slot(r).failures, 2) << "rank " << r;
    EXPECT_EQ(job.slot(r).failure[1].code, Code::timeout);
    EXPECT_THAT(job.error(r, 1), HasSubstr("called shrink, but " + job.name(2) + ", which is alive, has not within 2"));
  }
}

// A rank that has closed its communicator lives, but is no survivor; and shrinking twice makes two.
TEST(HostsShrink, WithoutWhoHasLeft) {
  Hosts hosts(2);
  NEEDS_HOSTS(hosts);
  Job job(hosts, 2, [](const Place& place) {
    Communicator job = Communicator::from_environment(with_timeout(30s));
    Communicator comm = job.split(0, place.rank());
    if (place.rank() == 3) {
      comm = Communicator();
      place.wait_for_go();
      return;
    }
    fail_once(place, comm);
    Communicator first = comm.shrink();
    Communicator second = comm.shrink();
    if (count_ranks(first) != 3 || count_ranks(second) != 3) place.give_up("wrong sum");
    place.step();
  });
  for (const int r : {0, 1, 2}) ASSERT_TRUE(job.wait_progress(r, 1, 30s));
  job.go();
  ASSERT_TRUE(job.finish(30s));
}

// Of a job on several hosts, a communicator that is on one.
TEST(HostsShrink, ACommunicatorOfOneHost) {
  Hosts hosts(2);
  NEEDS_HOSTS(hosts);
  Job job(hosts, 2, [](const Place& place) {
    Communicator job = Communicator::from_environment(with_timeout(30s));
    Communicator comm = job.split(place.rank() / 2, place.rank());
    if (place.rank() % 2 == 1) comm.abort("once more");
    fail_once(place, comm);
    comm = comm.shrink();
    if (count_ranks(comm) != 2) place.give_up("wrong sum");
  });
  ASSERT_TRUE(job.finish(30s));
}

}  // namespace
}  // namespace tutti::testing::shrink_test
