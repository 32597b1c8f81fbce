// tutti tune: measures what calls take on this machine, or in the job that it is started in, and writes the costs that
// the planner then takes instead of assumptions; or holds such a table against measurements.
#include <fmt/format.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/options.h"
#include "cli/commands.h"
#include "collectives/create.h"
#include "launch/launch_local.h"
#include "launch/launcher.h"
#include "topology/discover.h"
#include "tuning/tune.h"
#include "tutti/tutti.hpp"

namespace tutti::cli {
namespace {

using planner::Table;
using tuning::Case;
using tuning::Place;

constexpr int kMostRanks = 64;
constexpr int kMostCrowd = 16;  // of ranks that share cores, unless they are asked for

struct Settings {
  int ranks = 0;
  std::string output;
  bool compare = false;
  bool fresh = false;
};

int fail(const Status& status) {
  fmt::print(stderr, "tutti tune: {}\n", status.message());
  return 2;
}

std::string now_in_words() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M UTC", &utc);
  return text;
}

void show_progress(const Case& one, std::size_t number, std::size_t of) {
  if (isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r{:>3} of {}: {} of {} bytes: {:.2f} us          {}", number, of, name_of(one.collective),
             one.bytes, one.measured_us, number == of ? "\n" : "");
}

void print_costs(const Table& table) {
  const planner::Constants& constants = table.constants;
  fmt::print("a call {:.3g} us, a step {:.3g} us, a signal within a host {:.3g} us\n", constants.call_us,
             constants.step_us, table.signal_us);
  fmt::print("a core sums {:.3g} GB/s, and writes {:.3g} GB/s into what another core has read\n",
             constants.reduce_gb_per_s, constants.slot_reuse_gb_per_s);
  for (const planner::Copying& one : constants.copying) {
    fmt::print("a core that works on {:>8.0f} bytes copies {:.3g} GB/s\n", one.bytes, one.gb_per_s);
  }
  if (table.network_gb_per_s > 0) {
    fmt::print(
        "the network: {:.3g} GB/s, {:.3g} us; a message takes both its ends {:.3g} us, a put of its own {:.3g} us, "
        "and they move {:.3g} GB/s\n",
        table.network_gb_per_s, table.network_us, constants.message_us, constants.put_us, constants.message_gb_per_s);
  }
}

/// Prints one line for each case, and how many are near.
void print_comparison(const std::vector<Case>& cases, const std::vector<double>& predicted, int ranks, int hosts) {
  fmt::print("{:<15} {:>5} {:>5} {:>10} {:<22} {:>13} {:>12} {:>7}\n", "collective", "ranks", "hosts", "bytes",
             "algorithm", "predicted us", "measured us", "ratio");
  std::size_t near = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& one = cases[i];
    const bool is_near = tuning::is_near(predicted[i], one.measured_us);
    near += is_near ? 1 : 0;
    fmt::print("{:<15} {:>5} {:>5} {:>10} {:<22} {:>13.2f} {:>12.2f} {:>7.2f}{}\n", name_of(one.collective), ranks,
               hosts, one.bytes, one.algorithm, predicted[i], one.measured_us, predicted[i] / one.measured_us,
               is_near ? "" : " *");
  }
  fmt::print("within 30 %: {} of {} ({:.0f} %)\n", near, cases.size(),
             100.0 * static_cast<double>(near) / static_cast<double>(cases.size()));
}

constexpr double kMostSeconds = 20;  // of measuring what costs are sought from, and of seeking them: a minute in all

/// Returns a budget that is used up after `seconds` from now.
tuning::IsSpent after(double seconds) {
  return [end = now_ns() + static_cast<std::int64_t>(seconds * 1e9)] { return now_ns() > end; };
}

void print_how_far(const tuning::Costs& costs) {
  if (costs.in_full) return;
  fmt::print("the search for costs ended after {} s, with the best that it had found\n", kMostSeconds);
}

/// The rest is rank 0's alone.
Status tune(const Settings& settings, const std::vector<Case>& cases, const Place& place, const std::string& name) {
  const std::string folder = planner::table_folder();
  if (settings.output.empty() && folder.empty()) {
    return invalid_argument("neither XDG_CACHE_HOME nor HOME says where to write; say it with --output FILE");
  }
  const std::string path = settings.output.empty() ? folder + "/" + name : settings.output;
  const Result<Table> known = planner::read_table(path);
  TUTTI_ASSIGN(const tuning::Costs costs,
               tuning::table_for(cases, place, known.ok() ? &known.value() : nullptr, after(kMostSeconds)));
  Table table = costs.table;
  const topology::Host& host = place.topology.hosts.front();
  table.measured_on = fmt::format("{}, {} cores{}{}", host.cpu_model.empty() ? "CPU not named" : host.cpu_model,
                                  host.cores.size(), place.network.empty() ? "" : ", ", place.network);
  table.date = now_in_words();
  table.version = version();
  const int ranks = static_cast<int>(place.topology.ranks.size());
  TUTTI_ASSIGN(const std::vector<double> predicted, tuning::predicted_us(cases, place, table));
  TUTTI_TRY(planner::write_table(table, path));
  print_comparison(cases, predicted, ranks, static_cast<int>(place.topology.hosts.size()));
  print_how_far(costs);
  print_costs(table);
  fmt::print("written to {}\n", path);
  return {};
}

Result<planner::FoundTable> table_to_compare(const std::string& name) {
  TUTTI_ASSIGN(std::optional<planner::FoundTable> found, planner::find_table(name));
  if (!found) return invalid_argument("there is no table to compare with: 'tutti tune' writes one");
  return std::move(*found);
}

