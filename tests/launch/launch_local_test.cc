// Processes that --ranks starts: their environment, their cores, what becomes of their exit statuses.
#include "launch/launch_local.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

namespace tutti::launch_local_test {
namespace {

TEST(Launcher, MpiRanksComeFromTheLibrarysOwnMpirun) {
  const auto openmpi = mpi_command({.ranks = 4, .backend = "openmpi"}, {"/bin/all_reduce_perf", "-b", "8"});
  EXPECT_EQ(openmpi.front(), "mpirun.openmpi");
  EXPECT_EQ(openmpi.back(), "8");
  EXPECT_EQ(std::count(openmpi.begin(), openmpi.end(), "--oversubscribe"), 1);
  const auto mpich = mpi_command({.ranks = 1000, .backend = "mpich"}, {"/bin/all_reduce_perf"});
  EXPECT_EQ(mpich, (std::vector<std::string>{"mpiexec.mpich", "-n", "1000", "/bin/all_reduce_perf"}));
}

TEST(Launcher, ForwardsTheFirstExitStatus) {
  EXPECT_EQ(launch_local({.ranks = 3}, {"/bin/sh", "-c", "exit 0"}), 0);
  EXPECT_EQ(launch_local({.ranks = 3}, {"/bin/sh", "-c", "test $TUTTI_RANK != 1 || exit 7"}), 7);
  EXPECT_EQ(launch_local({.ranks = 2}, {"/bin/sh", "-c", "test $TUTTI_RANK != 1 || kill -9 $$"}), 128 + 9);
  EXPECT_EQ(launch_local({.ranks = 2}, {"/bin/sh", "-c", "test $TUTTI_SIZE = 2 && test -n \"$TUTTI_SECRET\""}), 0);
  EXPECT_EQ(launch_local({.ranks = 1}, {"/no/such/program"}), 127);
}

/// A port that was free a moment ago may be another's by then.
TEST(Launcher, RanksMeetInsideTheHost) {
  setenv("TUTTI_MASTER_ADDR", "alpha", 1);  // as where this runs under a launcher of several hosts
  setenv("TUTTI_MASTER_PORT", "29400", 1);
  EXPECT_EQ(launch_local({.ranks = 2}, {"/bin/sh", "-c",
                                        "test -n \"$TUTTI_JOB\" && test -z \"${TUTTI_MASTER_ADDR+set}\" && "
                                        "test -z \"${TUTTI_MASTER_PORT+set}\""}),
            0);
  unsetenv("TUTTI_MASTER_ADDR");
  unsetenv("TUTTI_MASTER_PORT");
}

/// How many cores this process may use.
int allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

TEST(Launcher, RanksHaveTheirOwnCoresWhereThereAreEnough) {
  if (allowed() < 2) GTEST_SKIP() << "needs two cores";
  const std::string is_one = "test $(nproc) = 1";
  EXPECT_EQ(launch_local({.ranks = 2}, {"/bin/sh", "-c", is_one}), 0);
  const std::string is_all = "test $(nproc) = " + std::to_string(allowed());
  EXPECT_EQ(launch_local({.ranks = allowed() + 1}, {"/bin/sh", "-c", is_all}), 0);
  EXPECT_EQ(launch_local({.ranks = 2, .cores_per_rank = allowed()}, {"/bin/sh", "-c", is_all}), 0);
  EXPECT_EQ(launch_local({.ranks = 2, .backend = "gloo"}, {"/bin/sh", "-c", is_all}), 0);
}

}  // namespace
}  // namespace tutti::launch_local_test
