// L4 to L8, L10, L12 to L14, L18: limits, missing folders, small queues, namespaces; each with 1, 2 and 8 ranks.
#include <gmock/gmock.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/faults/shell.h"
#include "tests/support/emulated.h"
#include "transport/shm/arena_size.h"

namespace tutti::testing::limits_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using transport::arena_size;
using transport::ArenaLimits;

#define NEEDS_ROOT()                  \
  NOT_EMULATED("it starts programs"); \
  if (geteuid() != 0) GTEST_SKIP() << "tutti-test: not run: needs root"

constexpr std::uint64_t kGiB = 1 << 30;

TEST(Limits, L4TheArenaFollowsTheLeastLimit) {
  ArenaLimits limits{.physical = 16 * kGiB};
  EXPECT_EQ(arena_size(limits).value().bytes, 16 * kGiB);
  EXPECT_EQ(arena_size(limits).value().why, "the machine's memory");
  limits.cgroup = 8 * kGiB;
  EXPECT_EQ(arena_size(limits).value().why, "the cgroup's memory limit");
  limits.file = 4 * kGiB + 5;
  EXPECT_EQ(arena_size(limits).value().bytes, 4 * kGiB);
  EXPECT_EQ(arena_size(limits).value().why, "ulimit -f");
  limits.address_space = 8 * kGiB;
  limits.ranks = 4;
  EXPECT_EQ(arena_size(limits).value().bytes, kGiB);
  EXPECT_EQ(arena_size(limits).value().why, "ulimit -v, for 4 ranks");
  limits.asked = 2 * kGiB;
  EXPECT_EQ(arena_size(limits).value().bytes, 2 * kGiB);
  limits.asked = 5 * kGiB;
  EXPECT_THAT(arena_size(limits).status().message(), HasSubstr("(ulimit -f)"));
  EXPECT_THAT(arena_size({.physical = kGiB, .file = 100}).status().message(), HasSubstr("ulimit -f"));
}

TEST(Limits, L4FileSize) {
  NOT_EMULATED("it starts programs");
  const Ran ran = run_shell("ulimit -f 1000000; $P/all_reduce_perf --ranks 2 -b 8 -e 1M");
  EXPECT_EQ(ran.status, 0) << ran.text;
  const Ran none = run_shell("ulimit -f 0; $P/all_reduce_perf --ranks 2 -b 8 -e 1M");
  EXPECT_THAT(none.text, HasSubstr("no shared memory can be had within ulimit -f"));
  const Ran asked = run_shell("ulimit -f 1000; TUTTI_ARENA=1G $P/all_reduce_perf --ranks 2 -b 8 -e 1M");
  EXPECT_THAT(asked.text, HasSubstr("TUTTI_ARENA is 1073741824, and a file may have"));
  EXPECT_THAT(run_shell("ulimit -f 1000000; $P/tutti info").text, HasSubstr("ulimit -f"));
}

TEST(Limits, L5AddressSpace) {
  NOT_EMULATED("it starts programs");
  for (const char* ranks : {"2", "4", "8"}) {
    const Ran ran = run_shell(std::string("ulimit -v 8000000; $P/all_reduce_perf -b 8 -e 1M --ranks ") + ranks);
    EXPECT_EQ(ran.status, 0) << ran.text;
  }
}

TEST(Limits, L6AShortQueueOfConnections) {
  NEEDS_ROOT();
  for (const char* ranks : {"8", "16"}) {
    const Ran ran = run_shell(
        std::string("unshare -n sh -c 'sysctl -qw net.core.somaxconn=4; $P/all_reduce_perf -b 8 -e 8 --ranks ") +
        ranks + "'");
    EXPECT_EQ(ran.status, 0) << ran.text;
    EXPECT_LT(ran.seconds, 18);
  }
}

TEST(Limits, L7OpenFiles) {
  NOT_EMULATED("it starts programs");
  int told = 0;
  for (const char* most : {"6", "8", "10", "12", "16", "20", "24", "32", "48"}) {
    const Ran ran = run_shell(std::string("ulimit -n ") + most + "; $P/all_reduce_perf --ranks 8 -b 8 -e 8");
    EXPECT_LT(ran.seconds, 18) << most << ": " << ran.text;
    if (ran.status == 0) continue;
    ++told;
    EXPECT_THAT(ran.text, AnyOf(HasSubstr("ulimit -n"), HasSubstr("error while loading shared libraries"))) << most;
    EXPECT_THAT(ran.text, Not(HasSubstr("has not shared its memory"))) << most;
  }
  EXPECT_GT(told, 2);
}

