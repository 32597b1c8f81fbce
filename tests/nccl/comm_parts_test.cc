// The parts of a Comm by themselves: user operators, registrations, and what is under way.
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "nccl/comm_parts.h"
#include "nccl/progress.h"

namespace tutti::nccl::testing::comm_parts_test {
namespace {

TEST(UserOperators, AreToldFromAnotherCommunicators) {
  UserOperators mine;
  UserOperators other;
  const ncclRedOp_t op = mine.add({DataType::f32, 2.0, nullptr}).value();
  EXPECT_EQ(other.add({DataType::f32, 3.0, nullptr}).value() % UserOperators::kMost, op % UserOperators::kMost);
  ASSERT_TRUE(mine.find(op));
  EXPECT_EQ(mine.find(op)->factor, 2.0);
  EXPECT_FALSE(other.find(op));
  EXPECT_FALSE(other.remove(op));
  EXPECT_FALSE(mine.find(ncclSum));
}

TEST(UserOperators, AreLimitedAndTheirNumbersUsedAgain) {
  UserOperators operators;
  const ncclRedOp_t first = operators.add({}).value();
  for (unsigned i = 1; i < UserOperators::kMost; ++i) ASSERT_TRUE(operators.add({}));
  EXPECT_FALSE(operators.add({}));
  EXPECT_TRUE(operators.remove(first));
  EXPECT_FALSE(operators.remove(first));
  EXPECT_EQ(operators.add({}), first);
}

TEST(Registrations, AreNeverGivenTwice) {
  Registrations registrations;
  void* const first = registrations.add();
  EXPECT_NE(first, nullptr);
  EXPECT_TRUE(registrations.remove(first));
  EXPECT_FALSE(registrations.remove(first));
  EXPECT_NE(registrations.add(), first);
}

TEST(Progress, TheFirstFailureStays) {
  Progress progress;
  EXPECT_EQ(progress.state().result, ncclInProgress);
  progress.end({});
  EXPECT_TRUE(progress.state().ok());
  progress.note({ncclInvalidUsage, "does not finish it"});
  EXPECT_TRUE(progress.state().ok());
  progress.note({ncclRemoteError, "first", true});
  progress.begin();
  progress.end({ncclInternalError, "second"});
  EXPECT_EQ(progress.state().text, "first");
}

TEST(Progress, ARevocationWaitsForCallsAndLeavesNoFailure) {
  Progress progress;
  progress.end({ncclRemoteError, "before"});
  std::optional<Progress::Caller> caller(progress);
  progress.begin();
  progress.revoke();
  std::thread call([&] {
    progress.end({ncclRemoteError, "by the revocation"});
    caller.reset();
  });
  progress.wait_revoked();
  EXPECT_TRUE(progress.state().ok());
  call.join();
}

}  // namespace
}  // namespace tutti::nccl::testing::comm_parts_test
