// L8, L9, L19: every system call that creation, a collective and teardown make, refused one at a time with five errors,
// on rank 0, on rank 1 and on both: right results, or a sentence with the error's words on all ranks, in time.
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/collectives/processes.h"
#include "tests/faults/seccomp.h"
#include "tests/support/emulated.h"

namespace tutti::testing::refused_calls_test {
namespace {

struct Call {
  const char* name;
  long number;
  unsigned bytes = 0;  // as refuse_call()
};

// What strace shows of a job of two hosts on one machine, which goes by shared memory and by TCP; without futex, which
// the C library itself ends a process for, and without what ends a process or returns from a signal.
const std::vector<Call>& calls() {
  static const std::vector<Call> all = {
      {"accept4", SYS_accept4},
      {"bind", SYS_bind},
      {"clone3", SYS_clone3},
      {"close", SYS_close},
      {"connect", SYS_connect},
      {"epoll_create1", SYS_epoll_create1},
      {"epoll_ctl", SYS_epoll_ctl},
      {"eventfd2", SYS_eventfd2},
      {"fallocate", SYS_fallocate},
      {"fcntl", SYS_fcntl},
      {"fstat", SYS_fstat},
      {"ftruncate", SYS_ftruncate},
      {"getpeername", SYS_getpeername},
      {"getrandom", SYS_getrandom},
      {"getsockname", SYS_getsockname},
      {"getsockopt", SYS_getsockopt},
      {"listen", SYS_listen},
      {"madvise", SYS_madvise},
      {"membarrier", SYS_membarrier},
      {"memfd_create", SYS_memfd_create},
      {"mmap", SYS_mmap},
      {"mprotect", SYS_mprotect},
      {"newfstatat", SYS_newfstatat},
      {"openat", SYS_openat},
      {"pidfd_open", SYS_pidfd_open},
      {"ppoll", SYS_ppoll},
      {"read of an eventfd", SYS_read, 8},
      {"write to an eventfd", SYS_write, 8},
      {"process_vm_readv", SYS_process_vm_readv},
      {"process_vm_writev", SYS_process_vm_writev},
      {"recvfrom", SYS_recvfrom},
      {"recvmsg", SYS_recvmsg},
      {"sched_getaffinity", SYS_sched_getaffinity},
      {"sendmsg", SYS_sendmsg},
      {"sendto", SYS_sendto},
      {"setsockopt", SYS_setsockopt},
      {"socket", SYS_socket},
      {"statx", SYS_statx},
      {"uname", SYS_uname},
#ifdef SYS_poll
      {"poll", SYS_poll},
      {"epoll_wait", SYS_epoll_wait},
      {"readlink", SYS_readlink},
#endif
  };
  return all;
}

constexpr double kDeadline = 3;  // seconds
constexpr int kBoth = -1;

std::string use() {
  Communicator comm = Communicator::from_environment();
  std::vector<float> data(1 << 18);
  for (int round = 0; round < 3; ++round) {
    std::iota(data.begin(), data.end(), static_cast<float>(comm.rank()));
    comm.all_reduce(data.data(), data.data(), data.size(), DataType::f32);
    for (std::size_t i = 0; i < data.size(); ++i) {
      if (data[i] != static_cast<float>(2 * i + 1)) return "wrong results";
    }
  }
  return "right";
}

struct Told {
  std::string text;
  double seconds = 0;
};

/// `hosts`: as run_ranks().
std::vector<Told> with_refused(const Call& call, int error, int victim, const std::vector<std::string>& hosts) {
  const auto outcomes = run_ranks(
      2,
      [&](int rank) {
        if (victim == kBoth || victim == rank) refuse_call(call.number, error, call.bytes);
        const std::int64_t began = now_ns();
        std::string text;
        try {
          text = use();
        } catch (const Error& failure) {
          text = std::string("told: ") + failure.what();
        } catch (const std::bad_alloc&) {
          text = "told: Cannot allocate memory (bad_alloc)";
        } catch (const std::exception& failure) {
          text = std::string("another exception: ") + failure.what();
        }
        return std::to_string(static_cast<double>(now_ns() - began) * 1e-9) + " " + text;
      },
      {{"TUTTI_TIMEOUT", std::to_string(kDeadline) + "s"}}, {}, hosts);
  std::vector<Told> all;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.error.empty()) {
      all.push_back({"ended: " + outcome.error, 0});
      continue;
    }
    std::size_t end = 0;
    const double seconds = std::stod(outcome.said, &end);
    all.push_back({outcome.said.substr(end + 1), seconds});
  }
  return all;
}

