// The flight recorder: the last 256 calls of every rank, as text and JSON, on failure and on a signal; a dead rank's
// too.
#include <gmock/gmock.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/failure/processes.h"

namespace tutti::testing::flight_recorder_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

void sum(Communicator& comm, std::size_t count) {
  std::vector<float> data(count);
  comm.all_reduce(data.data(), data.data(), count, DataType::f32);
}

// For the files of one test; gone with it.
class Folder {
 public:
  Folder() {
    std::string pattern = ::testing::TempDir() + "tutti_flight_recorder_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(folder_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

 private:
  std::string folder_;
};

TEST(FlightRecorder, KeepsTheLast256Calls) {
  Processes ranks(2, [](const Place& place) {
    Communicator comm = place.join(with_timeout(60s));
    for (std::size_t i = 1; i <= 300; ++i) sum(comm, i);
    place.step();
    if (!eventually(30s, [&] { return place.progress_of(1 - place.rank()) == 1; })) place.give_up("alone");
    place.note(place.rank() == 0 ? comm.flight_recorder_json() : comm.flight_recorder_text());
  });
  ASSERT_TRUE(ranks.finish());
  const auto json = nlohmann::json::parse(ranks.slot(0).notes);
  ASSERT_EQ(json["ranks"].size(), 2u);
  for (int r = 0; r < 2; ++r) {
    const auto& rank = json["ranks"][static_cast<std::size_t>(r)];
    EXPECT_EQ(rank["rank"], r);
    EXPECT_THAT(rank["name"].get<std::string>(), HasSubstr("rank " + std::to_string(r)));
    const auto& calls = rank["calls"];
    ASSERT_EQ(calls.size(), 256u);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const std::size_t number = 300 - 256 + 1 + i;
      EXPECT_EQ(calls[i]["sequence"], number);
      EXPECT_EQ(calls[i]["call"], "all_reduce(" + std::to_string(number) + " x f32, sum)");
      EXPECT_EQ(calls[i]["collective"], "all_reduce");
      EXPECT_EQ(calls[i]["count"], number);
      EXPECT_EQ(calls[i]["bytes"], 4 * number);
      EXPECT_EQ(calls[i]["state"], "done");
      EXPECT_NE(calls[i]["algorithm"], "-");
      EXPECT_GE(calls[i]["microseconds"].get<double>(), 0);
      EXPECT_GE(calls[i]["seconds_ago"].get<double>(), 0);
    }
  }
  const std::string text = ranks.slot(1).notes;
  EXPECT_THAT(text, HasSubstr("all_reduce(300 x f32, sum)"));
  EXPECT_THAT(text, HasSubstr("all_reduce(45 x f32, sum)"));
  EXPECT_THAT(text, Not(HasSubstr("all_reduce(44 x f32, sum)")));
}

// Sends and receives are calls too: one by one, or as a group.
TEST(FlightRecorder, KeepsSendsAndReceives) {
  Processes ranks(2, [](const Place& place) {
    Communicator comm = place.join(with_timeout(60s));
    std::vector<float> data(20);
    sum(comm, 11);
    if (place.rank() == 0) comm.send(data.data(), 7, DataType::f32, 1);
    if (place.rank() == 1) comm.recv(data.data(), 7, DataType::f32, 0);
    comm.group_start();
    comm.send(data.data(), 5, DataType::f32, 1 - place.rank());
    comm.recv(data.data() + 10, 5, DataType::f32, 1 - place.rank());
    comm.group_end();
    comm.barrier();
    if (place.rank() == 0) place.note(comm.flight_recorder_json());
    comm.barrier();
  });
  ASSERT_TRUE(ranks.finish());
  const auto json = nlohmann::json::parse(ranks.slot(0).notes);
  for (std::size_t r = 0; r < 2; ++r) {
    const auto& calls = json["ranks"][r]["calls"];
    ASSERT_GE(calls.size(), 4u);  // and perhaps the last barrier
    EXPECT_EQ(calls[0]["call"], "all_reduce(11 x f32, sum)");
    EXPECT_EQ(calls[1]["call"], r == 0 ? "send(7 x f32) to rank 1" : "recv(7 x f32) from rank 0");
    EXPECT_EQ(calls[1]["bytes"], 28);
    EXPECT_EQ(calls[2]["call"], "2 sends and receives");
    EXPECT_EQ(calls[2]["bytes"], 40);
    EXPECT_EQ(calls[2]["state"], "done");
    EXPECT_EQ(calls[3]["call"], "barrier()");
  }
}

// Each rank says its own failure once, with its own name and its last calls.
TEST(FlightRecorder, IsPrintedOnFailure) {
  Processes ranks(2, [](const Place& place) {
    Communicator comm = place.join(with_timeout(60s));
    sum(comm, 11);
    sum(comm, 22);
    place.step();
    if (place.rank() == 1) {
      if (!eventually(30s, [&] { return place.progress_of(0) == 1; })) place.give_up("alone");
      comm.abort("for the record");
    }
    while (!place.fails([&] { sum(comm, 33); })) {
    }
    place.fails([&] { sum(comm, 44); });
  });
  ASSERT_TRUE(ranks.finish());
  const std::string output = ranks.output(0);
  EXPECT_THAT(output, HasSubstr(": aborted: " + ranks.name(1) + " aborted the communicator: for the record\n"));
  EXPECT_THAT(output, HasSubstr("tutti: rank 0 "));
  EXPECT_THAT(output, HasSubstr("last calls of " + ranks.name(0)));
  EXPECT_THAT(output, HasSubstr("all_reduce(22 x f32, sum)"));
  EXPECT_EQ(output.find("aborted the communicator"), output.rfind("aborted the communicator")) << "said more than once";
}

