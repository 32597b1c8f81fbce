// What walking a plan costs: the same exchange between two threads written by hand and made by the communicator, and
// what lies between the two, taken apart. Nanoseconds; the median of several rounds, in which all cases take turns.
//
//   plan_walk_bench [-n CALLS] [--rounds N] [-J FILE]
//
// Exit status: 0 good, 2 the system refused something, 5 fewer than two cores, 6 wrong usage.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/cpu.h"
#include "base/standard_streams.h"
#include "collectives/executor/host/executor.h"
#include "collectives/plan/plan.h"
#include "perf/vector_clones.h"
#include "transport/inproc/inproc.h"
#include "tutti/tutti.hpp"

namespace tutti::perf {
namespace {

constexpr std::size_t kSmall = 2;     // elements of f32: 8 B
constexpr std::size_t kLarge = 1024;  // 4 KiB
constexpr int kPairs = 64;            // steps of a kind in a plan: few enough for the first-level cache

/// The compiler must have the value at hand here.
template <class T>
void keep(T& value) {
  asm volatile("" : : "g"(&value) : "memory");
}

/// body(rank, calls) on two threads with a core each. Nanoseconds per call, by the slower one.
double time_two(int calls, const std::function<void(int, int)>& body) {
  const std::vector<int> cores = allowed_cores();
  std::array<double, 2> spent{};
  std::atomic<int> ready{0};
  const auto run = [&](int rank) {
    bind_to(std::span(cores).subspan(static_cast<std::size_t>(rank), 1));
    body(rank, calls / 10 + 2);  // warm up
    ready.fetch_add(1);
    while (ready.load() < 2) cpu_relax();
    const std::int64_t start = now_ns();
    body(rank, calls);
    spent[static_cast<std::size_t>(rank)] = static_cast<double>(now_ns() - start);
  };
  std::thread other(run, 1);
  std::thread one(run, 0);
  one.join();
  other.join();
  return std::max(spent[0], spent[1]) / calls;
}

double time_one(int calls, const std::function<void(int)>& body) {
  return time_two(calls, [&](int rank, int n) {
    if (rank == 0) body(n);
  });
}

// ---- By hand -------------------------------------------------------------------------------------------------------

struct alignas(transport::kCacheLine) Line {
  std::atomic<std::uint64_t> flag{0};
  std::array<float, kSmall> data{};
};

enum class Extra { none, tag, announced };

/// Two lines per rank, for alternate calls: a rank that sees its peer's call k knows that its own line of call k - 1
/// has been read.
class OneShotByHand {
 public:
  explicit OneShotByHand(Extra extra) : extra_(extra) {
    announcement_.identity.count = kSmall;
    announcement_.fingerprint = announcement_.identity.fingerprint();
  }

  void run(int rank, int calls) {
    const auto me = static_cast<std::size_t>(rank);
    std::uint64_t& call = calls_[me].number;
    std::array<float, kSmall> mine{1.0F, 2.0F};
    for (int i = 0; i < calls; ++i) {
      ++call;
      const bool plain = extra_ == Extra::none;
      const std::uint64_t flag = plain ? call : executor::tag_of(announcement_.fingerprint, call);
      if (extra_ == Extra::announced) executor::announce(*boards_[me], call, announcement_, 0, 0, 0, 1.0);
      keep(mine);
      Line& to = lines_[call % 2][me];
      to.data = mine;
      to.flag.store(flag, std::memory_order_release);
      Line& from = lines_[call % 2][1 - me];
      while (from.flag.load(std::memory_order_acquire) != flag) cpu_relax();
      std::array<float, kSmall> sum{};
      for (std::size_t k = 0; k < kSmall; ++k) sum[k] = mine[k] + from.data[k];
      keep(sum);
      if (extra_ != Extra::announced) continue;
      transport::CallRecord& record = boards_[me]->calls[call % transport::kCallRing];
      record.ended.store(ticks(), std::memory_order_relaxed);
      record.state.store(transport::CallState::done, std::memory_order_relaxed);
    }
  }