/// The C library tells of some refusals to start a thread, of which mmap and mprotect are a part, as if there were too
/// many.
bool says(const std::string& text, int error) {
  const bool of_thread = text.find("cannot start the ") != std::string::npos;
  return text.find(std::strerror(error)) != std::string::npos ||
         (of_thread && text.find(std::strerror(EAGAIN)) != std::string::npos);
}

/// System calls by which a rank would notify the others.
bool cannot_tell(const Call& call) {
  for (const char* name :
       {"socket", "accept4", "connect", "bind", "listen", "sendto", "recvfrom", "getsockopt", "fcntl"}) {
    if (std::string(name) == call.name) return true;
  }
  return false;
}

struct Case {
  Call call;
  int error;
  int victim;
};

/// Returns the error in the ranks' sentences; empty: none.
std::string judged(const Case& one, const std::vector<Told>& ranks) {
  std::string wrong;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const Told& rank = ranks[r];
    const bool is_right = rank.text == "right";
    // A call that returns EAGAIN is repeated until then. A rank that cannot reach rank 0 cannot notify it, and rank 0
    // notifies no rank if it lets none in.
    const bool late =
        one.error == EAGAIN || (cannot_tell(one.call) && rank.text.find("has not come within") != std::string::npos);
    // That it came at once, and not at the deadline, is seen by its words; a busy machine is slow.
    const double limit = kDeadline + 6;
    std::string why;
    if (!is_right && rank.text.find("told: ") != 0) why = "is no sentence of the library";
    if (rank.seconds > limit) why = "came after " + std::to_string(rank.seconds) + " s";
    if (!is_right && !late && !says(rank.text, one.error)) why = "does not say why";
    if (why.empty()) continue;
    wrong += std::string(one.call.name) + " refused with " + std::strerror(one.error) + " on " +
             (one.victim == kBoth ? "both" : "rank " + std::to_string(one.victim)) + ": what rank " +
             std::to_string(r) + " says " + why + ": " + rank.text + "\n";
  }
  return wrong;
}

class Refused : public ::testing::TestWithParam<bool> {};

// In several processes, since each case waits most of the time.
TEST_P(Refused, L9EachCallWithEachError) {
  NOT_EMULATED("filters are for the machine's own calls");
  constexpr std::size_t kWorkers = 16;
  const std::vector<std::string> hosts = GetParam() ? std::vector<std::string>{"a", "b"} : std::vector<std::string>{};
  if (GetParam() && !no_network().empty()) GTEST_SKIP() << "tutti-test: not run: " << no_network();
  const char* only = std::getenv("TUTTI_TEST_CALL");  // one of them, to look into it
  std::vector<Case> cases;
  for (const Call& call : calls()) {
    if (only != nullptr && std::string(only) != call.name) continue;
    for (const int error : {EPERM, ENOSYS, EMFILE, EAGAIN, ENOMEM}) {
      // The kernel says so before its pool is filled, and libsodium waits for that.
      if (call.number == SYS_getrandom && error == EAGAIN) continue;
      for (const int victim : {0, 1, kBoth}) cases.push_back({call, error, victim});
    }
  }
  std::vector<internal::ChildProcess> workers;
  for (std::size_t worker = 0; worker < kWorkers; ++worker) {
    workers.push_back(internal::start_child({}, [&] {
      std::string wrong;
      for (std::size_t i = worker; i < cases.size(); i += kWorkers) {
        wrong += judged(cases[i], with_refused(cases[i].call, cases[i].error, cases[i].victim, hosts));
      }
      return wrong;
    }));
  }
  for (const internal::ChildProcess& worker : workers) {
    const Outcome outcome = internal::end_of(worker);
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.said, "");
  }
}

// Rank 0 fails right after the bootstrap; its connection may be closed before rank 1 listens to it.
TEST(RefusedCalls, L19AFailureRightAfterTheMeetingIsHeardEachTime) {
  NOT_EMULATED("filters are for the machine's own calls");
  for (int run = 0; run < 60; ++run) {
    const Case one{{"memfd_create", SYS_memfd_create}, EPERM, kBoth};
    const std::vector<Told> ranks = with_refused(one.call, one.error, one.victim, {});
    EXPECT_EQ(judged(one, ranks), "") << "run " << run;
    for (const Told& rank : ranks) EXPECT_EQ(rank.text.find("has not"), std::string::npos) << rank.text;
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Refused, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "hosts" : "shm"; });

}  // namespace
}  // namespace tutti::testing::refused_calls_test
