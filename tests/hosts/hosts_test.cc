// The hosts of these tests themselves: apart from each other in name, network and shared memory, and gone whatever
// happens to who made them.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "tests/hosts/job.h"

namespace tutti::testing::hosts_test {
namespace {

/// Processes whose network is `space`.
int processes_in(const std::string& space) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::error_code gone;
    count += std::filesystem::read_symlink(entry.path() / "ns/net", gone).string() == space;
  }
  return count;
}

TEST(Hosts, AreApart) {
  Hosts hosts(2);
  NEEDS_HOSTS(hosts);
  Job job(hosts, 1, [](const Place& place) {
    char name[64] = {};
    ::gethostname(name, sizeof name - 1);
    std::ofstream("/dev/shm/of_" + std::string(name)) << "x";
    place.step();
    place.wait_for_go();
    std::string files;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) files += entry.path().filename();
    for (const auto& entry : std::filesystem::directory_iterator("/sys/class/net")) {
      if (entry.path().filename() != "lo") files += " " + entry.path().filename().string();
    }
    place.note(std::string(name) + ": " + files);
  });
  for (int r = 0; r < 2; ++r) ASSERT_TRUE(job.wait_progress(r, 1));
  job.go();
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(job.note(0), "alpha: of_alpha eth0");
  EXPECT_EQ(job.note(1), "beta: of_beta eth0");
  EXPECT_FALSE(std::filesystem::exists("/dev/shm/of_alpha"));
}

// The one who made them is killed, while a rank of its job is stopped and another runs.
TEST(Hosts, AreGoneAfterACrash) {
  struct Told {
    std::atomic<int> ready{0};
    char spaces[2][64] = {};
  };
  void* memory = mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Told& told = *new (memory) Told;
  const pid_t maker = ::fork();
  if (maker == 0) {
    Hosts hosts(2);
    if (!hosts.why_not().empty()) ::_exit(77);
    Job job(hosts, 1, [](const Place& place) {
      place.step();
      for (;;) ::pause();
    });
    for (int r = 0; r < 2; ++r) {
      if (!job.wait_progress(r, 1)) ::_exit(1);
      std::strncpy(told.spaces[r], hosts.space(r).c_str(), sizeof(told.spaces[r]) - 1);
    }
    job.stop(1);
    told.ready = 1;
    for (;;) ::pause();
  }
  int status = 0;
  ASSERT_TRUE(eventually(60s, [&] { return told.ready == 1 || ::waitpid(maker, &status, WNOHANG) == maker; }));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "tutti-test: not run: there can be no hosts here";
  ASSERT_EQ(told.ready, 1);
  for (const char* space : told.spaces) EXPECT_EQ(processes_in(space), 2) << "who holds the host, and its rank";
  ::kill(maker, SIGKILL);
  ::waitpid(maker, nullptr, 0);
  for (const char* space : told.spaces) {
    EXPECT_TRUE(eventually(30s, [&] { return processes_in(space) == 0; })) << processes_in(space) << " are left";
  }
  munmap(memory, sizeof(Told));
}

}  // namespace
}  // namespace tutti::testing::hosts_test
