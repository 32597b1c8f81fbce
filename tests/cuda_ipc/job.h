// Ranks that share device memory of a fake driver: as forked processes, each with a driver of its own, or as threads.
//
//   const auto said = run_processes(3, {.devices = 1}, [](Rank& rank) { ...; return std::string(); });
//   EXPECT_THAT(said, Each(""));     // what each body returned; "ended by signal 9" of a child that was killed
#pragma once

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/fake_cuda/driver.h"
#include "transport/cuda_ipc/cuda_ipc.h"

namespace tutti::testing {

using transport::CudaIpc;
using transport::DevicePeer;
using transport::RegionLog;

inline constexpr int kJobRanks = 8;

/// Memory that all ranks map.
struct SharedJob {
  std::atomic<int> pids[kJobRanks] = {};
  std::atomic<std::uint64_t> arrived[kJobRanks] = {};
  std::uint64_t values[2][kJobRanks] = {};
  std::uint64_t words[64] = {};  // for tests
  char said[kJobRanks][1024] = {};
  RegionLog logs[kJobRanks];
};

class Rank {
 public:
  Rank(SharedJob* job, int rank, int ranks, FakeDriver* cuda) : job_(job), rank_(rank), ranks_(ranks), cuda_(cuda) {
    job_->pids[rank].store(getpid());
    (void)exchange(0);
    for (int r = 0; r < ranks; ++r) {
      const int pid = job_->pids[r].load();
      watched_.push_back(pid == getpid() ? -1 : static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    }
  }

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  FakeDriver& cuda() const { return *cuda_; }
  const device::Driver& table() const { return *device::driver().value(); }
  std::uint64_t& word(int index) const { return job_->words[index]; }
  void barrier() { (void)exchange(0); }

  bool alive(int rank) const {
    pollfd watched{watched_[static_cast<std::size_t>(rank)], POLLIN, 0};
    return watched.fd < 0 || poll(&watched, 1, 0) == 0;
  }

  Result<std::vector<std::uint64_t>> exchange(std::uint64_t mine) {
    const std::uint64_t round = round_++;
    job_->values[round % 2][rank_] = mine;
    job_->arrived[rank_].store(round + 1, std::memory_order_release);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (int r = 0; r < ranks_; ++r) {
      while (job_->arrived[r].load(std::memory_order_acquire) <= round) {
        if (!watched_.empty() && !alive(r)) return Status(Code::peer_died, "rank " + std::to_string(r) + " died");
        if (std::chrono::steady_clock::now() > until) return Status(Code::timeout, "a rank has not come");
        std::this_thread::yield();
      }
    }
    return std::vector<std::uint64_t>(job_->values[round % 2], job_->values[round % 2] + ranks_);
  }

  CudaIpc::Config config(int device) {
    CudaIpc::Config config;
    config.rank = rank_;
    config.device = device;
    config.sizes = {.ranks = ranks_, .lanes = 2, .scratch_half = 4096, .published_half = 4096, .express_bytes = 256};
    for (int r = 0; r < ranks_; ++r) config.logs.push_back(&job_->logs[r]);
    config.alive = [watched = watched_](int rank) {
      pollfd item{watched[static_cast<std::size_t>(rank)], POLLIN, 0};
      return item.fd < 0 || poll(&item, 1, 0) == 0;
    };
    config.name = [](int rank) { return "rank " + std::to_string(rank); };
    config.exchange = [this](const transport::Words& mine) { return exchange(mine.front()); };
    config.deadline = std::chrono::seconds(30);
    return config;
  }

  /// cuMemAlloc, filled with one value.
  CUdeviceptr allocate(std::size_t bytes, int value) const {
    CUdeviceptr made = 0;
    if (table().MemAlloc(&made, bytes) != CUDA_SUCCESS) return 0;
    std::memset(reinterpret_cast<void*>(made), value, bytes);
    return made;
  }

 private:
  SharedJob* const job_;
  const int rank_;
  const int ranks_;
  FakeDriver* const cuda_;
  std::uint64_t round_ = 0;
  std::vector<int> watched_;
};

inline const void* host(CUdeviceptr pointer) { return reinterpret_cast<const void*>(pointer); }
inline unsigned char* bytes_at(std::uint64_t address) { return reinterpret_cast<unsigned char*>(address); }

/// Returns where a handle of `rank` is mapped here, as a kernel looks it up; null: nowhere.
inline unsigned char* resolve(const CudaIpc& links, int rank, std::uint64_t handle) {
  const DevicePeer& peer = reinterpret_cast<const DevicePeer*>(links.peers())[rank];
  if ((handle & transport::kDeviceRegion) == 0) {
    return (peer.flags & transport::kSameAddresses) != 0 ? bytes_at(handle) : nullptr;
  }
  const std::uint64_t region = (handle & ~transport::kDeviceRegion) >> transport::kDeviceRegionShift;
  const std::uint64_t base = reinterpret_cast<const std::uint64_t*>(peer.regions)[region];
  return base == 0 ? nullptr : bytes_at(base + (handle & ((std::uint64_t{1} << transport::kDeviceRegionShift) - 1)));
}

inline SharedJob* new_job() {
  void* memory = mmap(nullptr, sizeof(SharedJob), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<SharedJob*>(memory);
}

using Body = std::function<std::string(Rank&)>;

/// On a fake machine, or (null) on this one. REQUIRES: this process has used no driver (its threads would not be there
/// after a fork).
inline std::vector<std::string> run_processes_on(int ranks, const FakeMachine* machine, const Body& body) {
  SharedJob* job = new_job();
  std::vector<pid_t> children;
  for (int r = 0; r < ranks; ++r) {
    const pid_t pid = fork();
    if (pid != 0) {
      children.push_back(pid);
      continue;
    }
    std::string text;
    {
      std::optional<FakeDriver> cuda;
      if (machine != nullptr) cuda.emplace(*machine);
      Rank rank(job, r, ranks, cuda ? &*cuda : nullptr);
      const Result<device::CurrentContext> current = device::enter(r % device::device_count().value());
      text = body(rank);
    }
    std::strncpy(job->said[r], text.c_str(), sizeof(job->said[r]) - 1);
    _exit(0);
  }
  std::vector<std::string> said;
  for (int r = 0; r < ranks; ++r) {
    int status = 0;
    waitpid(children[static_cast<std::size_t>(r)], &status, 0);
    if (WIFSIGNALED(status)) {
      said.push_back("ended by signal " + std::to_string(WTERMSIG(status)));
    } else {
      said.emplace_back(WEXITSTATUS(status) == 0 ? job->said[r]
                                                 : "ended with status " + std::to_string(WEXITSTATUS(status)));
    }
  }
  munmap(job, sizeof(SharedJob));
  return said;
}

inline std::vector<std::string> run_processes(int ranks, const FakeMachine& machine, const Body& body) {
  return run_processes_on(ranks, &machine, body);
}

inline std::vector<std::string> run_threads(int ranks, FakeDriver& cuda, int devices, const Body& body) {
  SharedJob* job = new_job();
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      Rank rank(job, r, ranks, &cuda);
      const Result<device::CurrentContext> current = device::enter(r % devices);
      said[static_cast<std::size_t>(r)] = body(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CudaIpc::sweep();
  munmap(job, sizeof(SharedJob));
  return said;
}

/// In a body: what is not so becomes what the body says.
#define TUTTI_SAY_UNLESS(condition) \
  if (!(condition)) return std::string(__FILE__ ":" + std::to_string(__LINE__) + ": " #condition)
#define TUTTI_SAY_ERROR(status) \
  if (const ::tutti::Status tutti_said_ = (status); !tutti_said_.ok()) return tutti_said_.message()

}  // namespace tutti::testing
