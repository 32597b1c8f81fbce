// ncclParam*: Tutti's options by NCCL's functions. In a child, whose environment sets some: this process itself does
// not use the library.
#include <gmock/gmock.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "tests/nccl/ranks.h"

namespace tutti::nccl::testing::parameters_test {
namespace {

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what + ": " + ncclGetLastError(nullptr));
}

ncclParamHandle_t bound(const char* key) {
  ncclParamHandle_t handle = nullptr;
  must(ncclParamBind(&handle, key));
  return handle;
}

std::string read_all_kinds() {
  const char* text = nullptr;
  int length = -1;
  must(ncclParamGetParameter("TUTTI_TIMEOUT", &text, &length));
  expect(std::string(text) == "7s" && length == 2, "a duration by its key");
  expect(bound("TUTTI_TIMEOUT") == bound("TUTTI_TIMEOUT"), "one handle for each");
  must(ncclParamGetStr(bound("TUTTI_SCRATCH"), &text));
  expect(std::string(text) == "3M", std::string("a size as text is ") + text);
  std::uint64_t wide = 0;
  must(ncclParamGetU64(bound("TUTTI_SCRATCH"), &wide));
  expect(wide == 3 << 20, "a size");
  std::int16_t narrow = 0;
  must(ncclParamGetI16(bound("TUTTI_MASTER_PORT"), &narrow));
  expect(narrow == 300, "a number");
  std::uint8_t byte = 0;
  must(ncclParamGetU8(bound("TUTTI_DETERMINISTIC"), &byte));
  expect(byte == 1, "a flag");
  char memory[8] = {};
  must(ncclParamGet(bound("TUTTI_DETERMINISTIC"), memory, sizeof memory, &length));
  expect(length == 1 && memory[0] == 1, "a flag's memory");
  must(ncclParamGet(bound("TUTTI_SCRATCH"), memory, sizeof memory, &length));
  std::memcpy(&wide, memory, sizeof wide);
  expect(length == 8 && wide == 3 << 20, "a size's memory");
  must(ncclParamGet(bound("TUTTI_TIMEOUT"), memory, sizeof memory, &length));
  expect(length == 3 && std::string(memory) == "7s", "a duration's memory");
  return {};
}

std::string list_all() {
  const char** keys = nullptr;
  int count = 0;
  must(ncclParamGetAllParameterKeys(&keys, &count));
  ::testing::internal::CaptureStdout();
  ncclParamDumpAll();
  const std::string dump = ::testing::internal::GetCapturedStdout();
  for (int i = 0; i < count; ++i) {
    const char* value = nullptr;
    must(ncclParamGetParameter(keys[i], &value, nullptr));
    expect(dump.find(std::string(keys[i]) + " (") != std::string::npos, std::string("the dump lacks ") + keys[i]);
  }
  return std::to_string(count) + "\n" + dump;
}

std::string mistakes() {
  std::string said;
  const auto refused = [&](ncclResult_t result) {
    must(result, ncclInvalidArgument);
    said += ncclGetLastError(nullptr) + std::string("\n");
  };
  ncclParamHandle_t handle = nullptr;
  const char* text = "";
  int length = -1;
  std::int8_t small = 0;
  refused(ncclParamBind(&handle, "NCCL_DEBUG"));
  refused(ncclParamBind(nullptr, "TUTTI_LOG"));
  refused(ncclParamBind(&handle, nullptr));
  refused(ncclParamGetParameter("tutti_log", &text, &length));
  expect(text == nullptr && length == 0, "an unknown key leaves nothing");
  refused(ncclParamGetI8(bound("TUTTI_MASTER_PORT"), &small));
  refused(ncclParamGetI8(bound("TUTTI_TIMEOUT"), &small));
  refused(ncclParamGetI8(nullptr, &small));
  refused(ncclParamGetI8(reinterpret_cast<ncclParamHandle_t>(&small), &small));
  refused(ncclParamGetI8(bound("TUTTI_SPIN"), nullptr));
  char memory[4];
  refused(ncclParamGet(bound("TUTTI_SCRATCH"), memory, sizeof memory, &length));
  expect(length == 0, "nothing is written where there is no room");
  refused(ncclParamGetAllParameterKeys(nullptr, &length));
  return said;
}

const Environment kEnvironment = {{"TUTTI_TIMEOUT", "7s"},
                                  {"TUTTI_SCRATCH", "3M"},
                                  {"TUTTI_MASTER_PORT", "300"},
                                  {"TUTTI_DETERMINISTIC", "1"},
                                  {"TUTTI_SECRET", "sesame"}};

TEST(Parameters, AreTuttisOptions) { EXPECT_EQ(tutti::testing::in_child(read_all_kinds, kEnvironment).error, ""); }

TEST(Parameters, AreListed) {
  const Outcome outcome = tutti::testing::in_child(list_all, kEnvironment);
  EXPECT_EQ(outcome.error, "");
  EXPECT_GT(std::atoi(outcome.said.c_str()), 20);
  EXPECT_THAT(outcome.said, HasSubstr("TUTTI_TIMEOUT (duration): '7s' (default '300s')"));
  EXPECT_THAT(outcome.said, ::testing::Not(HasSubstr("sesame")));
}

TEST(Parameters, MistakesAreNamed) {
  const Outcome outcome = tutti::testing::in_child(mistakes, kEnvironment);
  EXPECT_EQ(outcome.error, "");
  EXPECT_THAT(outcome.said, HasSubstr("ncclParamBind: this library has no parameter NCCL_DEBUG; expected one that"));
  EXPECT_THAT(outcome.said, HasSubstr("TUTTI_MASTER_PORT is integer ('300'), and that is no number of this type"));
  EXPECT_THAT(outcome.said, HasSubstr("ncclParamGetI8: h is no handle"));
  EXPECT_THAT(outcome.said, HasSubstr("ncclParamGet: maxLen is 4; expected at least 8"));
}

}  // namespace
}  // namespace tutti::nccl::testing::parameters_test
