// The campaign: random programs with faults, judged one after another. ./dev chaos builds and runs it.
//
//   chaos --minutes 5 --seed 7        # scenarios of seeds 7, 8, 9, ...
//   chaos --seed 123 --count 1        # one again
//
// A line for each scenario goes to --log, findings to standard output too. Exit status: 1 when there was a finding.
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/option_checks.h"
#include "tests/chaos/judge.h"
#include "tests/chaos/ranks.h"
#include "tests/chaos/scenario.h"

namespace tutti::chaos {
namespace {

// What lo, by which packets between local addresses go, lets pass: a bucket that is too small loses what comes at once.
constexpr const char* kAll = "rate 40gbit burst 10mb limit 100mb";
constexpr const char* kSome = "rate 200mbit burst 6k limit 9k";
constexpr const char* kNothing = "rate 8bit burst 10 limit 10";

bool run_quietly(const std::string& command) { return std::system((command + " > /dev/null 2>&1").c_str()) == 0; }

bool let_pass(const char* what) { return run_quietly(std::string("tc qdisc replace dev lo root tbf ") + what); }

/// A network of this process's own, which may be disturbed; false where that is not allowed.
bool take_own_network() {
  if (geteuid() != 0 || unshare(CLONE_NEWNET) != 0) return false;
  return run_quietly("ip link set lo up mtu 1500") && run_quietly("ip link add own type veth peer name other") &&
         run_quietly("ip address add 10.73.0.1/24 dev own") && run_quietly("ip link set own up") &&
         run_quietly("ip link set other up") && let_pass(kAll);
}

class Run {
 public:
  /// `links`: may the network be disturbed?
  Run(const Scenario& scenario, Reports& reports, bool links) : s_(scenario), reports_(reports), links_(links) {}

  std::vector<std::string> judged() {
    static int number = 0;
    seen_.began_ns = now_ns();
    ranks_ = start_ranks(s_, fmt::format("chaos {} {}", getpid(), ++number), reports_);
    seen_.statuses.assign(ranks_.size(), 0);
    seen_.late.assign(ranks_.size(), false);
    ended_.assign(ranks_.size(), false);
    while (!all_ended()) {
      reap();
      disturb();
      end_what_is_late();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (disturbs_link_) (void)let_pass(kAll);
    return judge(s_, reports_, seen_);
  }

 private:
  bool all_ended() const {
    return std::all_of(ended_.begin(), ended_.end(), [](bool ended) { return ended; });
  }
  double seconds() const { return static_cast<double>(now_ns() - seen_.began_ns) * 1e-9; }

  void reap() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (!ended_[r] && waitpid(ranks_[r], &seen_.statuses[r], WNOHANG) == ranks_[r]) ended_[r] = true;
    }
  }

  void disturb() {
    const auto victim = static_cast<std::size_t>(s_.victim);
    const std::int64_t at = seen_.began_ns + s_.at_us * 1000;
    if (seen_.fault_ns == 0 && now_ns() >= at && !all_ended()) {
      seen_.victim_running = !ended_[victim] && reports_[victim].end == Report::running;
      const auto send = [&](int number) {
        if (!ended_[victim]) kill(ranks_[victim], number);
      };
      switch (s_.fault) {
        case Fault::kill: send(SIGKILL); break;
        case Fault::stop:
        case Fault::stop_long: send(SIGSTOP); break;
        case Fault::loss: disturbs_link_ = links_ && let_pass(kSome); break;
        case Fault::cut: disturbs_link_ = links_ && let_pass(kNothing); break;
        default: break;
      }
      seen_.fault_ns = now_ns();
    }
    if (seen_.fault_ns == 0 || goes_on_) return;
    const bool others_ended = std::count(ended_.begin(), ended_.end(), false) <= (ended_[victim] ? 0 : 1);
    const bool short_stop_over = s_.fault == Fault::stop && now_ns() - seen_.fault_ns > kShortStopNs;
    const bool waited = static_cast<double>(now_ns() - seen_.fault_ns) * 1e-9 > 2 * s_.deadline + s_.slack();
    if (short_stop_over || (s_.fault == Fault::stop_long && (others_ended || waited))) {
      if (!ended_[victim]) kill(ranks_[victim], SIGCONT);
      goes_on_ = true;
    }
  }

  void end_what_is_late() {
    const double limit =
        static_cast<double>(s_.at_us) * 1e-6 + 4 * s_.deadline + 2 * s_.slack() + (s_.work >= Work::ddp ? 20 : 5);
    if (seconds() < limit) return;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ended_[r]) continue;
      seen_.late[r] = true;
      kill(ranks_[r], SIGKILL);
    }
  }

  static constexpr std::int64_t kShortStopNs = 300'000'000;

  const Scenario& s_;
  Reports& reports_;
  const bool links_;
  Seen seen_;
  std::vector<pid_t> ranks_;
  std::vector<bool> ended_;
  bool goes_on_ = false, disturbs_link_ = false;
};