 private:
  struct alignas(transport::kCacheLine) Count {
    std::uint64_t number = 0;
  };
  Extra extra_;
  executor::Announcement announcement_;
  std::array<std::array<Line, 2>, 2> lines_;  // by call, by rank
  std::array<Count, 2> calls_;
  std::array<std::unique_ptr<transport::Board>, 2> boards_{std::make_unique<transport::Board>(),
                                                           std::make_unique<transport::Board>()};
};

TUTTI_VECTOR_CLONES void add_to_two(float* __restrict x, float* __restrict y, const float* a, const float* b,
                                    std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i];
    x[i] = sum;
    y[i] = sum;
  }
}

/// The buffers of both ranks in the by-hand and in the communicator's runs.
struct Vectors {
  std::array<Buffer<float>, 2> input{Buffer<float>(kLarge), Buffer<float>(kLarge)};
  std::array<Buffer<float>, 2> output{Buffer<float>(kLarge), Buffer<float>(kLarge)};
};

/// Each rank adds its half of both inputs and writes it to both outputs; one flag when the input is ready, one when its
/// half is written.
class TwoShotByHand {
 public:
  void run(int rank, int calls) {
    const auto me = static_cast<std::size_t>(rank);
    const std::size_t first = me * kLarge / 2;
    std::uint64_t& count = counts_[me].number;
    for (int i = 0; i < calls; ++i) {
      for (const bool reduce : {true, false}) {
        flags_[me].flag.store(++count, std::memory_order_release);
        while (flags_[1 - me].flag.load(std::memory_order_acquire) < count) cpu_relax();
        if (!reduce) continue;
        add_to_two(vectors_.output[0].data() + first, vectors_.output[1].data() + first,
                   vectors_.input[0].data() + first, vectors_.input[1].data() + first, kLarge / 2);
      }
    }
  }

 private:
  struct alignas(transport::kCacheLine) Count {
    std::uint64_t number = 0;
  };
  Vectors vectors_;
  std::array<Line, 2> flags_;
  std::array<Count, 2> counts_;
};

// ---- By the communicator -------------------------------------------------------------------------------------------

class ByCommunicator {
 public:
  explicit ByCommunicator(std::size_t count) : count_(count), comms_(Communicator::in_process(2)) {}

  void run(int rank, int calls) {
    const auto me = static_cast<std::size_t>(rank);
    Communicator& comm = comms_[me];
    const float* input = vectors_.input[me].data();
    float* output = vectors_.output[me].data();
    for (int i = 0; i < calls; ++i) comm.all_reduce(input, output, count_, DataType::f32);
  }
  std::string algorithm() const { return comms_[0].explain_last_call().algorithm; }

 private:
  std::size_t count_;
  Vectors vectors_;
  std::vector<Communicator> comms_;
};

// ---- One rank alone with the executor ------------------------------------------------------------------------------

/// Walks a plan whose steps concern one rank only, so it never waits.
class AloneWithPlan {
 public:
  explicit AloneWithPlan(std::vector<plan::Step> steps)
      : sizes_{.ranks = 1, .lanes = 1},
        transport_(0, sizes_, {transport::make_shared_window(sizes_)}),
        health_(*transport_.window(0).board),
        waiter_(transport_, health_, 0, [](int) { return std::string("rank 0"); }, {}),
        executor_(transport_, waiter_, health_, 0) {
    auto plan = std::make_shared<plan::Plan>();
    plan->algorithm = "steps";
    plan->of_rank = {{{plan::Lane{std::move(steps)}}}};
    auto prepared =
        executor::prepare(plan, 0, {.collective = Collective::all_reduce, .type = DataType::f32, .count = 16}, sizes_,
                          /*streaming_above=*/SIZE_MAX);
    TUTTI_CHECK(prepared.ok());
    prepared_ = prepared.take();
    announcement_.fingerprint = announcement_.identity.fingerprint();
  }

