#include "collectives/job/settings.h"

#include <gmock/gmock.h>

#include <barrier>
#include <cstddef>
#include <thread>

namespace tutti::settings_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Returns what compare_settings() says on each of these ranks, as threads.
std::vector<Status> compared(const std::vector<std::vector<Setting>>& of_rank, int* exchanges = nullptr) {
  const std::size_t n = of_rank.size();
  std::vector<std::uint64_t> values(n);
  std::barrier<> all(static_cast<std::ptrdiff_t>(n));
  std::vector<Status> said(n);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      said[rank] = compare_settings(of_rank[rank], [&](const Words& mine) -> Result<Words> {
        if (rank == 0 && exchanges != nullptr) ++*exchanges;
        values[rank] = mine[0];
        all.arrive_and_wait();
        Words copy = values;
        all.arrive_and_wait();
        return copy;
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return said;
}

std::vector<Setting> numbered(int count) {
  std::vector<Setting> settings;
  for (int i = 0; i < count; ++i) settings.push_back({"OPTION" + std::to_string(i), "value " + std::to_string(i)});
  return settings;
}

TEST(Settings, EqualOnesTakeOneExchange) {
  int exchanges = 0;
  for (const Status& status : compared({numbered(5), numbered(5), numbered(5)}, &exchanges)) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
  EXPECT_EQ(exchanges, 1);
}

TEST(Settings, TheFirstDifferenceIsFoundWhereverItIs) {
  for (const int count : {1, 2, 3, 7, 8, 9, 33}) {
    for (int place = 0; place < count; ++place) {
      std::vector<std::vector<Setting>> of_rank(3, numbered(count));
      of_rank[2][static_cast<std::size_t>(place)].value = "another";
      const std::vector<Status> said = compared(of_rank);
      const std::string option = "another OPTION" + std::to_string(place) + " than";
      EXPECT_THAT(said[0].message(), AllOf(HasSubstr("rank 2 was started with " + option),
                                           HasSubstr("'value " + std::to_string(place) + "'")));
      EXPECT_EQ(said[1].message(), said[0].message());
      EXPECT_THAT(said[2].message(), AllOf(HasSubstr(option), HasSubstr("'another'")));
      EXPECT_EQ(said[2].code(), Code::mismatch);
    }
  }
}

TEST(Settings, AShorterListEndsEarlier) {
  std::vector<std::vector<Setting>> of_rank(2, numbered(3));
  of_rank[0].push_back({"END", "nothing more"});
  of_rank[1].push_back({"MORE", "hosts/0 = 1"});
  of_rank[1].push_back({"END", "nothing more"});
  const std::vector<Status> said = compared(of_rank);
  EXPECT_THAT(said[0].message(), HasSubstr("'nothing more'"));
  EXPECT_THAT(said[1].message(), HasSubstr("'hosts/0 = 1'"));
}

}  // namespace
}  // namespace tutti::settings_test
