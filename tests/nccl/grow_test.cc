// Ranks added to a communicator, as processes. This process itself does not use the library.
#include <gmock/gmock.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/nccl/ranks.h"
#include "tests/support/usage.h"

namespace tutti::nccl::testing::grow_test {
namespace {

using tutti::testing::open_descriptors;

/// The communicator of the first `size` ranks; null on the others.
ncclComm_t made_of(int size, int rank, Shared& shared) {
  ncclComm_t comm = nullptr;
  if (rank < size) must(ncclCommInitRank(&comm, size, meet(shared, rank), rank));
  return comm;
}

/// `root` of `comm` makes an id, which all ranks get.
ncclUniqueId id_to_grow_by(ncclComm_t comm, int rank, int root, Shared& shared) {
  if (rank == root) {
    must(ncclCommGetUniqueId(comm, &shared.id));
    shared.progress.store(1);
  }
  wait_until([&] { return shared.progress.load() != 0; });
  return shared.id;
}

std::string sums_to(ncclComm_t comm, int rank, float expected) {
  int number = -1;
  must(ncclCommUserRank(comm, &number));
  if (number != rank) throw std::runtime_error("the rank is " + std::to_string(number));
  const float sum = sum_of(static_cast<float>(rank + 1), comm);
  if (sum != expected) throw std::runtime_error("the sum is " + std::to_string(sum));
  return {};
}

void grow_by_two(int root, bool all_give_the_id) {
  const std::vector<Outcome> outcomes = on_processes(4, [=](int rank, Shared& shared) -> std::string {
    const bool is_new = rank >= 2;
    ncclComm_t comm = made_of(2, rank, shared);
    const ncclUniqueId id = id_to_grow_by(comm, rank, root, shared);
    ncclComm_t grown = nullptr;
    must(ncclCommGrow(comm, 4, is_new || all_give_the_id ? &id : nullptr, is_new ? rank : -1, &grown, nullptr));
    if (!is_new) {
      sums_to(comm, rank, 3);  // the old one still works
      must(ncclCommDestroy(comm));
    }
    sums_to(grown, rank, 10);
    must(ncclCommDestroy(grown));
    return {};
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, "");
}

TEST(Grow, ByTheIdOfRank0) { grow_by_two(0, /*all_give_the_id=*/false); }

TEST(Grow, ByTheIdOfAnotherRank) { grow_by_two(1, /*all_give_the_id=*/true); }

TEST(Grow, InTheBackgroundAndAgain) {
  const std::vector<Outcome> outcomes = on_processes(3, [](int rank, Shared& shared) -> std::string {
    ncclComm_t comm = made_of(1, rank, shared);
    ncclConfig_t config = new_config();
    config.blocking = 0;
    for (int size = 2; size <= 3; ++size) {
      if (rank == 0) {
        must(ncclCommGetUniqueId(comm, &shared.id));
        must(ncclCommGetUniqueId(comm, &shared.id), ncclInvalidUsage);  // that one first
        shared.progress.store(size);
      }
      if (rank >= size) continue;
      wait_until([&] { return shared.progress.load() >= size; });
      const ncclUniqueId id = shared.id;
      ncclComm_t grown = nullptr;
      const bool is_new = rank == size - 1;
      const ncclResult_t result = ncclCommGrow(comm, size, is_new ? &id : nullptr, is_new ? rank : -1, &grown, &config);
      // An existing rank's call is of the old communicator's kind, which is a blocking one at first.
      must(result, is_new || size == 3 ? ncclInProgress : ncclSuccess);
      must(settle(grown));
      if (comm != nullptr) must(settle(comm));
      sums_to(grown, rank, size == 2 ? 3 : 6);
      if (comm != nullptr) must(ncclCommDestroy(comm));
      comm = grown;
    }
    must(ncclCommDestroy(comm));
    return {};
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, "");
}

TEST(Grow, WhatDoesNotFitIsNamedAndHarmsNothing) {
  const Outcome outcome = tutti::testing::in_child([]() -> std::string {
    std::vector<ncclComm_t> comms(2);
    must(ncclCommInitAll(comms.data(), 2, nullptr));
    ncclComm_t made = nullptr;
    const auto grow_both = [&](int first, int second, ncclResult_t expected) {
      must(ncclGroupStart());
      must(ncclCommGrow(comms[0], first, nullptr, -1, &made, nullptr));
      ncclComm_t other = nullptr;
      must(ncclCommGrow(comms[1], second, nullptr, -1, &other, nullptr));
      must(ncclGroupEnd(), expected);
      return std::string(ncclGetLastError(nullptr)) + "\n";
    };
    std::string said = grow_both(3, 3, ncclInvalidUsage);  // no rank has made an id
    said += grow_both(3, 4, ncclInvalidUsage);
    ncclUniqueId ids[2];
    const int descriptors = open_descriptors();
    for (std::size_t r = 0; r < 2; ++r) must(ncclCommGetUniqueId(comms[r], &ids[r]));
    said += grow_both(3, 3, ncclInvalidUsage);  // which drops both
    if (open_descriptors() != descriptors) throw std::runtime_error("the dropped ids keep their sockets");
    must(ncclCommGetUniqueId(comms[0], &ids[0]));
    must(ncclCommGrow(comms[0], 3, &ids[1], -1, &made, nullptr), ncclInvalidArgument);
    said += ncclGetLastError(nullptr);
    ncclComm_t grown[3] = {};
    must(ncclGroupStart());
    for (int r = 0; r < 3; ++r) {
      const bool is_new = r == 2;
      must(ncclCommGrow(is_new ? nullptr : comms[static_cast<std::size_t>(r)], 3, is_new ? &ids[0] : nullptr,
                        is_new ? r : -1, &grown[r], nullptr));
    }
    must(ncclGroupEnd());
    for (const ncclComm_t comm : grown) must(ncclCommDestroy(comm));
    float sums[2] = {1, 2};
    must(ncclGroupStart());
    for (std::size_t r = 0; r < 2; ++r) {
      must(ncclAllReduce(&sums[r], &sums[r], 1, ncclFloat32, ncclSum, comms[r], nullptr));
    }
    must(ncclGroupEnd());
    if (sums[0] != 3) throw std::runtime_error("the sum is wrong");
    for (const ncclComm_t comm : comms) must(ncclCommDestroy(comm));
    return said;
  });
  EXPECT_EQ(outcome.error, "");
  EXPECT_THAT(outcome.said, HasSubstr("0 ranks have called ncclCommGetUniqueId; expected one"));
  EXPECT_THAT(outcome.said, HasSubstr("rank 1 wants 4 ranks and rank 0 3; expected the same nRanks"));
  EXPECT_THAT(outcome.said, HasSubstr("2 ranks have called ncclCommGetUniqueId"));
  EXPECT_THAT(outcome.said, HasSubstr("uniqueId is not the one that ncclCommGetUniqueId gave this rank"));
}

TEST(Grow, AnIdThatIsNotUsedEndsWithItsCommunicator) {
  const Outcome outcome = tutti::testing::in_child([]() -> std::string {
    const auto make_and_drop = [] {
      std::vector<ncclComm_t> comms(2);
      must(ncclCommInitAll(comms.data(), 2, nullptr));
      ncclUniqueId id;
      must(ncclCommGetUniqueId(comms[1], &id));
      must(ncclGroupStart());
      for (const ncclComm_t comm : comms) must(ncclCommSuspend(comm, kSuspendMemory));  // which makes one, too
      must(ncclGroupEnd());
      for (const ncclComm_t comm : comms) must(ncclCommDestroy(comm));
      return open_descriptors();
    };
    const int once = make_and_drop();
    const int twice = make_and_drop();
    if (once != twice) throw std::runtime_error(std::to_string(twice - once) + " descriptors are left");
    return {};
  });
  EXPECT_EQ(outcome.error, "");
}

TEST(Grow, ANewRankThatNeverComesLeavesTheOldOnesWhole) {
  const std::vector<Outcome> outcomes =
      on_processes(2,
                   [](int rank, Shared& shared) -> std::string {
                     ncclComm_t comm = made_of(2, rank, shared);
                     (void)id_to_grow_by(comm, rank, 1, shared);
                     ncclComm_t grown = nullptr;
                     must(ncclCommGrow(comm, 3, nullptr, -1, &grown, nullptr), ncclRemoteError);
                     if (grown != nullptr) throw std::runtime_error("a handle was left");
                     const std::string sentence = ncclGetLastError(nullptr);
                     sums_to(comm, rank, 3);
                     must(ncclCommDestroy(comm));
                     return sentence;
                   },
                   {{"TUTTI_TIMEOUT", "2s"}});
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_THAT(outcome.said, HasSubstr("ncclCommGrow: "));
  }
}

}  // namespace
}  // namespace tutti::nccl::testing::grow_test
