// The memory of a communicator, and how it is given back for a while. As processes: this one does not use the library.
#include <gmock/gmock.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/nccl/ranks.h"

namespace tutti::nccl::testing::suspend_test {
namespace {

std::uint64_t stat(ncclComm_t comm, ncclCommMemStat_t which) {
  std::uint64_t value = ~std::uint64_t{0};
  must(ncclCommMemStats(comm, which, &value));
  return value;
}

/// Shared memory that this process has in use: where communicators have their windows.
std::uint64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word && word != "RssShmem:") {
  }
  std::uint64_t kilobytes = 0;
  status >> kilobytes;
  return kilobytes << 10;
}

constexpr std::uint64_t kTouched = 256 << 10;  // at least, by a call of some MiB

/// The peer may be behind.
void expect_falls_below(std::uint64_t limit) {
  for (int looks = 0; resident_bytes() >= limit; ++looks) {
    if (looks == 100'000) throw std::runtime_error(std::to_string(resident_bytes()) + " bytes are still in use");
    const timespec pause{0, 200'000};
    nanosleep(&pause, nullptr);
  }
}

TEST(Suspend, GivesTheMemoryBackAndTakesItAgain) {
  const auto rank_of_two = [](int rank, Shared& shared) -> std::string {
    ncclComm_t comm = nullptr;
    must(ncclCommInitRank(&comm, 2, meet(shared, rank), rank));
    float factor = 2;
    ncclRedOp_t twice{};
    must(ncclRedOpCreatePreMulSum(&twice, &factor, ncclFloat32, ncclScalarHostImmediate, comm));
    for (int round = 0; round < 3; ++round) {
      std::vector<float> many(1 << 20, 1.0F);  // through the communicator's memory
      must(ncclAllReduce(many.data(), many.data(), many.size(), ncclFloat32, ncclSum, comm, nullptr));
      if (many.back() != 2) throw std::runtime_error("the sum is wrong");
      const std::uint64_t bytes = stat(comm, ncclStatGpuMemTotal);
      const std::uint64_t resident = resident_bytes();
      if (bytes < 4096 || resident < kTouched) {
        throw std::runtime_error("it says " + std::to_string(bytes) + " bytes, of which " + std::to_string(resident) +
                                 " are in use");
      }
      if (stat(comm, ncclStatGpuMemSuspend) != bytes || stat(comm, ncclStatGpuMemSuspended) != 0 ||
          stat(comm, ncclStatGpuMemPersist) != 0) {
        throw std::runtime_error("the statistics of an active one do not fit together");
      }
      must(ncclCommResume(comm), ncclInvalidUsage);
      must(ncclCommSuspend(comm, 0), ncclInvalidArgument);
      must(ncclCommSuspend(comm, kSuspendMemory));
      if (stat(comm, ncclStatGpuMemTotal) != 0 || stat(comm, ncclStatGpuMemSuspended) != 1) {
        throw std::runtime_error("the statistics of a suspended one are wrong");
      }
      expect_falls_below(resident / 8);
      float x = 1;
      must(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, comm, nullptr), ncclInvalidUsage);
      must(ncclCommSuspend(comm, kSuspendMemory), ncclInvalidUsage);
      must(ncclCommRevoke(comm, kRevokeDefault), ncclInvalidUsage);
      ncclComm_t child = nullptr;
      must(ncclCommShrink(comm, nullptr, 0, &child, nullptr, kShrinkAbort), ncclInvalidUsage);
      int size = 0;
      must(ncclCommCount(comm, &size));
      ncclResult_t state = ncclInternalError;
      must(ncclCommGetAsyncError(comm, &state));
      must(state);
      must(ncclCommResume(comm));
      must(ncclAllReduce(&x, &x, 1, ncclFloat32, twice, comm, nullptr));
      if (size != 2 || x != 4) throw std::runtime_error("it is not what it was");
    }
    must(ncclCommSuspend(comm, kSuspendMemory));
    must(ncclCommDestroy(comm));
    return {};
  };
  // So that a large call goes through the communicator's memory, and not from one rank's memory into the other's.
  const std::vector<Outcome> outcomes =
      on_processes(2, rank_of_two, {{"TUTTI_TIMEOUT", "60s"}, {"TUTTI_CROSS_MEMORY", "off"}});
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, "");
}

