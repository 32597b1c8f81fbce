// Ranks of libtutti_nccl.so for tests: threads of this process, or forked processes. By nccl/abi.h, so without NVIDIA's
// header.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <ctime>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "nccl/abi.h"
#include "tests/collectives/processes.h"

namespace tutti::nccl::testing {

using ::testing::AllOf;
using ::testing::HasSubstr;
using tutti::testing::Environment;
using tutti::testing::Outcome;

/// Expects that `call` ends so, and that the last error has these words. On the thread of the call.
#define EXPECT_NCCL(call, expected, ...)                                                \
  do {                                                                                  \
    EXPECT_EQ(call, expected) << ncclGetLastError(nullptr);                             \
    EXPECT_THAT(std::string(ncclGetLastError(nullptr)), ::testing::AllOf(__VA_ARGS__)); \
  } while (false)
/// Expects that it succeeds.
#define EXPECT_DONE(call) EXPECT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr)

/// The communicators of `size` ranks of this process.
inline std::vector<ncclComm_t> init_all(int size) {
  std::vector<ncclComm_t> comms(static_cast<std::size_t>(size));
  EXPECT_DONE(ncclCommInitAll(comms.data(), size, nullptr));
  return comms;
}

/// Runs body(rank) on a thread each.
inline void on_threads(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

/// ncclConfig_t as NCCL_CONFIG_INITIALIZER makes it.
inline ncclConfig_t new_config() {
  constexpr int kNone = kUndefinedInt;
  return {sizeof(ncclConfig_t),
          kApiMagic,
          kVersionCode,
          kNone,
          kNone,
          kNone,
          kNone,
          nullptr,
          kNone,
          kNone,
          nullptr,
          kNone,
          kNone,
          kNone,
          kNone,
          kNone,
          kNone,
          kNone,
          kNone,
          kNone,
          kNone,
          kNone,
          kNone,
          kNone,
          kNone,
          kNone};
}

/// ncclCollConfig_t as NCCL_COLLCONFIG_INITIALIZER makes it.
inline ncclCollConfig_t new_call_config() {
  constexpr int kNone = kUndefinedInt;
  return {sizeof(ncclCollConfig_t),
          kApiMagic,
          kVersionCode,
          nullptr,
          kNone,
          kNone,
          kNone,
          kNone,
          nullptr,
          1,
          kNone,
          0,
          nullptr};
}

/// Returns the communicator's status once nothing is under way; a test's own time limit ends a wait that never does.
inline ncclResult_t settle(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclInProgress) {
    const timespec pause{0, 100'000};
    nanosleep(&pause, nullptr);
  }
  return state;
}

/// The sum of `value` over all ranks; -1 where the call fails.
inline float sum_of(float value, ncclComm_t comm) {
  float result = -1;
  const ncclResult_t ended = ncclAllReduce(&value, &result, 1, ncclFloat32, ncclSum, comm, nullptr);
  if (ended == ncclInProgress) return settle(comm) == ncclSuccess ? result : -1;
  return ended == ncclSuccess ? result : -1;
}

/// Memory that forked processes share with this one, with what they meet by.
struct Shared {
  std::atomic<bool> id_is_ready{false};
  std::atomic<int> progress{0};  // whatever a test counts
  ncclUniqueId id{};
};

inline Shared* new_shared() {
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (memory) Shared;
}

template <class Holds>
void wait_until(Holds&& holds) {
  for (int looks = 0; !holds(); ++looks) {
    if (looks == 300'000) throw std::runtime_error("what was waited for did not come in a minute");
    const timespec pause{0, 200'000};
    nanosleep(&pause, nullptr);
  }
}

/// Rank 0's id, on all ranks.
inline ncclUniqueId meet(Shared& shared, int rank) {
  if (rank == 0) {
    EXPECT_DONE(ncclGetUniqueId(&shared.id));
    shared.id_is_ready.store(true);
  }
  wait_until([&] { return shared.id_is_ready.load(); });
  return shared.id;
}

/// Throws, with the library's sentence, when `result` is not what a rank's body needs.
inline void must(ncclResult_t result, ncclResult_t expected = ncclSuccess) {
  if (result == expected) return;
  throw std::runtime_error("result " + std::to_string(result) + ": " + ncclGetLastError(nullptr));
}

/// Runs body(rank, shared) on forked processes; by rank, what each returned or threw.
inline std::vector<Outcome> on_processes(int size, const std::function<std::string(int rank, Shared& shared)>& body,
                                         const Environment& environment = {{"TUTTI_TIMEOUT", "60s"}}) {
  Shared* const shared = new_shared();
  std::vector<tutti::testing::internal::ChildProcess> children;
  for (int rank = 0; rank < size; ++rank) {
    children.push_back(tutti::testing::internal::start_child(environment, [=] { return body(rank, *shared); }));
  }
  std::vector<Outcome> outcomes;
  for (const auto& child : children) outcomes.push_back(tutti::testing::internal::end_of(child));
  ::munmap(shared, sizeof(Shared));
  return outcomes;
}

}  // namespace tutti::nccl::testing
