// What a user sees with TUTTI_EXPLAIN=1 and TUTTI_TRACE=file, and that nothing is seen without.
#include <fcntl.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "collectives/algorithms/table.h"
#include "collectives/executor/host/trace.h"
#include "tests/collectives/processes.h"

namespace tutti::testing::observe_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int kRanks = 3;
constexpr std::size_t kCount = 96;

class Observe : public ::testing::Test {
 protected:
  Observe() {
    std::string pattern = ::testing::TempDir() + "tutti_observe_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~Observe() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::string text_of(const std::string& name) const {
    std::ifstream file(path(name));
    EXPECT_TRUE(file) << name;
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.insert(entry.path().filename());
    return names;
  }

  /// Runs `body` on kRanks processes; what each says on standard error goes to "stderr.<rank>".
  void run(const std::function<void(Communicator&)>& body, const Environment& environment) const {
    expect_no_errors(run_processes(
        kRanks,
        [&](Communicator& comm) {
          const int fd = open(path("stderr." + std::to_string(comm.rank())).c_str(), O_CREAT | O_WRONLY, 0600);
          dup2(fd, STDERR_FILENO);
          body(comm);
          return std::string();
        },
        environment));
  }

  std::string folder_;
};

void three_calls(Communicator& comm) {
  std::vector<float> data(kCount, 1);
  CallOptions ring;
  ring.algorithm = "ring";
  comm.all_reduce(data.data(), data.data(), kCount, DataType::f32, ReduceOp::sum, ring);
  comm.broadcast(data.data(), data.data(), kCount, DataType::f32, 1);
  comm.barrier();
}

void send_to_the_next(Communicator& comm) {
  float mine = 1;
  float theirs = 0;
  comm.group_start();
  comm.send(&mine, 1, DataType::f32, (comm.rank() + 1) % kRanks);
  comm.recv(&theirs, 1, DataType::f32, (comm.rank() + kRanks - 1) % kRanks);
  comm.group_end();
}

/// How many steps a rank of this plan takes in a call of one round.
std::size_t steps_in_one_round(Collective collective, const std::string& algorithm, int rank, int root = 0) {
  const plan::Plan plan = algorithms::find(collective, algorithm)->build({collective, kRanks, root, {}});
  std::size_t steps = 0;
  for (const plan::Lane& lane : plan.of_rank[static_cast<std::size_t>(rank)].lanes) {
    steps += static_cast<std::size_t>(std::count_if(
        lane.steps.begin(), lane.steps.end(), [](const plan::Step& s) { return s.guard == plan::Guard::always; }));
  }
  return steps;
}

std::vector<json> events_of(const json& trace, const std::string& category) {
  std::vector<json> events;
  for (const json& event : trace["traceEvents"]) {
    if (event.value("cat", "") == category) events.push_back(event);
  }
  return events;
}

TEST_F(Observe, NothingIsSaidOrWrittenUnlessAskedFor) {
  run(
      [](Communicator& comm) {
        three_calls(comm);
        send_to_the_next(comm);
      },
      {});
  EXPECT_EQ(files(), (std::set<std::string>{"stderr.0", "stderr.1", "stderr.2"}));
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(text_of("stderr." + std::to_string(r)), "");
}

TEST_F(Observe, ExplainTellsAlgorithmLanesRoundsAndReasonOfEveryCall) {
  run(three_calls, {{"TUTTI_EXPLAIN", "1"}});
  for (int r = 0; r < kRanks; ++r) {
    const std::string text = text_of("stderr." + std::to_string(r));
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << text;
    EXPECT_THAT(text, HasSubstr("tutti: rank " + std::to_string(r) + " "));
    EXPECT_THAT(text,
                HasSubstr("call 1: all_reduce(96 x f32, sum): 384 bytes by ring, 1 lane(s), 1 round(s), asked for "
                          "by name\n"));
    EXPECT_THAT(text, HasSubstr("call 2: broadcast(96 x f32, root 1): 384 bytes by one_shot, 1 lane(s), 1 round(s), "
                                "built-in rule 'broadcast "));
    EXPECT_THAT(text, HasSubstr("call 3: barrier(): 0 bytes by dissemination, 1 lane(s), 1 round(s), built-in rule"));
  }
}

TEST_F(Observe, TheProgramCanAskForTheSameOfTheLastCall) {
  run(
      [](Communicator& comm) {
        three_calls(comm);
        const Explanation last = comm.explain_last_call();
        if (last.algorithm != "dissemination" || last.lanes != 1 || last.rounds != 1 || last.reason.empty()) {
          throw std::runtime_error("explain_last_call says " + last.algorithm + ", " + last.reason);
        }
      },
      {});
}