/// `fresh`: measured in turn with the cases, and then `found` is not used.
Status compare(const std::vector<Case>& cases, const std::vector<Case>& fresh, const Place& place,
               const planner::FoundTable& found) {
  Table table = found.table;
  std::string source = fmt::format("{} of {}", found.path, table.date);
  if (!fresh.empty()) {
    TUTTI_ASSIGN(const tuning::Costs costs, tuning::table_for(fresh, place, nullptr, after(kMostSeconds)));
    print_how_far(costs);
    table = costs.table;
    source = "costs that were measured in between";
  }
  TUTTI_ASSIGN(const std::vector<double> predicted, tuning::predicted_us(cases, place, table));
  print_comparison(cases, predicted, static_cast<int>(place.topology.ranks.size()),
                   static_cast<int>(place.topology.hosts.size()));
  fmt::print("by {}\n", source);
  return {};
}

/// All ranks call it, and all get whether rank 0's `status` is ok.
Result<bool> ok_on_rank_0(TuttiCommunicator& communicator, const Status& status) {
  std::uint8_t ok = status.ok() ? 1 : 0;
  TUTTI_TRY(communicator.run({.collective = Collective::broadcast, .send = &ok, .recv = &ok, .count = 1}));
  return ok == 1;
}

Status run_rank(const Settings& settings) {
  TUTTI_ASSIGN(const std::shared_ptr<CommunicatorInterface> made, create_from_environment({}));
  auto* communicator = dynamic_cast<TuttiCommunicator*>(made.get());
  if (communicator == nullptr) {
    return unsupported("there is one rank, or the backend is not Tutti; expected at least 2 ranks of Tutti's own");
  }
  TUTTI_ASSIGN(const Place place, tuning::place_of(*communicator));
  const std::string name = planner::table_name(place.topology.hosts.front(), place.network);
  planner::FoundTable found;
  Status status;
  if (settings.compare && !settings.fresh) {  // before the half minute of measurements
    if (communicator->rank() == 0) {
      Result<planner::FoundTable> table = table_to_compare(name);
      status = table.status();
      if (table.ok()) found = table.take();
    }
    TUTTI_ASSIGN(const bool goes_on, ok_on_rank_0(*communicator, status));
    if (!goes_on) return status;
  }
  const std::vector<Case> to_tune = tuning::cases_to_tune(place);
  std::vector<Case> cases = settings.compare ? tuning::cases_to_compare() : to_tune;
  const auto compared = static_cast<std::ptrdiff_t>(cases.size());
  if (settings.fresh) cases.insert(cases.end(), to_tune.begin(), to_tune.end());
  const double seconds = kMostSeconds * static_cast<double>(cases.size()) / static_cast<double>(to_tune.size());
  TUTTI_ASSIGN(const int turns, tuning::measure_all(*communicator, cases, show_progress, after(seconds)));
  if (communicator->rank() == 0 && turns < tuning::kPasses) {
    fmt::print("measured {} time(s) in place of {}: {:.0f} s had passed\n", turns, tuning::kPasses, seconds);
  }
  const std::vector<Case> fresh(cases.begin() + compared, cases.end());
  cases.erase(cases.begin() + compared, cases.end());
  if (communicator->rank() == 0) {
    status = settings.compare ? compare(cases, fresh, place, found) : tune(settings, cases, place, name);
  }
  // The others wait: a rank that leaves is missed.
  const Status last = communicator->run({.collective = Collective::barrier});
  return status.ok() ? last : status;
}

int launch(const Settings& settings, int ranks) {
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) return fail(Status(Code::system, "cannot find its own program: " + error.message()));
  std::vector<std::string> command{self, "tune"};
  if (settings.compare) command.emplace_back("--compare");
  if (settings.fresh) command.emplace_back("--fresh");
  if (!settings.output.empty()) command.insert(command.end(), {"--output", settings.output});
  return launch_local({.ranks = ranks}, command);
}

int run(const Settings& settings) {
  if (const Status status = options::check(); !status.ok()) return fail(status);
  if (settings.ranks > 0) {
    const Result<bool> starts = starts_ranks("--ranks", settings.ranks);
    if (!starts.ok()) return fail(starts.status());
    if (starts.value()) return launch(settings, settings.ranks);
  } else if (!is_launched()) {
    const int exit_code = launch(settings, 2);
    const int crowd = 2 * topology::usable_cpus({});
    if (exit_code != 0 || crowd <= 2) return exit_code;
    if (crowd <= kMostCrowd) return launch(settings, crowd);
    fmt::print("ranks that share cores were not measured, which would be {} here; --ranks N (to {}) measures so many\n",
               crowd, kMostRanks);
    return exit_code;
  }
  const Status status = run_rank(settings);
  return status.ok() ? 0 : fail(status);
}

}  // namespace

void add_tune(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<Settings>();
  CLI::App* command =
      app.add_subcommand("tune", "Measure the costs that plans are chosen by, here or in the job it is started in");
  command
      ->add_option("--ranks", settings->ranks,
                   "start so many here; without it 2, and then (to 8 cores) two for each core")
      ->check(CLI::Range(2, kMostRanks));
  CLI::Option* output =
      command->add_option("--output", settings->output, "write this file; else the one that is found by itself");
  CLI::Option* compare =
      command->add_flag("--compare", settings->compare, "write nothing: hold the table against measurements")
          ->excludes(output);
  command->add_flag("--fresh", settings->fresh, "... hold costs against them that are measured in between")
      ->needs(compare);
  command->callback([settings, &exit_code] { exit_code = run(*settings); });
}

}  // namespace tutti::cli