  void run(int calls) {
    const executor::CallBuffers buffers{input_.data(), output_.data(), 1.0};
    for (int i = 0; i < calls; ++i) {
      executor_.entry.enter(announcement_, buffers, false);
      const Status status = executor_.walker.run(*prepared_, buffers);
      TUTTI_CHECK(status.ok());
      executor_.entry.leave(true);
    }
  }

 private:
  transport::WindowSizes sizes_;
  transport::InprocTransport transport_;
  executor::Health health_;
  executor::Waiter waiter_;
  executor::HostExecutor executor_;
  executor::Announcement announcement_;
  std::shared_ptr<const executor::Prepared> prepared_;
  alignas(transport::kCacheLine) std::array<float, 16> input_{};
  alignas(transport::kCacheLine) std::array<float, 16> output_{};
};

std::vector<plan::Step> repeated(const std::vector<plan::Step>& steps) {
  std::vector<plan::Step> all;
  for (int i = 0; i < kPairs; ++i) all.insert(all.end(), steps.begin(), steps.end());
  return all;
}

/// The words that a wait reads: the counter and its tag.
void look_at_signal(int calls, bool with_tag) {
  transport::SignalCell cell;
  cell.count.store(1);
  const std::uint64_t tag = executor::tag_of(1, 1);
  cell.tag.store(tag);
  std::uint64_t wrong = 0;
  for (int i = 0; i < calls; ++i) {
    wrong += cell.count.load(std::memory_order_acquire) < 1 ? 1 : 0;
    if (with_tag) wrong += cell.tag.load(std::memory_order_relaxed) != tag ? 1 : 0;
    keep(wrong);
  }
  TUTTI_CHECK_EQ(wrong, 0U);
}