TEST_F(Observe, TheTraceHasEveryCallAndStepAndNamesThem) {
  run(
      [](Communicator& comm) {
        three_calls(comm);
        send_to_the_next(comm);
      },
      {{"TUTTI_TRACE", path("trace.json")}});
  for (int r = 0; r < kRanks; ++r) {
    const json trace = json::parse(text_of("trace.rank" + std::to_string(r) + ".json"));
    SCOPED_TRACE("rank " + std::to_string(r));
    std::set<std::string> lines;
    std::string process;
    for (const json& event : trace["traceEvents"]) {
      EXPECT_EQ(event["pid"], r);
      if (event["name"] == "process_name") process = event["args"]["name"];
      if (event["name"] == "thread_name") lines.insert(event["args"]["name"]);
    }
    EXPECT_THAT(process, HasSubstr("rank " + std::to_string(r) + " (host "));
    EXPECT_EQ(lines, (std::set<std::string>{"calls", "lane 0"}));

    const std::vector<json> calls = events_of(trace, "call");
    ASSERT_EQ(calls.size(), 4u);
    EXPECT_EQ(calls[0]["name"], "all_reduce(96 x f32, sum)");
    EXPECT_EQ(calls[0]["args"]["call"], 1);
    EXPECT_EQ(calls[0]["args"]["algorithm"], "ring");
    EXPECT_EQ(calls[0]["args"]["bytes"], kCount * sizeof(float));
    EXPECT_EQ(calls[0]["args"]["state"], "done");
    EXPECT_EQ(calls[1]["name"], "broadcast(96 x f32, root 1)");
    EXPECT_EQ(calls[2]["name"], "barrier()");
    EXPECT_EQ(calls[3]["name"], "2 sends and receives");

    std::size_t steps_of[4] = {};
    // Each time is printed to a nanosecond: a begin and an end that were equal may differ by two halves of that, and a
    // duration adds another.
    constexpr double kRounding = 0.0015;  // microseconds
    for (const json& step : events_of(trace, "step")) {
      const int call = step["args"]["call"];
      ASSERT_TRUE(call >= 1 && call <= 3) << step;
      ++steps_of[call];
      const double begin = step["ts"];
      const double end = begin + step["dur"].get<double>();
      const double call_begin = calls[static_cast<std::size_t>(call - 1)]["ts"];
      const double call_end = call_begin + calls[static_cast<std::size_t>(call - 1)]["dur"].get<double>();
      EXPECT_GE(begin, call_begin - kRounding) << step;
      EXPECT_LE(end, call_end + kRounding) << step;
    }
    EXPECT_EQ(steps_of[1], steps_in_one_round(Collective::all_reduce, "ring", r));
    EXPECT_EQ(steps_of[2], steps_in_one_round(Collective::broadcast, "one_shot", r, 1));
    EXPECT_EQ(steps_of[3], steps_in_one_round(Collective::barrier, "dissemination", r));
  }
}

TEST_F(Observe, EveryCommunicatorHasAFileOfItsOwn) {
  run(
      [](Communicator& comm) {
        Communicator child = comm.split(comm.rank() / 2, 0);  // ranks 0 and 1; rank 2 is alone
        child.barrier();
      },
      {{"TUTTI_TRACE", path("%r")}});
  std::set<std::string> others;
  for (const std::string& name : files()) {
    if (name.find(".comm-") != std::string::npos) others.insert(name.substr(0, name.find('.')));
  }
  EXPECT_EQ(others, (std::set<std::string>{"0", "1"}));
  for (const char* name : {"0.json", "1.json", "2.json"}) EXPECT_TRUE(files().contains(name)) << name;
}

TEST_F(Observe, ATraceThatCannotBeWrittenIsSaidAndTheCallsGoOn) {
  const Outcome outcome = in_child(
      [&] {
        const int fd = open(path("said").c_str(), O_CREAT | O_WRONLY, 0600);
        dup2(fd, STDERR_FILENO);
        std::vector<Communicator> ranks = Communicator::in_process(2);
        Work other = ranks[1].all_reduce_async(nullptr, nullptr, 0, DataType::f32);
        ranks[0].all_reduce(nullptr, nullptr, 0, DataType::f32);
        other.wait();
        return std::string();
      },
      {{"TUTTI_TRACE", path("missing/folder/t.json")}});
  EXPECT_EQ(outcome.error, "");
  EXPECT_THAT(text_of("said"), HasSubstr("cannot write the trace to " + path("missing/folder/t.rank0.json")));
}

TEST(TracePath, HasRankAndCommunicator) {
  using executor::rank_path;
  EXPECT_EQ(rank_path("t.json", {7, "", 0}), "t.rank7.json");
  EXPECT_EQ(rank_path("t", {7, "", 0}), "t.rank7.json");
  EXPECT_EQ(rank_path("/a/%r/t-%r.json", {12, "", 0}), "/a/12/t-12.json");
  EXPECT_EQ(rank_path("t.json", {0, "", 0xabc}), "t.rank0.comm-abc.json");
}

}  // namespace
}  // namespace tutti::testing::observe_test