// Lines of ranks that are threads name the rank, not the process's.
TEST(FlightRecorder, NamesRanksThatAreThreads) {
  Processes one(1, [](const Place& place) {
    std::vector<Communicator> all = Communicator::in_process(3);
    all[0].abort("threads");
    for (int r = 2; r >= 1; --r) place.fails([&] { sum(all[static_cast<std::size_t>(r)], 1); });
  });
  ASSERT_TRUE(one.finish());
  EXPECT_THAT(one.output(0), HasSubstr("tutti: rank 1 "));
  EXPECT_THAT(one.output(0), HasSubstr("tutti: rank 2 "));
}

// What a rank did before it died is still there for the others.
TEST(FlightRecorder, ShowsTheLastCallsOfTheDead) {
  Processes ranks(3, [](const Place& place) {
    Communicator comm = place.join(with_timeout(60s));
    sum(comm, 11);
    sum(comm, 22);
    place.step();
    if (place.rank() == 2) place.wait_for_go();  // until killed
    place.fails([&] { sum(comm, 33); });
    place.note(comm.flight_recorder_text());
  });
  // A rank that were still in the second call would fail in that one.
  for (int r = 0; r < 3; ++r) ASSERT_TRUE(ranks.wait_progress(r, 1));
  ranks.signal(2, SIGKILL);
  ASSERT_TRUE(ranks.finish(30s, {2}));
  for (int r = 0; r < 2; ++r) {
    const std::string text = ranks.slot(r).notes;
    const std::size_t dead = text.find(ranks.name(2));
    ASSERT_NE(dead, std::string::npos) << text;
    EXPECT_THAT(text.substr(dead), HasSubstr("all_reduce(11 x f32, sum)"));
    EXPECT_THAT(text.substr(dead), HasSubstr("all_reduce(22 x f32, sum)"));
    EXPECT_THAT(text.substr(dead), Not(HasSubstr("all_reduce(33 x f32, sum)")));
    EXPECT_THAT(text.substr(0, dead), HasSubstr("all_reduce(33 x f32, sum)"));
  }
}

// On demand, also while the rank is stuck in a call: a signal prints all ranks' calls.
TEST(FlightRecorder, IsPrintedOnASignal) {
  const Folder folder;
  const std::string path = folder.path("flight");
  Processes ranks(2,
                  [](const Place& place) {
                    Communicator comm = place.join(with_timeout(60s));
                    sum(comm, 11);
                    place.step();
                    if (place.rank() == 1) place.wait_for_go();
                    sum(comm, 22);
                  },
                  {{"TUTTI_FLIGHT_SIGNAL", std::to_string(SIGUSR2)}, {"TUTTI_FLIGHT_RECORDER", path}});
  ASSERT_TRUE(ranks.wait_progress(0, 1));
  ASSERT_TRUE(ranks.wait_progress(1, 1));
  // Until it is inside its second call: only then does the text show it running.
  ASSERT_TRUE(eventually(30s, [&] {
    ranks.signal(0, SIGUSR2);
    return ranks.output(0).find("all_reduce(22 x f32, sum)") != std::string::npos;
  }));
  ranks.go();
  ASSERT_TRUE(ranks.finish());
  const std::string output = ranks.output(0);
  EXPECT_THAT(output, HasSubstr(ranks.name(0)));
  EXPECT_THAT(output, HasSubstr(ranks.name(1)));
  EXPECT_THAT(output, HasSubstr("running"));
  EXPECT_EQ(ranks.slot(0).failures, 0);
  // The same as a file, which may have been written a moment later.
  const std::string file = path + ".rank0.json";
  ASSERT_TRUE(eventually(30s, [&] {
    std::ifstream in(file);
    const auto json = nlohmann::json::parse(in, nullptr, false);
    return !json.is_discarded() && json["ranks"].size() == 2;
  }));
}

// TUTTI_FLIGHT_RECORDER: all calls of all ranks as a file, when something fails.
TEST(FlightRecorder, IsWrittenToAFile) {
  const Folder folder;
  const std::string path = folder.path("flight");
  {
    Processes ranks(2,
                    [](const Place& place) {
                      Communicator comm = place.join(with_timeout(60s));
                      sum(comm, 11);
                      place.step();
                      if (place.rank() == 1) {
                        if (!eventually(30s, [&] { return place.progress_of(0) == 1; })) place.give_up("alone");
                        comm.abort("for the file");
                      }
                      while (!place.fails([&] { sum(comm, 33); })) {
                      }
                    },
                    {{"TUTTI_FLIGHT_RECORDER", path}});
    ASSERT_TRUE(ranks.finish());
  }
  for (int r = 0; r < 2; ++r) {
    const std::string file = path + ".rank" + std::to_string(r) + ".json";
    std::ifstream in(file);
    const auto json = nlohmann::json::parse(in, nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << file;
    EXPECT_EQ(json["ranks"].size(), 2u);
    EXPECT_EQ(json["ranks"][0]["calls"][0]["call"], "all_reduce(11 x f32, sum)");
  }
}

}  // namespace
}  // namespace tutti::testing::flight_recorder_test
