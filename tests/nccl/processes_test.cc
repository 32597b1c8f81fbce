// What takes processes: ranks that are killed or never come, revoking, and what is left of a communicator. This process
// itself does not use the library: its forks would inherit the options that it has read.
#include <gmock/gmock.h>

#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/nccl/ranks.h"
#include "tests/support/usage.h"

namespace tutti::nccl::testing::processes_test {
namespace {

using tutti::testing::open_descriptors;

TEST(Processes, AKilledRankIsNamedAndTheOthersGoOn) {
  const std::vector<Outcome> outcomes = on_processes(3, [](int rank, Shared& shared) -> std::string {
    ncclComm_t comm = nullptr;
    must(ncclCommInitRank(&comm, 3, meet(shared, rank), rank));
    if (sum_of(1, comm) != 3) throw std::runtime_error("the first sum is wrong");
    shared.progress.fetch_add(1);
    if (rank == 1) {  // when the others have the first sum
      wait_until([&] { return shared.progress.load() == 3; });
      ::raise(SIGKILL);
    }
    float x = 1;
    must(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, comm, nullptr), ncclRemoteError);
    const std::string sentence = ncclGetLastError(nullptr);
    int gone = 1;
    ncclComm_t rest = nullptr;
    must(ncclCommShrink(comm, &gone, 1, &rest, nullptr, kShrinkAbort));
    if (sum_of(static_cast<float>(rank), rest) != 2) throw std::runtime_error("the sum of the rest is wrong");
    must(ncclCommDestroy(rest));
    must(ncclCommAbort(comm));
    return sentence;
  });
  EXPECT_EQ(outcomes[1].error, "ended by signal 9");
  for (const int rank : {0, 2}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.error, "");
    EXPECT_THAT(outcome.said, AllOf(HasSubstr("ncclAllReduce: "), HasSubstr("rank 1 (")));
  }
}

TEST(Processes, ADeathIsAnAsynchronousErrorToo) {
  const std::vector<Outcome> outcomes = on_processes(2, [](int rank, Shared& shared) -> std::string {
    ncclComm_t comm = nullptr;
    must(ncclCommInitRank(&comm, 2, meet(shared, rank), rank));
    shared.progress.fetch_add(1);
    wait_until([&] { return shared.progress.load() == 2; });
    if (rank == 1) ::raise(SIGKILL);
    ncclResult_t state = ncclSuccess;  // and no rank makes a call
    wait_until([&] { return ncclCommGetAsyncError(comm, &state) != ncclSuccess || state != ncclSuccess; });
    must(state, ncclRemoteError);
    const std::string sentence = ncclGetLastError(comm);
    must(ncclCommAbort(comm));
    return sentence;
  });
  EXPECT_EQ(outcomes[0].error, "");
  EXPECT_THAT(outcomes[0].said, AllOf(HasSubstr("ncclCommGetAsyncError: "), HasSubstr("rank 1 (")));
}

TEST(Processes, ARankThatNeverComes) {
  const std::vector<Outcome> outcomes = on_processes(2,
                                                     [](int rank, Shared& shared) -> std::string {
                                                       const ncclUniqueId id = meet(shared, rank);
                                                       ncclComm_t comm = nullptr;
                                                       must(ncclCommInitRank(&comm, 3, id, rank), ncclRemoteError);
                                                       if (comm != nullptr)
                                                         throw std::runtime_error("a handle was left");
                                                       return ncclGetLastError(nullptr);
                                                     },
                                                     {{"TUTTI_TIMEOUT", "2s"}});
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_THAT(outcome.said, HasSubstr("ncclCommInitRank: "));
  }
}

TEST(Processes, AbortWhileItIsBeingMade) {
  const Outcome outcome = tutti::testing::in_child(
      []() -> std::string {
        ncclConfig_t config = new_config();
        config.blocking = 0;
        ncclUniqueId id;
        must(ncclGetUniqueId(&id));
        ncclComm_t comm = nullptr;
        must(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);  // rank 1 never comes
        int size = 0;
        must(ncclCommCount(comm, &size), ncclInvalidArgument);
        const std::string busy = ncclGetLastError(nullptr);
        must(ncclCommAbort(comm));
        must(ncclCommCount(comm, &size), ncclInvalidArgument);
        return busy;
      },
      {{"TUTTI_TIMEOUT", "30s"}});
  EXPECT_EQ(outcome.error, "");
  EXPECT_THAT(outcome.said, HasSubstr("ncclCommCount: rank 0 is still busy"));
}

TEST(Processes, RevokedAndShrunk) {
  const std::vector<Outcome> outcomes = on_processes(3, [](int rank, Shared& shared) -> std::string {
    ncclComm_t comm = nullptr;
    must(ncclCommInitRank(&comm, 3, meet(shared, rank), rank));
    float x = 1;
    if (rank == 0) {  // waits for ever but for the others' revoking
      must(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, comm, nullptr), ncclRemoteError);
    }
    must(ncclCommRevoke(comm, 1), ncclInvalidArgument);
    must(ncclCommRevoke(comm, 0));
    ncclResult_t state = ncclInternalError;
    must(ncclCommGetAsyncError(comm, &state));
    must(state);
    must(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, comm, nullptr), ncclInvalidUsage);
    const std::string sentence = ncclGetLastError(nullptr);
    must(ncclCommFinalize(comm), ncclInvalidUsage);
    ncclComm_t fresh = nullptr;
    must(ncclCommShrink(comm, nullptr, 0, &fresh, nullptr, kShrinkDefault));
    if (sum_of(1, fresh) != 3) throw std::runtime_error("the sum is wrong");
    must(ncclCommDestroy(fresh));
    must(ncclCommDestroy(comm));
    return sentence;
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_THAT(outcome.said, HasSubstr("the communicator was revoked"));
  }
}

TEST(Processes, DestroyingGivesEverythingBack) {
  const std::vector<Outcome> outcomes = on_processes(2, [](int rank, Shared& shared) -> std::string {
    int before = 0;
    for (int round = 0; round < 20; ++round) {
      if (round == 1) before = open_descriptors();  // the first has opened what the process keeps
      ncclComm_t comm = nullptr;
      must(ncclCommInitRank(&comm, 2, meet(shared, rank), rank));
      if (sum_of(1, comm) != 2) throw std::runtime_error("the sum is wrong");
      shared.progress.fetch_add(1);  // the next id is made only when both have used this one
      wait_until([&] { return shared.progress.load() >= 2 * round + 2; });
      if (rank == 0) shared.id_is_ready.store(false);
      if (sum_of(1, comm) != 2) throw std::runtime_error("the sum is wrong");
      must(ncclCommDestroy(comm));
    }
    return std::to_string(open_descriptors() - before);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_LT(std::abs(std::atoi(outcome.said.c_str())), 5) << "a leak of one each time would be 19";
  }
}

}  // namespace
}  // namespace tutti::nccl::testing::processes_test
