#include "collectives/diagnostics/flight_recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <semaphore.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/options.h"
#include "base/start_thread.h"
#include "collectives/algorithms/table.h"
#include "collectives/executor/record.h"
#include "transport/wire/net_links.h"

namespace tutti {

using executor::CallSnapshot;

namespace {

constexpr std::size_t kCallsOnFailure = 5;

std::vector<CallSnapshot> calls_of(const transport::Board& board) {
  std::vector<CallSnapshot> calls;
  for (const auto* ring : {&board.calls, &board.groups, &board.launches}) {
    for (const transport::CallRecord& record : *ring) {
      const CallSnapshot call = executor::snapshot(record);
      if (call.sequence != 0) calls.push_back(call);
    }
  }
  // Collectives and groups of sends and receives are numbered each by themselves, so time orders them.
  std::sort(calls.begin(), calls.end(), [](const auto& a, const auto& b) {
    return std::pair(a.entered, a.sequence) < std::pair(b.entered, b.sequence);
  });
  return calls;
}

const char* state_of(const CallSnapshot& call) {
  switch (call.state) {
    case transport::CallState::entered: return "running";
    case transport::CallState::done: return "done";
    case transport::CallState::failed: return "failed";
  }
  return "?";
}

const char* algorithm_of(const CallSnapshot& call) {
  const auto& table = algorithms::table();
  return call.algorithm < table.size() ? table[call.algorithm].name : "-";
}

double seconds_ago(std::uint64_t ticks) { return static_cast<double>(now_ns() - ns_of_ticks(ticks)) / 1e9; }

double microseconds(const CallSnapshot& call) {
  const std::uint64_t end = call.ended != 0 ? call.ended : ticks();
  return static_cast<double>(ns_of_ticks(end) - ns_of_ticks(call.entered)) / 1e3;
}

// The signal. A handler may do next to nothing, so it only wakes a thread that prints.
sem_t asked;
struct Enlisted {
  std::mutex mutex;
  std::vector<const FlightRecorder*> recorders;  // guarded by mutex
};

// Never destroyed: the thread below, and recorders, may live as long as the process.
Enlisted& enlisted() {
  static Enlisted& all = *new Enlisted;
  return all;
}

void ask(int) { sem_post(&asked); }

void start_listening(int number) {
  sem_init(&asked, 0, 0);
  Result<std::thread> thread = start_thread("the thread of the flight recorder", [] {
    for (;;) {
      while (sem_wait(&asked) != 0) {
      }
      Enlisted& all = enlisted();
      const std::lock_guard lock(all.mutex);
      for (const FlightRecorder* recorder : all.recorders) {
        const std::string text = recorder->text();
        (void)!write(STDERR_FILENO, text.data(), text.size());
        recorder->write_file();
      }
    }
  });
  if (!thread.ok()) return log::error("{}", thread.status().message());
  thread.value().detach();
  struct sigaction action {};
  action.sa_handler = ask;
  action.sa_flags = SA_RESTART;
  sigaction(number, &action, nullptr);
}

std::string text_of_rank(const transport::Board& board, const std::string& name, std::size_t most) {
  std::vector<CallSnapshot> calls = calls_of(board);
  if (calls.size() > most) calls.erase(calls.begin(), calls.end() - static_cast<std::ptrdiff_t>(most));
  std::string all = fmt::format("{}\n{:>10}  {:<52} {:>14}  {:<18} {:<8} {:>12} {:>12}\n", name, "call", "what",
                                "bytes", "algorithm", "state", "since (s)", "took (us)");
  for (const CallSnapshot& call : calls) {
    all += fmt::format("{:>10}  {:<52} {:>14}  {:<18} {:<8} {:>12.6f} {:>12.2f}\n", call.sequence, call.text(),
                       call.bytes, algorithm_of(call), state_of(call), seconds_ago(call.entered), microseconds(call));
  }
  return all;
}

}  // namespace

FlightRecorder::FlightRecorder(transport::Transport& transport, int rank, executor::RankName name,
                               executor::FileOwner owner)
    : transport_(transport), rank_(rank), name_(std::move(name)), owner_(std::move(owner)) {
  Enlisted& all = enlisted();
  const std::lock_guard lock(all.mutex);
  static const bool listening = [] {
    const auto number = static_cast<int>(options::integer(Option::flight_signal));
    if (number > 0) start_listening(number);
    return true;
  }();
  (void)listening;
  all.recorders.push_back(this);
}

FlightRecorder::~FlightRecorder() {
  Enlisted& all = enlisted();
  const std::lock_guard lock(all.mutex);
  std::erase(all.recorders, this);
}

const transport::Board* FlightRecorder::board_of(int rank) const {
  const transport::NetLinks* remote = transport_.net_links();
  return remote != nullptr && remote->is_remote(rank) ? nullptr : transport_.window(rank).board;
}

std::string FlightRecorder::last_calls(std::size_t most) const {
  return text_of_rank(*transport_.window(rank_).board, "last calls of " + name_(rank_), most);
}

std::string FlightRecorder::text() const {
  std::string all;
  for (int rank = 0; rank < transport_.sizes().ranks; ++rank) {
    const transport::Board* board = board_of(rank);
    if (board != nullptr) all += text_of_rank(*board, name_(rank), transport::kCallRing);
  }
  return all;
}

std::string FlightRecorder::json() const {
  nlohmann::json ranks = nlohmann::json::array();
  for (int rank = 0; rank < transport_.sizes().ranks; ++rank) {
    const transport::Board* board = board_of(rank);
    if (board == nullptr) continue;
    nlohmann::json calls = nlohmann::json::array();
    for (const CallSnapshot& call : calls_of(*board)) {
      calls.push_back({{"sequence", call.sequence},
                       {"call", call.text()},
                       {"collective", name_of(call.collective)},
                       {"type", name_of(call.type)},
                       {"op", name_of(call.op)},
                       {"root", call.root},
                       {"count", call.count},
                       {"bytes", call.bytes},
                       {"algorithm", algorithm_of(call)},
                       {"state", state_of(call)},
                       {"seconds_ago", seconds_ago(call.entered)},
                       {"microseconds", microseconds(call)}});
    }
    ranks.push_back({{"rank", rank}, {"name", name_(rank)}, {"calls", calls}});
  }
  return nlohmann::json{{"ranks", ranks}}.dump(1);
}

void FlightRecorder::print_on_failure(const Status& failure) const {
  log::set_thread_rank(rank_);  // ranks may be threads
  log::error("{}: {}", name_of(failure.code()), failure.message());
  log::set_thread_rank(-1);
  const std::string last = last_calls(kCallsOnFailure);
  (void)!write(STDERR_FILENO, last.data(), last.size());
  write_file();
}

void FlightRecorder::write_file() const {
  const std::string& option = options::text(Option::flight_recorder);
  if (option.empty()) return;
  const std::string path = executor::rank_path(option, owner_);
  std::ofstream out(path);
  out << json() << '\n';
  if (!out) log::error("cannot write the flight recorder to {}", path);
}

Status check_flight_signal() {
  const std::int64_t number = options::integer(Option::flight_signal);
  if (number == 0) return {};
  struct sigaction now {};
  // sigaction() refuses signals that cannot be handled, or that the C library keeps for itself. Behind the handler of a
  // fault the same instruction would run again, for ever.
  constexpr std::array kNever = {SIGKILL, SIGSTOP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
  const bool possible = number > 0 && number <= SIGRTMAX &&
                        std::find(kNever.begin(), kNever.end(), number) == kNever.end() &&
                        sigaction(static_cast<int>(number), nullptr, &now) == 0;
  if (!possible) {
    return invalid_argument(fmt::format(
        "TUTTI_FLIGHT_SIGNAL is {}; expected the number of a signal that can be handled, and that no fault raises",
        number));
  }
  if (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN || now.sa_handler == ask) return {};
  return invalid_argument(
      fmt::format("TUTTI_FLIGHT_SIGNAL is {}, which this program handles itself; expected another one", number));
}

}  // namespace tutti