TEST(Suspend, OneThreadsRanksInAGroupAndInTheBackground) {
  const Outcome outcome = tutti::testing::in_child([]() -> std::string {
    std::vector<ncclComm_t> comms(2);
    ncclUniqueId id;
    must(ncclGetUniqueId(&id));
    ncclConfig_t config = new_config();
    config.blocking = 0;
    must(ncclGroupStart());
    for (int r = 0; r < 2; ++r) must(ncclCommInitRankConfig(&comms[static_cast<std::size_t>(r)], 2, id, r, &config));
    must(ncclGroupEnd(), ncclInProgress);
    for (const ncclComm_t comm : comms) must(settle(comm));
    must(ncclGroupStart());
    for (const ncclComm_t comm : comms) must(ncclCommSuspend(comm, kSuspendMemory));
    must(ncclGroupEnd(), ncclInProgress);
    for (const ncclComm_t comm : comms) must(settle(comm));
    must(ncclGroupStart());
    for (const ncclComm_t comm : comms) must(ncclCommResume(comm));
    must(ncclGroupEnd(), ncclInProgress);
    for (const ncclComm_t comm : comms) must(settle(comm));
    float sums[2] = {1, 2};
    must(ncclGroupStart());
    for (std::size_t r = 0; r < 2; ++r) {
      must(ncclAllReduce(&sums[r], &sums[r], 1, ncclFloat32, ncclSum, comms[r], nullptr));
    }
    (void)ncclGroupEnd();
    for (const ncclComm_t comm : comms) must(settle(comm));
    if (sums[0] != 3 || sums[1] != 3) throw std::runtime_error("the sum is wrong");
    for (const ncclComm_t comm : comms) must(ncclCommDestroy(comm));
    return {};
  });
  EXPECT_EQ(outcome.error, "");
}

TEST(Suspend, ARevocationAtTheSameTimeIsBeforeItOrAfter) {
  const Outcome outcome = tutti::testing::in_child([]() -> std::string {
    for (int round = 0; round < 200; ++round) {
      std::vector<ncclComm_t> comms(2);
      must(ncclCommInitAll(comms.data(), 2, nullptr));
      ncclResult_t suspended[2] = {};
      std::thread ranks[2];
      std::atomic<int> running{0};
      for (std::size_t r = 0; r < 2; ++r) {
        ranks[r] = std::thread([&, r] {
          ++running;
          suspended[r] = ncclCommSuspend(comms[r], kSuspendMemory);
        });
      }
      while (running.load() < 2) std::this_thread::yield();
      for (int turn = 0; turn < round / 2; ++turn) std::this_thread::yield();  // each round a little later
      const ncclResult_t revoked = ncclCommRevoke(comms[0], kRevokeDefault);
      const std::string sentence = ncclGetLastError(nullptr);
      for (std::thread& rank : ranks) rank.join();
      if (revoked == ncclSuccess) {
        if (suspended[0] == ncclSuccess) throw std::runtime_error("it is revoked and suspended");
        ncclResult_t state = ncclInternalError;
        must(ncclCommGetAsyncError(comms[0], &state));
        must(state);
        must(ncclCommResume(comms[0]), ncclInvalidUsage);
      } else if (revoked != ncclInvalidUsage || suspended[0] != ncclSuccess || suspended[1] != ncclSuccess) {
        throw std::runtime_error(sentence);
      }
      for (const ncclComm_t comm : comms) must(ncclCommAbort(comm));
    }
    return {};
  });
  EXPECT_EQ(outcome.error, "");
}

