// Plans as text, to be read and to notice when an algorithm changes:
// tests/plan/golden/<collective>_<algorithm>_<ranks>.txt. TUTTI_WRITE_GOLDEN=1 writes the files anew; look at the
// difference before you keep it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "collectives/algorithms/table.h"

namespace tutti::plan::golden_test {
namespace {

std::filesystem::path golden_folder() { return TUTTI_GOLDEN_PLANS; }

class Golden : public ::testing::TestWithParam<const algorithms::Algorithm*> {};

std::vector<const algorithms::Algorithm*> rows() {
  std::vector<const algorithms::Algorithm*> rows;
  for (const algorithms::Algorithm& algorithm : algorithms::table()) rows.push_back(&algorithm);
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Table, Golden, ::testing::ValuesIn(rows()), [](const auto& info) {
  return std::string(name_of(info.param->collective)) + "_" + info.param->name;
});

TEST_P(Golden, ThePlanIsTheOneOnFile) {
  const algorithms::Algorithm& algorithm = *GetParam();
  algorithms::PlanRequest request{algorithm.collective, 3};
  if (algorithm.uses_hosts) request = {algorithm.collective, 5, 0, {0, 0, 1, 1, 1}};
  const std::string name =
      std::string(name_of(algorithm.collective)) + "_" + algorithm.name + "_" + std::to_string(request.ranks) + ".txt";
  const std::string text = print(algorithm.build(request));
  const std::filesystem::path path = golden_folder() / name;
  if (std::getenv("TUTTI_WRITE_GOLDEN") != nullptr) {
    std::ofstream(path) << text;
    return;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << " is missing; TUTTI_WRITE_GOLDEN=1 writes it";
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(text, golden.str());
  const Result<Plan> parsed = parse(golden.str());
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
}

}  // namespace
}  // namespace tutti::plan::golden_test