struct Arguments {
  double minutes = 5;
  std::uint64_t seed = 0;
  std::uint64_t count = 0;
  std::string log;
  Menu menu;
  bool no_training = false, no_links = false, no_hosts = false;
};

int campaign(Arguments& arguments) {
  Menu& menu = arguments.menu;
  menu.training = !arguments.no_training && can_train();
  menu.hosts = !arguments.no_hosts;
  menu.links = menu.hosts && !menu.lossy && !arguments.no_links && take_own_network();
  std::ofstream log;
  if (!arguments.log.empty()) log.open(arguments.log);
  const auto say = [&](const std::string& line, bool aloud) {
    if (log.is_open()) log << line << '\n' << std::flush;
    if (aloud) fmt::print("{}\n", line), std::fflush(stdout);
  };
  void* memory = mmap(nullptr, sizeof(Reports), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 2;
  say(fmt::format("chaos: seed {}; training {}, hosts {}, links {}", arguments.seed, menu.training ? "on" : "off",
                  menu.hosts ? "by " + menu.network : "off", menu.links ? "disturbed" : "left alone"),
      true);
  std::map<std::string, int> by_fault;
  int findings = 0;
  std::uint64_t done = 0;
  const std::int64_t end = now_ns() + static_cast<std::int64_t>(arguments.minutes * 60e9);
  std::int64_t told = now_ns();
  for (; arguments.count != 0 ? done < arguments.count : now_ns() < end; ++done) {
    const Scenario scenario = draw(arguments.seed + done, menu);
    auto* reports = new (memory) Reports;
    const std::int64_t began = now_ns();
    const std::vector<std::string> found = Run(scenario, *reports, menu.links).judged();
    ++by_fault[name_of(scenario.fault)];
    const double took = static_cast<double>(now_ns() - began) * 1e-9;
    std::string line =
        fmt::format("{}: {} ({:.2f} s)", scenario.text(), found.empty() ? "as promised" : "FINDING", took);
    for (const std::string& one : found) line += "\n    " + one;
    say(line, !found.empty() || arguments.count == 1);
    if (!found.empty() && arguments.count == 1) {
      for (int rank = 0; rank < scenario.ranks; ++rank) {
        say(fmt::format("    rank {}: {}", rank, (*reports)[static_cast<std::size_t>(rank)].text.data()), true);
      }
    }
    findings += found.empty() ? 0 : 1;
    if (now_ns() - told > 30'000'000'000) {
      told = now_ns();
      fmt::print("chaos: {} scenarios, {} findings\n", done + 1, findings);
      std::fflush(stdout);
    }
  }
  munmap(memory, sizeof(Reports));
  std::string faults;
  for (const auto& [name, count] : by_fault) faults += fmt::format("{}{} {}", faults.empty() ? "" : ", ", count, name);
  say(fmt::format("chaos: {} scenarios ({}), {} findings; --seed {} repeats them", done, faults, findings,
                  arguments.seed),
      true);
  return findings == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tutti::chaos

int main(int argc, char** argv) {
  tutti::chaos::Arguments arguments;
  arguments.seed = static_cast<std::uint64_t>(tutti::now_ns() / 1'000'000 % 1'000'000'000);
  CLI::App app("Random programs of collectives and trainings with faults, and whether each ends as promised.");
  app.add_option("--minutes", arguments.minutes, "how long")->check(tutti::finite_number(true))->capture_default_str();
  app.add_option("--count", arguments.count, "so many scenarios, in place of minutes")->check(tutti::whole_number(1));
  app.add_option("--seed", arguments.seed, "of the first scenario; the next ones count on")
      ->check(tutti::whole_number(0));
  app.add_option("--log", arguments.log, "a line for each scenario goes to this file");
  app.add_option("--network", arguments.menu.network, "between hosts")->check(CLI::IsMember({"tcp", "ucx", "verbs"}));
  app.add_option("--deadline", arguments.menu.deadline, "of every wait, in seconds; longer on a slow machine")
      ->check(tutti::finite_number(true))
      ->capture_default_str();
  app.add_flag("--lossy", arguments.menu.lossy, "the network loses packets already: no other faults");
  app.add_flag("--no-training", arguments.no_training, "collectives and messages alone");
  app.add_flag("--no-hosts", arguments.no_hosts, "one host alone");
  app.add_flag("--no-links", arguments.no_links, "leave the network alone");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 6;
  }
  return tutti::chaos::campaign(arguments);
}
