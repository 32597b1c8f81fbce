// tutti explain: every way to serve a call on a topology, with its predicted time, and which a job would choose.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/options.h"
#include "base/parse.h"
#include "cli/commands.h"
#include "cli/names.h"
#include "cli/topology_command.h"
#include "collectives/calls/window_sizing.h"
#include "collectives/communicator/communicator.h"
#include "collectives/job/assumed_network.h"
#include "collectives/job/job_context.h"
#include "collectives/job/planner_factory.h"
#include "collectives/planner/candidates.h"
#include "collectives/planner/planner.h"
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

/// A '*' stands before what is chosen: of several orders the best, on one host always that of the ranks.
void print_candidates(const topology::Graph& graph, const std::vector<planner::Candidate>& all,
                      const algorithms::Algorithm* chosen) {
  const bool many_hosts = graph.topology().hosts.size() > 1;
  fmt::print("    {:<20} {:<42} {:>12} {:>9} {:>7} {:>12}  {}\n", "algorithm", "order", "time us", "GB/s", "rounds",
             "MB across", "busiest");
  bool is_marked = false;
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
    const bool marks = !is_marked && one.algorithm == chosen && (many_hosts || one.order == "rank order");
    is_marked = is_marked || marks;
    const double gb_per_s = static_cast<double>(one.options.bytes) / estimate.us / 1e3;
    fmt::print("  {} {:<20} {:<42} {:>12.2f} {:>9.3f} {:>7} {:>12.3f}  {}\n", marks ? '*' : ' ', one.algorithm->name,
               one.order, estimate.us, gb_per_s, estimate.rounds, estimate.bytes_across / 1e6, busiest);
  }
}

using Found = std::optional<planner::FoundTable>;

/// The costs that were measured: those of this host where it is this that is asked about, else those that are named.
Result<Found> table_of(const TopologySource& source, const topology::Topology& topology) {
  const bool is_this_host = source.is_this_host() && topology.hosts.size() == 1;
  if (!is_this_host && options::text(Option::tuning).empty()) return Found();
  return planner::find_table(planner::table_name(topology.hosts.front(), ""));
}

std::string costs_in_words(const Found& found, const transport::WireInfo* wire, const planner::Constants& constants) {
  const std::string network = wire == nullptr
                                  ? ""
                                  : fmt::format("; between hosts as by {}: a message takes {:.3g} us at either end",
                                                wire->name, constants.message_us);
  if (!found) return "costs are assumed; 'tutti tune' measures this host's" + network;
  return fmt::format("costs as measured on {} by {} ranks, {} ({}){}", found->table.measured_on, found->table.ranks,
                     found->table.date, found->path, network);
}

/// "1000 bytes", "1000 bytes (as 1024, the next power of two)".
std::string in_words(std::uint64_t bytes, std::size_t priced) {
  return priced == bytes ? fmt::format("{} bytes", bytes)
                         : fmt::format("{} bytes (as {}, the next power of two)", bytes, priced);
}

int explain(const Settings& settings, Collective collective, std::uint64_t bytes, topology::Topology t) {
  const bool many_hosts = t.hosts.size() > 1;
  const int ranks = static_cast<int>(t.ranks.size());
  const Result<Found> table = table_of(settings.source, t);
  if (!table.ok()) return fail(table.status().message());
  const planner::Table* measured = table.value() ? &table.value()->table : nullptr;
  const bool from_file = !settings.source.is_this_host() || !options::text(Option::topology).empty();
  // What a file says of the network stands, as in a job.
  if (measured != nullptr && !from_file) planner::apply(*measured, t);
  const transport::WireInfo wire = assumed_network(t);
  const auto sizes = window_sizes(ranks, {}, many_hosts ? ranks - 1 : 0);
  if (!sizes.ok()) return fail(sizes.status().message());
  const planner::CostOptions cost = costs_of(t, measured, many_hosts ? &wire : nullptr, sizes.value());
  Result<topology::Graph> graph =
      topology::Graph::of(t, measured != nullptr ? planner::assumed_by(*measured) : topology::Assumed());
  if (!graph.ok()) return fail(graph.status().message());
  planner::Demand demand;
  demand.collective = collective;
  demand.ranks = ranks;
  demand.bytes = bytes;
  demand.deterministic = settings.deterministic || options::flag(Option::deterministic);
  demand.load_store = demand.buffers_open = !many_hosts;
  demand.in_place = settings.in_place;
  demand.lanes = kLanes;
  demand.algorithm = preferred_for(demand);
  const int root = has_root(collective) ? settings.root : 0;
  Result<planner::Selection> selection = planner::Selection::with_rules(options::text(Option::selection));
  if (!selection.ok()) return fail("TUTTI_SELECTION: " + selection.status().message());
  auto asked = many_hosts ? std::make_unique<const topology::Graph>(graph.value()) : nullptr;
  planner::Planner planner(selection.take(), topology::host_of_rank(t), std::move(asked), cost);
  const Result<planner::Choice> choice = planner.choose(demand, root);
  if (!choice.ok()) return fail(choice.status().message());
  if (many_hosts) demand.bytes = planner::size_class(demand.bytes);
  const std::vector<planner::Candidate> all = planner::candidates(demand, graph.value(), root, cost);
  fmt::print("{} of {} on {} ranks of {} host(s), by the cost model\n", settings.collective,
             in_words(bytes, demand.bytes), ranks, t.hosts.size());
  fmt::print("{}\n", costs_in_words(table.value(), many_hosts ? &wire : nullptr, cost.constants));
  // On one host the model is not asked.
  fmt::print("a job takes {}: {}{}\n", choice.value().algorithm->name, choice.value().reason,
             many_hosts || !demand.algorithm.empty() ? "" : ", for registered buffers");
  print_candidates(graph.value(), all, choice.value().algorithm);
  return 0;
}

int show(const Settings& settings) {
  if (const Status status = options::check(); !status.ok()) return fail(status.message());
  const auto collective = collective_of(settings.collective);
  if (!collective) return fail("no collective is called " + quote(settings.collective) + "; there are" + all_names());
  const Result<std::uint64_t> bytes = parse_bytes(settings.bytes);
  if (!bytes.ok()) return fail("--bytes: " + bytes.status().message());
  Result<topology::Topology> t = topology_of(settings.source);
  if (!t.ok()) return fail(t.status().message());
  const int ranks = static_cast<int>(t.value().ranks.size());
  if (ranks == 0) {
    return fail(t.value().hosts.size() == 1
                    ? "the topology does not say where ranks are; expected --ranks N, for so many on this one host"
                    : "the topology does not say where ranks are; expected them in its file");
  }
  if (ranks < 2 || ranks > kMostRanks) {
    return fail(fmt::format("the topology says where {} ranks are; expected 2 to {}", ranks, kMostRanks));
  }
  if (settings.root < 0 || settings.root >= ranks) {
    return fail(fmt::format("--root is {}; the topology has {} ranks", settings.root, ranks));
  }
  return explain(settings, *collective, bytes.value(), t.take());
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