TEST(Suspend, AGroupHasNoOtherCallOnTheCommunicator) {
  const Outcome outcome = tutti::testing::in_child([]() -> std::string {
    std::vector<ncclComm_t> comms(2);
    must(ncclCommInitAll(comms.data(), 2, nullptr));
    float sums[2] = {1, 2};
    ncclComm_t parts[2] = {};
    using Call = std::function<ncclResult_t(std::size_t rank)>;
    const Call add = [&](std::size_t r) {
      return ncclAllReduce(&sums[r], &sums[r], 1, ncclFloat32, ncclSum, comms[r], nullptr);
    };
    const Call split = [&](std::size_t r) { return ncclCommSplit(comms[r], 0, 0, &parts[r], nullptr); };
    const Call suspend = [&](std::size_t r) { return ncclCommSuspend(comms[r], kSuspendMemory); };
    const Call resume = [&](std::size_t r) { return ncclCommResume(comms[r]); };
    const auto in_a_group = [&](const Call& first, const Call& second, const std::string& words) {
      must(ncclGroupStart());
      for (std::size_t r = 0; r < 2; ++r) must(first(r));
      for (std::size_t r = 0; r < 2; ++r) {
        must(second(r), ncclInvalidUsage);
        const std::string sentence = ncclGetLastError(nullptr);
        if (sentence.find(words) == std::string::npos) throw std::runtime_error(sentence);
      }
      must(ncclGroupEnd(), ncclInvalidUsage);
    };
    const auto all = [&](const Call& call) {
      must(ncclGroupStart());
      for (std::size_t r = 0; r < 2; ++r) must(call(r));
      must(ncclGroupEnd());
    };
    in_a_group(add, suspend, "ncclCommSuspend: rank ");
    in_a_group(split, suspend, "has calls in the group that is open; expected ncclGroupEnd first");
    in_a_group(suspend, suspend, "has calls in the group that is open");
    in_a_group(suspend, add, "ncclAllReduce: rank ");
    in_a_group(suspend, split, "the group that is open suspends or resumes the communicator");
    all(suspend);
    in_a_group(resume, resume, "ncclCommResume: rank ");
    all(resume);
    all(add);
    if (sums[0] != 3 || sums[1] != 3) throw std::runtime_error("the sum is wrong");
    for (const ncclComm_t comm : comms) must(ncclCommDestroy(comm));
    return {};
  });
  EXPECT_EQ(outcome.error, "");
}

/// The other rank makes only the first steps of a Suspend, and never the last.
TEST(Suspend, AnAbortEndsIt) {
  const std::vector<Outcome> outcomes =
      on_processes(2,
                   [](int rank, Shared& shared) -> std::string {
                     ncclComm_t comm = nullptr;
                     must(ncclCommInitRank(&comm, 2, meet(shared, rank), rank));
                     if (rank == 1) {
                       char id[sizeof(ncclUniqueId)];
                       ncclComm_t second = nullptr;
                       must(ncclBroadcast(id, id, sizeof(id), ncclInt8, 0, comm, nullptr));
                       must(ncclCommSplit(comm, 0, rank, &second, nullptr));
                       wait_until([&] { return shared.progress.load() != 0; });
                       must(ncclCommAbort(second));
                       must(ncclCommAbort(comm));
                       return {};
                     }
                     std::string sentence;
                     std::thread suspending([&] {
                       if (ncclCommSuspend(comm, kSuspendMemory) != ncclSuccess) sentence = ncclGetLastError(nullptr);
                     });
                     std::exception_ptr thrown;
                     try {
                       wait_until([&] { return stat(comm, ncclStatGpuMemSuspended) == 1; });
                     } catch (...) {
                       thrown = std::current_exception();
                     }
                     const ncclResult_t aborted = ncclCommAbort(comm);
                     suspending.join();
                     shared.progress.store(1);
                     if (thrown) std::rethrow_exception(thrown);
                     must(aborted);
                     return sentence;
                   },
                   {{"TUTTI_TIMEOUT", "10s"}});
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, "");
  EXPECT_THAT(outcomes[0].said, AllOf(HasSubstr("ncclCommSuspend: "), HasSubstr("ncclCommAbort")));
}

TEST(Suspend, ARankThatIsGoneIsMissedAtTheResumption) {
  const std::vector<Outcome> outcomes =
      on_processes(2,
                   [](int rank, Shared& shared) -> std::string {
                     ncclComm_t comm = nullptr;
                     must(ncclCommInitRank(&comm, 2, meet(shared, rank), rank));
                     must(ncclCommSuspend(comm, kSuspendMemory));
                     if (rank == 1) return {};
                     must(ncclCommResume(comm), ncclRemoteError);
                     const std::string sentence = ncclGetLastError(nullptr);
                     float x = 1;
                     must(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, comm, nullptr), ncclRemoteError);
                     must(ncclCommAbort(comm));
                     return sentence;
                   },
                   {{"TUTTI_TIMEOUT", "2s"}});
  EXPECT_EQ(outcomes[0].error, "");
  EXPECT_THAT(outcomes[0].said, HasSubstr("ncclCommResume: "));
}

}  // namespace
}  // namespace tutti::nccl::testing::suspend_test
