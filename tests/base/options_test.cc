// Options, the values they are written in, and the lines of the log.
#include "base/options.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <random>
#include <set>
#include <string>

#include "base/log.h"
#include "base/parse.h"

namespace tutti::options_test {
namespace {

using namespace std::chrono_literals;
using options::Values;

Values values_of(const std::map<std::string, std::string>& environment) {
  return Values([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

TEST(Parse, Bytes) {
  EXPECT_EQ(parse_bytes("0").value(), 0u);
  EXPECT_EQ(parse_bytes("512").value(), 512u);
  EXPECT_EQ(parse_bytes("4K").value(), 4096u);
  EXPECT_EQ(parse_bytes("4kib").value(), 4096u);
  EXPECT_EQ(parse_bytes(" 2 MB ").value(), 2u << 20);
  EXPECT_EQ(parse_bytes("1.5G").value(), 3u << 29);
  EXPECT_EQ(parse_bytes("9007199254740993").value(), 9007199254740993u);  // 2^53 + 1: no detour through double
  for (const char* bad : {"", " ", "K", "-1", "1.5", "4X", "4KK", "1e3", "nan", "inf", "0x10", "18446744073709551615",
                          "99999999T", "1..5K", "4K4"}) {
    EXPECT_FALSE(parse_bytes(bad).ok()) << bad;
  }
}

TEST(Parse, Duration) {
  EXPECT_EQ(parse_duration("300").value(), 300s);
  EXPECT_EQ(parse_duration("300s").value(), 300s);
  EXPECT_EQ(parse_duration("1.5ms").value(), 1500us);
  EXPECT_EQ(parse_duration("100 us").value(), 100us);
  EXPECT_EQ(parse_duration("5min").value(), 300s);
  EXPECT_EQ(parse_duration("2h").value(), 7200s);
  EXPECT_EQ(parse_duration("0").value(), 0s);
  for (const char* bad : {"", "s", "-1s", "1d", "1e99", "99999999999h", "1s1", "inf"}) {
    EXPECT_FALSE(parse_duration(bad).ok()) << bad;
  }
}

TEST(Parse, IntegerAndFlag) {
  EXPECT_EQ(parse_integer("-7").value(), -7);
  EXPECT_FALSE(parse_integer("7x").ok());
  EXPECT_FALSE(parse_integer("").ok());
  EXPECT_FALSE(parse_integer("99999999999999999999").ok());
  EXPECT_TRUE(parse_flag("Yes").value());
  EXPECT_FALSE(parse_flag("off").value());
  EXPECT_FALSE(parse_flag("2").ok());
}

TEST(Parse, PrintedValuesParseBack) {
  const unsigned seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (int i = 0; i < 10000; ++i) {
    const std::uint64_t bytes = (random() >> (1 + random() % 63)) << (random() % 4 * 10) & (~0ULL >> 12);
    ASSERT_EQ(parse_bytes(print_bytes(bytes)).value(), bytes) << "seed " << seed;
    // Durations pass through a double, which holds whole numbers up to 2^53 exactly.
    const std::chrono::nanoseconds duration(static_cast<std::int64_t>(random() >> (11 + random() % 53)));
    ASSERT_EQ(parse_duration(print_duration(duration)).value(), duration) << "seed " << seed;
  }
  EXPECT_EQ(print_bytes(4 << 20), "4M");
  EXPECT_EQ(print_duration(300s), "300s");
  EXPECT_EQ(print_duration(100us), "100us");
}

TEST(Parse, QuotedTextIsHarmless) {
  EXPECT_EQ(quote("a\nb\x1b[31m"), "'a?b?[31m'");
  EXPECT_LT(quote(std::string(100000, 'x')).size(), 100u);
}

TEST(Options, OldNamesAreReadWithAWarning) {
  const Values old = values_of({{"TUTTI_HOST", "a"}, {"TUTTI_BASELINES", "/b"}});
  EXPECT_EQ(old.text(Option::host_id), "a");
  EXPECT_EQ(old.text(Option::baseline_path), "/b");
  ASSERT_EQ(old.warnings().size(), 2u);
  EXPECT_EQ(old.warnings()[1], "TUTTI_HOST is now TUTTI_HOST_ID; the old name is read until 0.3");
  const Values both = values_of({{"TUTTI_HOST", "a"}, {"TUTTI_HOST_ID", "b"}});
  EXPECT_EQ(both.text(Option::host_id), "b");
  EXPECT_TRUE(both.warnings().empty());
}

TEST(Options, DefaultsAreInForceInAnEmptyEnvironment) {
  const Values values = values_of({});
  EXPECT_TRUE(values.check().ok());
  EXPECT_EQ(values.duration(Option::timeout), 300s);
  EXPECT_EQ(values.duration(Option::spin), 100us);
  EXPECT_EQ(values.bytes(Option::scratch), 2u << 20);
  EXPECT_EQ(values.integer(Option::master_port), 0);
  EXPECT_FALSE(values.flag(Option::deterministic));
  EXPECT_EQ(values.text(Option::backend), "tutti");
  EXPECT_EQ(values.text(Option::algorithm), "");
}

TEST(Options, TheEnvironmentOverrides) {
  const Values values = values_of({{"TUTTI_TIMEOUT", "2s"}, {"TUTTI_CROSS_MEMORY", "off"}, {"TUTTI_LOG", ""}});
  EXPECT_TRUE(values.check().ok());
  EXPECT_EQ(values.duration(Option::timeout), 2s);
  EXPECT_EQ(values.text(Option::cross_memory), "off");
}

TEST(Options, BadValueIsNamedAndLeavesTheDefault) {
  const Values values = values_of({{"TUTTI_TIMEOUT", "soon"}});
  EXPECT_EQ(values.check().code(), Code::invalid_argument);
  EXPECT_EQ(values.check().message(),
            "TUTTI_TIMEOUT: 'soon' is not a duration; expected a number with ns, us, ms, s, min or h, as in 300s");
  EXPECT_EQ(values.duration(Option::timeout), 300s);
  EXPECT_EQ(values_of({{"TUTTI_BACKEND", "ucc"}}).check().message(),
            "TUTTI_BACKEND: 'ucc' is not one of tutti|openmpi|mpich|gloo|nccl");
}

TEST(Options, EveryRowIsCompleteAndItsDefaultIsItsValue) {
  std::set<std::string> names;
  for (const options::Row& row : values_of({}).all()) {
    EXPECT_EQ(row.name.rfind("TUTTI_", 0), 0u);
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " is there twice";
    EXPECT_FALSE(row.help.empty()) << row.name;
    EXPECT_EQ(row.value, row.default_value) << row.name;
    EXPECT_FALSE(row.changed) << row.name;
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kOptions));
}

TEST(Options, TheSecretIsNotPrinted) {
  const Values values = values_of({{"TUTTI_SECRET", "opensesame"}});
  EXPECT_EQ(values.text(Option::secret), "opensesame");
  for (const options::Row& row : values.all()) EXPECT_EQ(row.value.find("opensesame"), std::string::npos);
}

TEST(Log, OneLineWhateverIsInTheMessage) {
  EXPECT_EQ(log::line(3, "alpha", "a\nb\tc"), "tutti: rank 3 alpha: a b c\n");
  EXPECT_EQ(log::line(-1, "alpha", "hello"), "tutti: alpha: hello\n");
}

TEST(Log, QuietByDefault) {
  if (options::text(Option::log) != "") GTEST_SKIP() << "TUTTI_LOG is set";
  ::testing::internal::CaptureStderr();
  log::info("not {}", "shown");
  log::debug("not {}", "shown");
  log::error("{} is {}", "this", "shown");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("not shown"), std::string::npos);
  EXPECT_NE(text.find("this is shown\n"), std::string::npos);
}

}  // namespace
}  // namespace tutti::options_test