// Rank 0 has too few to let all in: no rank waits for the deadline, and no rank that only got the error "died".
TEST(Limits, L7OpenFilesOfRankZeroAlone) {
  NOT_EMULATED("it starts programs");
  for (const char* most : {"12", "16"}) {
    const Ran ran =
        run_shell(std::string("for r in 0 1 2 3 4 5 6 7; do ( [ $r != 0 ] || ulimit -n ") + most +
                  "; TUTTI_RANK=$r TUTTI_SIZE=8 TUTTI_JOB=limits-$$ TUTTI_TIMEOUT=10s $P/all_reduce_perf -b 8 -e 8; "
                  "echo rank $r ended with $? ) & done; wait");
    EXPECT_THAT(ran.text, HasSubstr("ulimit -n")) << most;
    EXPECT_THAT(ran.text, Not(HasSubstr("has not come within"))) << most;
    EXPECT_THAT(ran.text, Not(HasSubstr("died"))) << most;
  }
}

TEST(Limits, L8Threads) {
  NEEDS_ROOT();
  // A user of its own, so that its processes are counted apart: the launcher, its ranks, and not all of their threads.
  for (const char* most : {"3", "4", "5", "6"}) {
    const Ran ran = run_shell(std::string("prlimit --nproc=") + most +
                              " setpriv --reuid 65533 --clear-groups $P/all_reduce_perf --ranks 2 -b 8 -e 8");
    EXPECT_LT(ran.seconds, 18) << most << ": " << ran.text;
    EXPECT_THAT(ran.text, Not(HasSubstr("terminate called")));
    if (ran.status != 0) {
      EXPECT_THAT(ran.text, HasSubstr("ulimit -u, pids.max")) << most;
    }
  }
}

/// Lines that put the shell into a cgroup of its own, $G, which is limited; of version 1 or 2.
std::string in_cgroup(const std::string& controller, const std::string& file1, const std::string& file2,
                      const std::string& limit) {
  return "G=/sys/fs/cgroup/" + controller + "; F=" + file1 + "; [ -d $G ] || { G=/sys/fs/cgroup; F=" + file2 +
         "; echo +" + controller + " > $G/cgroup.subtree_control; }; G=$G/tutti-limits-$$; mkdir $G && echo " + limit +
         " > $G/$F && echo $$ > $G/cgroup.procs || echo no cgroup; ";
}
std::string in_pids_cgroup(const std::string& limit) { return in_cgroup("pids", "pids.max", "pids.max", limit); }
std::string in_memory_cgroup(const std::string& limit) {
  return in_cgroup("memory", "memory.limit_in_bytes", "memory.max", limit) +
         "for f in $G/memory.swap.max $G/memory.memsw.limit_in_bytes; do [ ! -w $f ] || cat $G/$F > $f; done; ";
}

void remove_cgroups() { run_shell("rmdir /sys/fs/cgroup/*/tutti-limits-* /sys/fs/cgroup/tutti-limits-*"); }

TEST(Limits, L8ThreadsOfACgroup) {
  NEEDS_ROOT();
  if (run_shell(in_pids_cgroup("20")).text != "") GTEST_SKIP() << "tutti-test: not run: needs a cgroup";
  int told = 0;
  for (const char* most : {"2", "3", "4", "5", "6", "7", "20"}) {
    const Ran ran = run_shell(in_pids_cgroup(most) + "$P/all_reduce_perf --ranks 2 -b 8 -e 8");
    EXPECT_LT(ran.seconds, 18) << most << ": " << ran.text;
    EXPECT_THAT(ran.text, Not(HasSubstr("terminate called")));
    if (ran.status == 0) continue;
    ++told;
    EXPECT_THAT(ran.text, AnyOf(HasSubstr("ulimit -u, pids.max"), HasSubstr("fork"))) << most;  // ours, sh's
  }
  EXPECT_GT(told, 2);
  EXPECT_LT(told, 7);
  remove_cgroups();
}

