// tutti selection: the rules by which an algorithm is chosen, and what they choose for a call.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/options.h"
#include "base/parse.h"
#include "cli/commands.h"
#include "cli/names.h"
#include "collectives/planner/selection.h"

namespace tutti::cli {
namespace {

struct Settings {
  std::string collective;
  std::string bytes = "1M";
  int ranks = 2;
  std::string algorithm;
  bool deterministic = false;
  bool in_place = false;
  bool plain = false;
  bool cross_memory = false;
};

int fail(const std::string& sentence) {
  fmt::print(stderr, "tutti selection: {}\n", sentence);
  return 2;
}

/// Prints the other algorithms, each with what speaks against it.
void print_candidates(const planner::Demand& demand, const planner::Choice& choice) {
  for (const algorithms::Algorithm& algorithm : algorithms::table()) {
    if (algorithm.collective != demand.collective) continue;
    const std::string why = planner::why_not(algorithm, demand);
    fmt::print("  {} {:<20} {}\n", &algorithm == choice.algorithm ? '*' : ' ', algorithm.name,
               why.empty() ? algorithm.summary : "cannot serve: it " + why);
  }
}

int choose(const Settings& settings, const planner::Selection& selection) {
  const auto collective = collective_of(settings.collective);
  if (!collective) return fail("no collective is called " + quote(settings.collective) + "; there are" + all_names());
  const Result<std::uint64_t> bytes = parse_bytes(settings.bytes);
  if (!bytes.ok()) return fail("--bytes: " + bytes.status().message());
  planner::Demand demand;
  demand.collective = *collective;
  demand.ranks = settings.ranks;
  demand.bytes = bytes.value();
  demand.deterministic = settings.deterministic || options::flag(Option::deterministic);
  demand.plain = settings.plain || settings.cross_memory;
  demand.buffers_open = !demand.plain || settings.cross_memory;
  demand.in_place = settings.in_place;
  demand.algorithm = settings.algorithm;
  if (settings.algorithm.empty()) demand.algorithm = preferred_for(demand);
  const Result<planner::Choice> choice = selection.choose(demand);
  if (!choice.ok()) return fail(choice.status().message());
  fmt::print("{} of {} bytes on {} ranks: {}, {}\n", settings.collective, demand.bytes, demand.ranks,
             choice.value().algorithm->name, choice.value().reason);
  print_candidates(demand, choice.value());
  return 0;
}

int show(const Settings& settings) {
  if (const Status status = options::check(); !status.ok()) return fail(status.message());
  const Result<planner::Selection> selection = planner::Selection::with_rules(options::text(Option::selection));
  if (!selection.ok()) return fail("TUTTI_SELECTION: " + selection.status().message());
  if (!settings.collective.empty()) return choose(settings, selection.value());
  fmt::print("# collective ranks bytes algorithm [plain|staged]; the last one that fits and can serve is taken\n{}",
             selection.value().print());
  return 0;
}

}  // namespace

void add_selection(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<Settings>();
  CLI::App* command =
      app.add_subcommand("selection", "The rules that choose an algorithm, and what they choose for a call");
  CLI::Option* collective =
      command->add_option("--collective", settings->collective, "choose for this one: all_reduce, ...");
  const auto of_a_call = [&](CLI::Option* option) { option->needs(collective); };
  of_a_call(
      command->add_option("--bytes", settings->bytes, "of the largest buffer: 64, 4K, 1M, ...")->capture_default_str());
  of_a_call(command->add_option("--ranks", settings->ranks)->check(CLI::Range(1, 1 << 20))->capture_default_str());
  of_a_call(command->add_option("--algorithm", settings->algorithm, "ask for it by name"));
  of_a_call(command->add_flag("--deterministic", settings->deterministic));
  of_a_call(command->add_flag("--in-place", settings->in_place));
  of_a_call(command->add_flag("--plain", settings->plain, "buffers that are not registered"));
  of_a_call(command->add_flag("--cross-memory", settings->cross_memory,
                              "such buffers, where the kernel's cross-memory access is used"));
  command->callback([settings, &exit_code] { exit_code = show(*settings); });
}

}  // namespace tutti::cli