struct Case {
  std::string key;  // in JSON
  std::string what;
  std::function<double(int)> time;  // nanoseconds for that many calls, per call
  std::vector<double> ns = {};
  double median() const {
    std::vector<double> sorted = ns;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

template <class Exchange>
std::function<double(int)> both(Exchange& exchange) {
  return [&exchange](int calls) { return time_two(calls, [&](int rank, int n) { exchange.run(rank, n); }); };
}

int run(int calls, int rounds, const std::string& json_file) {
  OneShotByHand hand(Extra::none), tagged(Extra::tag), announced(Extra::announced);
  TwoShotByHand two_shot;
  ByCommunicator small(kSmall), large(kLarge), nothing(0);

  plan::Step signal{.kind = plan::StepKind::signal, .peer = 0};
  plan::Step wait{.kind = plan::StepKind::wait, .peer = 0};
  const plan::Range input{.space = plan::Space::input};
  const plan::Range output{.space = plan::Space::output};
  plan::Step copy{.kind = plan::StepKind::copy, .sources = {input}, .destinations = {output}};
  plan::Step reduce{.kind = plan::StepKind::reduce, .sources = {input, output}, .destinations = {output}};
  AloneWithPlan empty({}), signals(repeated({signal, wait})), copies(repeated({copy})), reductions(repeated({reduce}));
  const auto alone = [](AloneWithPlan& steps) {
    return [&steps](int n) { return time_one(n, [&](int m) { steps.run(m); }); };
  };
  transport::Board board;
  const auto announcing = [&board](int n) {
    return time_one(n, [&board](int m) {
      executor::Announcement announcement;
      for (int i = 1; i <= m; ++i) {
        executor::announce(board, static_cast<std::uint64_t>(i), announcement, 0, 0, 0, 1.0);
      }
    });
  };
  const auto looking = [](bool with_tag) {
    return [with_tag](int n) { return time_one(n, [&](int m) { look_at_signal(m, with_tag); }); };
  };

  std::vector<Case> cases;
  cases.push_back({"hand_8", "all_reduce of 8 B, by hand: write a line, wait for the peer's, add", both(hand)});
  cases.push_back({"hand_tag_8", "the same, the call's tag as its flag", both(tagged)});
  cases.push_back({"hand_announced_8", "the same, and each call announced and recorded", both(announced)});
  cases.push_back({"communicator_8", "all_reduce of 8 B", both(small)});
  cases.push_back({"hand_4096", "all_reduce of 4 KiB, by hand: two-shot", both(two_shot)});
  cases.push_back({"communicator_4096", "all_reduce of 4 KiB", both(large)});
  cases.push_back({"nothing", "all_reduce of nothing: announced, checked by others, waits for no rank", both(nothing)});
  cases.push_back({"announce", "announcing a call", announcing});
  cases.push_back({"look", "looking at a signal that has come", looking(false)});
  cases.push_back({"look_tag", "looking at it and at its tag", looking(true)});
  cases.push_back({"no_steps", "a call whose plan has no steps, one rank", alone(empty)});
  const std::size_t base = cases.size() - 1;
  cases.push_back({"signal_wait", "each signal and each wait (to itself)", alone(signals)});
  cases.push_back({"copy", "each copy of 64 B", alone(copies)});
  cases.push_back({"reduce", "each reduce of 64 B from two sources", alone(reductions)});
  for (int round = 0; round < rounds; ++round) {
    for (Case& c : cases) c.ns.push_back(c.time(calls));
  }
  // The last three are calls of many steps: take the call itself off, divide by the steps.
  for (std::size_t i = base + 1; i < cases.size(); ++i) {
    const int steps = i == base + 1 ? 2 * kPairs : kPairs;
    for (std::size_t r = 0; r < cases[i].ns.size(); ++r) cases[i].ns[r] = (cases[i].ns[r] - cases[base].ns[r]) / steps;
  }
  for (auto& [c, exchange] : {std::pair{&cases[3], &small}, std::pair{&cases[5], &large}}) {
    c->what += fmt::format(", by the communicator ({})", exchange->algorithm());
  }

  auto rows = nlohmann::ordered_json::array();
  fmt::print("# two threads with a core each; nanoseconds per call (or step), median of {} rounds of {} calls\n",
             rounds, calls);
  fmt::print("{:>9s} {:>9s} {:>9s}  {}\n", "median", "least", "most", "what");
  for (const Case& c : cases) {
    const auto [least, most] = std::minmax_element(c.ns.begin(), c.ns.end());
    fmt::print("{:9.1f} {:9.1f} {:9.1f}  {}\n", c.median(), *least, *most, c.what);
    rows.push_back({{"key", c.key}, {"what", c.what}, {"ns", c.median()}, {"min_ns", *least}, {"max_ns", *most}});
  }
  if (json_file.empty()) return 0;
  std::ofstream file(json_file);
  file << nlohmann::ordered_json{{"rounds", rounds}, {"calls", calls}, {"results", rows}}.dump(2) << '\n';
  if (file.flush()) return 0;
  fmt::print(stderr, "plan_walk_bench: -J {}: could not be written\n", json_file);
  return 2;
}

}  // namespace
}  // namespace tutti::perf

int main(int argc, char** argv) try {
  int calls = 20'000;
  int rounds = 9;
  std::string json_file;
  CLI::App app("What walking a plan costs.");
  app.add_option("-n", calls, "Calls of each case in a round")
      ->check(CLI::Range(10, 100'000'000))
      ->capture_default_str();
  app.add_option("--rounds", rounds, "Of which the median counts")->check(CLI::Range(1, 10'000))->capture_default_str();
  app.add_option("-J", json_file, "Write the figures to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return tutti::end_of_output("plan_walk_bench", app.exit(error) == 0 ? 0 : 6);
  }
  if (tutti::allowed_cores().size() < 2) {
    fmt::print(stderr, "plan_walk_bench: two threads that wait for each other need two cores\n");
    return 5;
  }
  return tutti::end_of_output("plan_walk_bench", tutti::perf::run(calls, rounds, json_file));
} catch (const std::exception& error) {
  std::fprintf(stderr, "plan_walk_bench: %s\n", error.what());
  return 2;
}