TEST(Limits, L4MemoryOfACgroup) {
  NEEDS_ROOT();
  if (run_shell(in_memory_cgroup("300M")).text != "") GTEST_SKIP() << "tutti-test: not run: needs a cgroup";
  EXPECT_THAT(run_shell(in_memory_cgroup("300M") + "$P/tutti info").text, HasSubstr("the cgroup's memory limit"));
  const Ran fits = run_shell(in_memory_cgroup("300M") + "$P/all_reduce_perf --ranks 4 -b 8 -e 1M");
  EXPECT_EQ(fits.status, 0) << fits.text;
  const Ran told = run_shell(in_memory_cgroup("100M") + "$P/all_reduce_perf --ranks 2 -b 256M -e 256M");
  EXPECT_THAT(told.text, HasSubstr("finds no room in the registered arena")) << told.text;
  // Each rank's buffers fit, and those of all do not.
  const Ran killed = run_shell(in_memory_cgroup("100M") + "$P/all_reduce_perf --ranks 2 -b 40M -e 40M");
  EXPECT_NE(killed.status, 0);
  EXPECT_LT(killed.seconds, 18) << killed.text;
  EXPECT_THAT(killed.text, HasSubstr("(Killed), as the kernel does where memory runs out")) << killed.text;
  remove_cgroups();
}

TEST(Limits, L10NoProcAndOtherPids) {
  NEEDS_ROOT();
  // Two jobs by hand in one network namespace: rank 1 has another pid namespace, and neither has /proc.
  const Ran ran = run_shell(
      "export TUTTI_SIZE=2 TUTTI_JOB=l10 TUTTI_TIMEOUT=10s; "
      "unshare -m sh -c 'mkdir -p /tmp/l10 && mount --bind /tmp/l10 /proc && "
      "TUTTI_RANK=0 $P/all_reduce_perf -b 8 -e 64K & "
      "TUTTI_RANK=1 unshare -p -f $P/all_reduce_perf -b 8 -e 64K; wait $!'");
  EXPECT_THAT(ran.text, Not(HasSubstr("died")));
  EXPECT_EQ(ran.status, 0) << ran.text;
}

TEST(Limits, L18OneNumberForTwoProcessesIsNoWayIntoMemory) {
  NEEDS_ROOT();
  // Each rank has a pid namespace, in which both have the same number, and the same addresses; there is no /proc.
  const Ran ran = run_shell(
      "export TUTTI_SIZE=2 TUTTI_JOB=l18.$$ TUTTI_TIMEOUT=10s TUTTI_CROSS_MEMORY=on; "
      "C='setarch -R unshare -p -f $P/all_reduce_perf --memory plain -b 64K -e 1M'; "
      "unshare -m sh -c \"mkdir -p /tmp/l18 && mount --bind /tmp/l18 /proc && { TUTTI_RANK=0 $C & TUTTI_RANK=1 $C; "
      "wait; }\"");
  EXPECT_THAT(ran.text, AnyOf(HasSubstr("Out of bounds values : 0 OK"), HasSubstr("TUTTI_CROSS_MEMORY")));
  EXPECT_THAT(ran.text, Not(HasSubstr("FAILED")));
}

TEST(Limits, L12AFileThatCannotBeWrittenIsSaidFirst) {
  NOT_EMULATED("it starts programs");
  for (const char* ranks : {"--ranks 2", ""}) {
    const Ran ran = run_shell(std::string("$P/all_reduce_perf -b 8 -e 8 -J /no/such/dir/x.json ") + ranks);
    EXPECT_EQ(ran.status, 2);
    EXPECT_THAT(ran.text, HasSubstr("-J /no/such/dir/x.json: cannot be written"));
    EXPECT_THAT(ran.text, Not(HasSubstr("Using devices")));
  }
}

