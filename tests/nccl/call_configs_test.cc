// The nccl...Config forms of the collectives: what they do, and what becomes of a selection of algorithms. In children,
// which print what ran: this process itself does not use the library.
#include <gmock/gmock.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "nccl/call_config.h"
#include "tests/nccl/ranks.h"

namespace tutti::nccl::testing::call_configs_test {
namespace {

/// Returns the explanation of two ranks' calls of a 4 KiB all-reduce by `config`, or the failure's sentence.
Outcome explained(const std::function<void(ncclCollConfig_t&)>& change, const Environment& more = {}) {
  Environment environment = {{"TUTTI_EXPLAIN", "1"}, {"TUTTI_TIMEOUT", "60s"}};
  environment.insert(more.begin(), more.end());
  return tutti::testing::in_child(
      [&] {
        std::vector<ncclComm_t> comms(2);
        must(ncclCommInitAll(comms.data(), 2, nullptr));
        ncclCollConfig_t config = new_call_config();
        change(config);
        std::vector<float> data(2048, 1.0F);
        ::testing::internal::CaptureStderr();
        must(ncclGroupStart());
        for (std::size_t r = 0; r < 2; ++r) {
          must(ncclAllReduceConfig(&data[r * 1024], &data[r * 1024], 1024, ncclFloat32, ncclSum, comms[r], nullptr,
                                   &config));
        }
        must(ncclGroupEnd());
        if (data[0] != 2 || data[2047] != 2) throw std::runtime_error("the sum is wrong");
        return ::testing::internal::GetCapturedStderr();
      },
      environment);
}

Outcome selected(const char* names, int force = 1) {
  return explained([&](ncclCollConfig_t& config) { config.algSelection = names, config.forceAlgSelection = force; });
}

TEST(CallConfigs, ASelectionIsKept) {
  EXPECT_THAT(selected("ring").said, HasSubstr("by ring,"));
  EXPECT_THAT(selected("TREE").said, HasSubstr("by double_binary_tree,"));
  EXPECT_THAT(selected(" Ring_LL128 ").said, HasSubstr("by ring,"));
  EXPECT_THAT(selected("two_shot").said, HasSubstr("by two_shot,"));
  EXPECT_THAT(selected("nvls,,halving_doubling,ring").said, HasSubstr("by halving_doubling,"));
  const Outcome free = selected("");
  EXPECT_EQ(free.error, "");
  EXPECT_THAT(free.said, ::testing::Not(HasSubstr("asked for by name")));
}

TEST(CallConfigs, ASelectionThatCannotBeIsAnErrorOrLeftAlone) {
  EXPECT_THAT(selected("nvls").error, AllOf(HasSubstr("result 4"), HasSubstr("ncclAllReduceConfig"),
                                            HasSubstr("all_reduce has no algorithm 'nvls'")));
  EXPECT_THAT(selected("_LL").error, HasSubstr("all_reduce has no algorithm '_ll'"));
  EXPECT_THAT(selected("ring,^ring_ll").error,
              AllOf(HasSubstr("result 4"), HasSubstr("algSelection is 'ring,^ring_ll'"), HasSubstr("a list of names")));
  for (const char* names : {"nvls", "_LL,auto", "^ring", "ring+tree"}) {
    const Outcome outcome = selected(names, 0);
    EXPECT_EQ(outcome.error, "") << names;
    EXPECT_THAT(outcome.said, ::testing::Not(HasSubstr("asked for by name"))) << names;
  }
  EXPECT_THAT(selected("nvls,ring", 0).said, HasSubstr("by ring,"));
}

TEST(CallConfigs, OurOwnExtensionAsksForDeterminism) {
  ncclConfigExt_t other{};
  other.key = {1, 99};
  ncclConfigExt_t ours{&other, {kVendor, kDeterministic}, {}};
  ours.val.i = 1;
  // ring does not add in rank order, and so cannot serve it.
  const Outcome outcome =
      explained([&](ncclCollConfig_t& config) { config.ext = &ours, config.algSelection = "ring"; });
  EXPECT_THAT(outcome.error, HasSubstr("does not add in rank order, as deterministic mode demands"));
  ours.val.i = 0;
  EXPECT_EQ(explained([&](ncclCollConfig_t& config) { config.ext = &ours, config.algSelection = "ring"; }).error, "");
  ours.key.optionId = 2;
  EXPECT_THAT(explained([&](ncclCollConfig_t& config) { config.ext = &ours; }).error,
              HasSubstr("config.ext has option 2 of this library"));
}

TEST(CallConfigs, WhatIsWrongIsNamed) {
  const auto error = [](const std::function<void(ncclCollConfig_t&)>& change) { return explained(change).error; };
  EXPECT_THAT(error([](ncclCollConfig_t& c) { c.magic = 1; }), HasSubstr("NCCL_COLLCONFIG_INITIALIZER"));
  EXPECT_THAT(error([](ncclCollConfig_t& c) { c.size = 56; }), HasSubstr("its size 56"));
  EXPECT_THAT(error([](ncclCollConfig_t& c) { c.forceAlgSelection = 2; }), HasSubstr("forceAlgSelection is 2"));
  EXPECT_THAT(error([](ncclCollConfig_t& c) { c.CTAPolicy = 4; }), HasSubstr("CTAPolicy is 4; expected 0 to 3"));
  EXPECT_THAT(error([](ncclCollConfig_t& c) { c.launchCompletionEvent = reinterpret_cast<cudaEvent_t>(8); }),
              AllOf(HasSubstr("result 5"), HasSubstr("launchCompletionEvent is set")));
  // 2.31's struct ended before the event. Hints may be anything.
  EXPECT_EQ(error([](ncclCollConfig_t& c) {
              c.size = offsetof(ncclCollConfig_t, launchCompletionEvent);
              c.launchCompletionEvent = reinterpret_cast<cudaEvent_t>(8);
            }),
            "");
  EXPECT_EQ(error([](ncclCollConfig_t& c) {
              c.size += 64, c.version = 99999, c.minCTAs = 4, c.maxCTAs = 2, c.nvlsCTAs = -4, c.cgaClusterSize = 100;
              c.CTAPolicy = 2, c.userProfilerTag = ~std::uint64_t{0};
            }),
            "");
}

TEST(CallConfigs, RanksThatSelectDifferentlyAreToldSo) {
  const Outcome outcome = tutti::testing::in_child([] {
    std::vector<ncclComm_t> comms(2);
    must(ncclCommInitAll(comms.data(), 2, nullptr));
    float x[2] = {1, 1};
    ncclCollConfig_t configs[2] = {new_call_config(), new_call_config()};
    configs[1].algSelection = "ring";
    must(ncclGroupStart());
    for (std::size_t r = 0; r < 2; ++r) {
      must(ncclAllReduceConfig(&x[r], &x[r], 1, ncclFloat32, ncclSum, comms[r], nullptr, &configs[r]));
    }
    must(ncclGroupEnd(), ncclInvalidUsage);
    return std::string(ncclGetLastError(nullptr));
  });
  EXPECT_EQ(outcome.error, "");
  EXPECT_THAT(outcome.said, HasSubstr("all_reduce(1 x f32"));
}

}  // namespace
}  // namespace tutti::nccl::testing::call_configs_test
