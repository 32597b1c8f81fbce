#include "tests/chaos/ranks.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <random>
#include <stdexcept>
#include <thread>

#include "base/clock.h"
#include "tests/faults/seccomp.h"
#include "tests/support/cable.h"

namespace tutti::chaos {
namespace {

int entries(const char* folder) {
  int count = 0;
  DIR* all = opendir(folder);
  while (all != nullptr && readdir(all) != nullptr) ++count;
  if (all != nullptr) closedir(all);
  return count;
}

int threads() { return entries("/proc/self/task"); }

void sleep_us(std::int64_t us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

/// Right, whatever the algorithm: i32 wraps.
std::int32_t element(int rank, std::size_t i, int call) {
  return (rank + 1) * (static_cast<std::int32_t>(i % 97) + 1) + call;
}

void expect(bool holds, int call, const char* what) {
  if (!holds) throw std::runtime_error("wrong elements in call " + std::to_string(call) + ", " + what);
}

class Program {
 public:
  Program(const Scenario& scenario, Communicator& comm, Report& report)
      : s_(scenario), comm_(comm), report_(report), random_(scenario.seed ^ 0x9E3779B97F4A7C15) {}

  void run() {
    for (int call = 0; call < s_.calls; ++call) {
      report_.calls = call + 1;
      const bool mine = comm_.rank() == s_.victim;
      if (s_.fault == Fault::slow && mine && call % 16 == 0) sleep_us(3'000);
      std::size_t count = random_() % 4 == 0 ? random_() % 300'000 : random_() % 3'000;
      const int kind = static_cast<int>(random_() % 6);
      if (s_.fault == Fault::wrong_call && mine && call == s_.calls / 2) count += 1 + count / 2;
      s_.work == Work::messages ? ring(count, call) : collective(kind, count, call);
    }
    comm_.barrier();
  }

 private:
  using Data = std::vector<std::int32_t>;

  Data mine(std::size_t count, int call) const {
    Data data(count);
    for (std::size_t i = 0; i < count; ++i) data[i] = element(comm_.rank(), i, call);
    return data;
  }

  void collective(int kind, std::size_t count, int call) {
    const int n = comm_.size();
    const auto ranks = static_cast<std::size_t>(n);
    Data in = mine(kind == 3 || kind == 4 ? count * ranks : count, call);
    switch (kind) {
      case 0: {
        comm_.all_reduce(in.data(), in.data(), count, DataType::i32);
        for (std::size_t i = 0; i < count; ++i) {
          std::int32_t sum = 0;
          for (int r = 0; r < n; ++r) sum += element(r, i, call);
          expect(in[i] == sum, call, "all_reduce");
        }
        break;
      }
      case 1: {
        Data out(count * ranks);
        comm_.all_gather(in.data(), out.data(), count, DataType::i32);
        for (std::size_t i = 0; i < out.size(); ++i) {
          expect(out[i] == element(static_cast<int>(i / count), i % count, call), call, "all_gather");
        }
        break;
      }
      case 2: {
        const int root = call % n;
        comm_.broadcast(in.data(), in.data(), count, DataType::i32, root);
        for (std::size_t i = 0; i < count; ++i) expect(in[i] == element(root, i, call), call, "broadcast");
        break;
      }
      case 3: {
        Data out(count);
        comm_.reduce_scatter(in.data(), out.data(), count, DataType::i32);
        const std::size_t first = static_cast<std::size_t>(comm_.rank()) * count;
        for (std::size_t i = 0; i < count; ++i) {
          std::int32_t sum = 0;
          for (int r = 0; r < n; ++r) sum += element(r, first + i, call);
          expect(out[i] == sum, call, "reduce_scatter");
        }
        break;
      }
      case 4: {
        Data out(count * ranks);
        comm_.all_to_all(in.data(), out.data(), count, DataType::i32);
        const std::size_t first = static_cast<std::size_t>(comm_.rank()) * count;
        for (std::size_t i = 0; i < out.size(); ++i) {
          expect(out[i] == element(static_cast<int>(i / count), first + i % count, call), call, "all_to_all");
        }
        break;
      }
      default: comm_.barrier();
    }
  }

  /// To the next rank, from the one before.
  void ring(std::size_t count, int call) {
    const int n = comm_.size();
    const int before = (comm_.rank() + n - 1) % n;
    const Data out = mine(count, call);
    Data in(count);
    ::tutti::Work sent = comm_.send_async(out.data(), count, DataType::i32, (comm_.rank() + 1) % n, call % 7);
    comm_.recv(in.data(), count, DataType::i32, before, call % 7);
    sent.wait();
    for (std::size_t i = 0; i < count; ++i) expect(in[i] == element(before, i, call), call, "message");
  }

  const Scenario& s_;
  Communicator& comm_;
  Report& report_;
  std::mt19937_64 random_;  // the same on every rank
};

void limit_open_files() {
  // As many as there are: the next one is refused.
  const rlimit none{static_cast<rlim_t>(entries("/proc/self/fd") - 3), static_cast<rlim_t>(4096)};
  setrlimit(RLIMIT_NOFILE, &none);
}

/// The fault that this rank makes at its moment, on the thread that makes the calls (filters are a thread's) or another
/// one.
class OwnFault {
 public:
  explicit OwnFault(const Scenario& scenario, int rank) : s_(scenario), mine_(rank == scenario.victim) {}
  ~OwnFault() {
    if (thread_.joinable()) thread_.join();
  }
  /// Before the communicator is made.
  void before() {
    if (!mine_ || s_.at_us >= 4'000) return;
    if (s_.fault == Fault::refused)
      testing::refuse_call(refusable_calls()[static_cast<std::size_t>(s_.system_call)].number, s_.error);
    if (s_.fault == Fault::open_files) limit_open_files();
  }
  void behind(Communicator& comm) {
    if (!mine_) return;
    if (s_.at_us >= 4'000 && s_.fault == Fault::refused) {
      testing::refuse_call(refusable_calls()[static_cast<std::size_t>(s_.system_call)].number, s_.error);
    }
    if (s_.at_us >= 4'000 && s_.fault == Fault::open_files) limit_open_files();
    if (s_.fault == Fault::abort || s_.fault == Fault::full_disk) {
      thread_ = std::thread([this, comm]() mutable {
        sleep_us(s_.at_us);
        comm.abort("chaos");
      });
    }
  }

 private:
  const Scenario& s_;
  const bool mine_;
  std::thread thread_;
};

bool trains(const Scenario& s) { return s.work == Work::ddp || s.work == Work::fsdp; }

void use(const Scenario& s, int rank, Report& report) {
  if (trains(s)) prepare_training();
  OwnFault fault(s, rank);
  fault.before();
  Communicator comm = Communicator::from_environment();
  report.made = true;
  fault.behind(comm);
  if (trains(s)) return train(s, comm, report);
  Program(s, comm, report).run();
}

void put(Report& report, const char* text) { std::strncpy(report.text.data(), text, report.text.size() - 1); }

void run_rank(const Scenario& s, int rank, Report& report) {
  report.descriptors_before = entries("/proc/self/fd");
  report.threads_before = threads();
  Report::End end = Report::right;
  try {
    use(s, rank, report);
  } catch (const Error& error) {
    end = Report::told;
    report.code = static_cast<int>(error.code());
    put(report, error.what());
  } catch (const std::runtime_error& error) {
    end = Report::wrong;
    put(report, error.what());
  } catch (const std::exception& error) {
    end = Report::other;
    put(report, error.what());
  }
  report.at_ns = now_ns();
  report.descriptors_after = entries("/proc/self/fd");
  // The kernel shows a thread for a moment after its join has returned.
  for (int look = 0; !trains(s) && look < 1'000 && threads() > report.threads_before; ++look) sleep_us(1'000);
  report.threads_after = threads();
  report.end = end;
}

}  // namespace

const std::vector<SystemCall>& refusable_calls() {
  static const std::vector<SystemCall> all = {
      {"accept4", SYS_accept4},
      {"bind", SYS_bind},
      {"clone3", SYS_clone3},
      {"connect", SYS_connect},
      {"eventfd2", SYS_eventfd2},
      {"fstat", SYS_fstat},
      {"listen", SYS_listen},
      {"madvise", SYS_madvise},
      {"memfd_create", SYS_memfd_create},
      {"recvmsg", SYS_recvmsg},
      {"sendmsg", SYS_sendmsg},
      {"socket", SYS_socket},
      {"pidfd_open", SYS_pidfd_open},
      {"process_vm_readv", SYS_process_vm_readv},
      {"openat", SYS_openat},
  };
  return all;
}

std::vector<pid_t> start_ranks(const Scenario& s, const std::string& job, Reports& reports) {
  std::vector<pid_t> ranks;
  const pid_t parent = getpid();
  for (int rank = 0; rank < s.ranks; ++rank) {
    const pid_t child = fork();
    if (child != 0) {
      ranks.push_back(child);
      continue;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
    set("TUTTI_JOB", job);
    set("TUTTI_RANK", std::to_string(rank));
    set("TUTTI_SIZE", std::to_string(s.ranks));
    set("TUTTI_TIMEOUT", std::to_string(s.deadline) + "s");
    if (s.hosts) {
      set("TUTTI_HOST_ID", rank % 2 == 0 ? "a" : "b");
      set("TUTTI_NETWORK", s.network);
      const std::string rails = testing::rails_of_cable(rank % 2 == 0);
      if (!rails.empty()) set("TUTTI_VERBS_DEVICES", rails);
    }
    if (s.fault == Fault::full_disk) set("TUTTI_FLIGHT_RECORDER", "/dev/full");
    set("OMP_NUM_THREADS", "1");
    const int quiet = open("/dev/null", O_WRONLY);
    dup2(quiet, STDERR_FILENO);
    close(quiet);
    run_rank(s, rank, reports[static_cast<std::size_t>(rank)]);
    _exit(0);
  }
  return ranks;
}

}  // namespace tutti::chaos