TEST(Limits, L13OddSizes) {
  NOT_EMULATED("it starts programs");
  const auto refused = [](const std::string& words, const std::string& why) {
    const Ran ran = run_shell("$P/all_reduce_perf " + words);
    EXPECT_EQ(ran.status, 6) << words << ": " << ran.text;
    EXPECT_THAT(ran.text, HasSubstr(why)) << words;
    EXPECT_LT(ran.text.size(), 300u) << words;
  };
  refused("-b 0 -e 64 -f 2", "-b 0: 0 times -f 2 is 0 again");
  refused("-n 0", "'0' is not a whole number of 1 or more");
  refused("-u -1", "'-1' is not a whole number of 0 to 1048576");  // L20
  refused("--time nan", "'nan' is not a number of 0 or more");
  refused("--ranks 2000000", "'2000000' is not a whole number of 1 to 1024");
  refused("-J ''", "-J '': expected a file's name");
  EXPECT_EQ(run_shell("$P/all_reduce_perf -i ''").status, 255);
}

TEST(Limits, L14AnotherNetworkNamespaceNeedsAnAddress) {
  NEEDS_ROOT();
  const Ran ran = run_shell(
      "export TUTTI_SIZE=2 TUTTI_JOB=l14 TUTTI_TIMEOUT=1s; TUTTI_RANK=0 $P/all_reduce_perf -b 8 -e 8 & "
      "TUTTI_RANK=1 unshare -n $P/all_reduce_perf -b 8 -e 8; wait");
  EXPECT_THAT(ran.text, HasSubstr("ranks that are elsewhere need TUTTI_MASTER_ADDR"));
}

/// A shell command that limits $C: "ulimit ...", "unshare -m sh -c 'mount ...'". $C is the command.
struct Surrounding {
  const char* name;
  const char* line;
};

TEST(Limits, EverySurroundingServesOrSaysWhy) {
  NEEDS_ROOT();
  const std::vector<Surrounding> all = {
      {"plain", "$C"},
      {"ulimit -f", "ulimit -f 2000000; $C"},
      {"ulimit -v", "ulimit -v 4000000; $C"},
      {"ulimit -n", "ulimit -n 40; $C"},
      {"ulimit -l", "ulimit -l 0; $C"},
      {"ulimit -s", "ulimit -s 128; $C"},
      {"ulimit -c", "ulimit -c 0; $C"},
      {"nproc", "prlimit --nproc=6 setpriv --reuid 65531 --clear-groups $C"},
      {"small /dev/shm", "unshare -m sh -c \"mount -t tmpfs -o size=64k none /dev/shm; $C\""},
      {"read-only root", "unshare -m sh -c \"mount --bind / / && mount -o remount,ro,bind /; $C\""},
      {"no /proc", "unshare -m sh -c \"mkdir -p /tmp/empty; mount --bind /tmp/empty /proc; $C\""},
      {"no /sys", "unshare -m sh -c \"mkdir -p /tmp/empty; mount --bind /tmp/empty /sys; $C\""},
      {"no /dev", "unshare -m sh -c \"mkdir -p /tmp/empty; mount --bind /tmp/empty /dev; $C\""},
      {"no HOME", "env -u HOME -u XDG_CACHE_HOME $C"},
      {"HOME elsewhere", "HOME=/no/such/home $C"},
      {"empty environment", "env -i P=$P TUTTI_TIMEOUT=20s $C"},
      {"no network", "unshare -n $C"},
  };
  for (const Surrounding& surrounding : all) {
    for (const char* ranks : {"1", "2", "8"}) {
      const Ran ran = run_shell("C=\"$P/all_reduce_perf -b 8 -e 64K -f 8 -n 2 --ranks " + std::string(ranks) + "\"; " +
                                surrounding.line);
      EXPECT_LT(ran.seconds, 18) << surrounding.name << ", " << ranks << " ranks: " << ran.text;
      EXPECT_THAT(ran.text,
                  Not(AnyOf(HasSubstr("terminate called"), HasSubstr("was ended by signal"), HasSubstr(" died"))))
          << surrounding.name << ", " << ranks << " ranks";
      if (ran.status != 0) {
        EXPECT_THAT(ran.text, HasSubstr("ulimit")) << surrounding.name << ", " << ranks << " ranks";
      }
    }
  }
}

TEST(Limits, ManyRanks) {
  NOT_EMULATED("it starts programs");
  const Ran ran = run_shell("$P/all_reduce_perf --ranks 130 -b 8 -e 8 -n 1 -w 0");
  EXPECT_EQ(ran.status, 0) << ran.text;
}

}  // namespace
}  // namespace tutti::testing::limits_test
