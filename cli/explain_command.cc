// tutti explain: every way to serve a call on a topology, with its predicted time, and which is chosen.
#include <fmt/format.h>

#include <optional>

#include "base/options.h"
#include "base/parse.h"
#include "cli/commands.h"
#include "cli/names.h"
#include "cli/topology_command.h"
#include "collectives/communicator.h"
#include "collectives/fabric.h"
#include "collectives/planner/candidates.h"
#include "collectives/planner/table.h"
#include "topology/graph.h"
#include "transport/transport.h"

namespace tutti::cli {
namespace {

constexpr int kMostRanks = 1024;

struct Settings {
  TopologySource source;
  std::string collective;
  std::string bytes = "1M";
  int root = 0;
  bool deterministic = false;
  bool in_place = false;
};

int fail(const std::string& sentence) {
  fmt::print(stderr, "tutti explain: {}\n", sentence);
  return 2;
}

void print_candidates(const topology::Graph& graph, const std::vector<planner::Candidate>& all) {
  fmt::print("    {:<20} {:<42} {:>12} {:>9} {:>7} {:>12}  {}\n", "algorithm", "order", "time us", "GB/s", "rounds",
             "MB across", "busiest");
  bool first = true;
  for (const planner::Candidate& one : all) {
    if (!one.why_not.empty()) {
      fmt::print("    {:<20} cannot serve: it {}\n", one.algorithm->name, one.why_not);
      continue;
    }
    const planner::Estimate& estimate = one.estimate;
    if (one.is_bound()) {
      fmt::print("    {:<20} {:<42} at least some {:.0f} us\n", one.algorithm->name, one.order, estimate.us);
      continue;
    }
    const std::string busiest = estimate.bottleneck < 0
                                    ? std::string("nothing moves")
                                    : fmt::format("{} ({:.0f} %)", graph.name_of_resource(estimate.bottleneck),
                                                  100 * estimate.bottleneck_us / estimate.us);
    const double gb_per_s = static_cast<double>(one.options.bytes) / estimate.us / 1e3;
    fmt::print("  {} {:<20} {:<42} {:>12.2f} {:>9.3f} {:>7} {:>12.3f}  {}\n", first ? '*' : ' ', one.algorithm->name,
               one.order, estimate.us, gb_per_s, estimate.rounds, estimate.bytes_across / 1e6, busiest);
    first = false;
  }
}

using Found = std::optional<planner::FoundTable>;

/// The costs that were measured: those of this host where it is this that is asked about, else those that are named.
Result<Found> table_of(const TopologySource& source, const topology::Topology& topology) {
  if (!source.is_this_host() && options::text(Option::tuning).empty()) return Found();
  return planner::find_table(planner::table_name(topology.hosts.front(), ""));
}

std::string costs_in_words(const Found& found) {
  if (!found) return "costs are assumed; 'tutti tune' measures this host's";
  return fmt::format("costs as measured on {} by {} ranks, {} ({})", found->table.measured_on, found->table.ranks,
                     found->table.date, found->path);
}

int show(const Settings& settings) {
  if (const Status status = options::check(); !status.ok()) return fail(status.message());
  const auto collective = collective_of(settings.collective);
  if (!collective) return fail("no collective is called " + quote(settings.collective) + "; there are" + all_names());
  const Result<std::uint64_t> bytes = parse_bytes(settings.bytes);
  if (!bytes.ok()) return fail("--bytes: " + bytes.status().message());
  Result<topology::Topology> t = topology_of(settings.source);
  if (!t.ok()) return fail(t.status().message());
  const Result<Found> table = table_of(settings.source, t.value());
  if (!table.ok()) return fail(table.status().message());
  planner::CostOptions cost;
  topology::Assumed assumed;
  if (const Found& found = table.value(); found) {
    cost.constants = found->table.constants;
    assumed = planner::assumed_by(found->table);
    if (settings.source.is_this_host()) planner::apply(found->table, t.value());
  }
  const Result<topology::Graph> graph = topology::Graph::of(t.value(), assumed);
  if (!graph.ok()) return fail(graph.status().message());
  const int ranks = graph.value().ranks();
  if (ranks < 2 || ranks > kMostRanks) {
    return fail(fmt::format("the topology says where {} ranks are; expected 2 to {}", ranks, kMostRanks));
  }
  if (settings.root < 0 || settings.root >= ranks) {
    return fail(fmt::format("--root is {}; the topology has {} ranks", settings.root, ranks));
  }
  planner::Demand demand;
  demand.collective = *collective;
  demand.ranks = ranks;
  demand.bytes = bytes.value();
  demand.deterministic = settings.deterministic;
  demand.in_place = settings.in_place;
  demand.lanes = kLanes;
  const bool far = t.value().hosts.size() > 1;
  const auto sizes = TuttiCommunicator::window_sizes(ranks, {}, far ? ranks - 1 : 0);
  if (!sizes.ok()) return fail(sizes.status().message());
  cost.express = sizes.value().express_bytes();
  cost.scratch_half = sizes.value().scratch_half;
  if (far) cost.slice = kFarSlice;
  const std::vector<planner::Candidate> all =
      planner::candidates(demand, graph.value(), has_root(*collective) ? settings.root : 0, cost);
  fmt::print("{} of {} bytes on {} ranks of {} host(s), by the cost model\n", settings.collective, demand.bytes, ranks,
             t.value().hosts.size());
  fmt::print("{}\n", costs_in_words(table.value()));
  print_candidates(graph.value(), all);
  return 0;
}

}  // namespace

void add_explain(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<Settings>();
  CLI::App* command = app.add_subcommand("explain", "Every way to serve a call on a topology, with predicted times");
  command->add_option("--collective", settings->collective, "all_reduce, all_gather, ...")->required();
  command->add_option("--bytes", settings->bytes, "of the largest buffer: 64, 4K, 1M, ...")->capture_default_str();
  command->add_option("--root", settings->root, "of rooted collectives")->capture_default_str();
  command->add_flag("--deterministic", settings->deterministic);
  command->add_flag("--in-place", settings->in_place);
  add_source(*command, settings->source);
  command->callback([settings, &exit_code] { exit_code = show(*settings); });
}

}  // namespace tutti::cli
