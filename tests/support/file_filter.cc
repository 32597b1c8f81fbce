#include "tests/support/file_filter.h"

#include <fnmatch.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <sstream>
#include <string_view>

namespace tutti::testing {

namespace {

bool matches_any(const std::string& patterns, const std::string& name) {
  std::istringstream list(patterns);
  for (std::string pattern; std::getline(list, pattern, ':');) {
    if (::fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return true;
  }
  return false;
}

/// GoogleTest's own rule: what is to run, then '-' and what is not, each a list of patterns.
bool passes(const std::string& filter, const std::string& name) {
  const std::size_t dash = filter.find('-');
  const std::string wanted = filter.substr(0, dash);
  const std::string unwanted = dash == std::string::npos ? "" : filter.substr(dash + 1);
  return (wanted.empty() || matches_any(wanted, name)) && !matches_any(unwanted, name);
}

}  // namespace

std::string narrow_to_file(int argc, char** argv) {
  constexpr std::string_view kFile = "--file=";
  if (argc < 2) return {};
  const std::string_view argument = argv[1];
  if (argc > 2 || !argument.starts_with(kFile)) {
    return "'" + std::string(argv[argc - 1]) + "' is not an argument of a test; expected --file=NAME or GoogleTest's";
  }
  const std::string file = std::string(argument.substr(kFile.size())) + "_test.cc";
  const std::string given = GTEST_FLAG_GET(filter);
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  std::string filter;
  bool exists = false;
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int k = 0; k < suite.total_test_count(); ++k) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(k);
      if (std::filesystem::path(test.file()).filename() != file) continue;
      exists = true;
      const std::string name = std::string(suite.name()) + "." + test.name();
      if (passes(given, name)) filter += name + ":";
    }
  }
  if (!exists) return "no test of this program is in " + file;
  GTEST_FLAG_SET(filter, filter.empty() ? "-*" : filter);
  return {};
}

}  // namespace tutti::testing
