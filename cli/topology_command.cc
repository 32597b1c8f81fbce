// tutti topology: what is known of this machine or of a file, what follows from it, and a drawing.
#include "cli/topology_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/options.h"
#include "base/parse.h"
#include "cli/commands.h"
#include "cli/topology_svg.h"
#include "collectives/communicator/communicator.h"
#include "collectives/create.h"
#include "launch/launcher.h"
#include "topology/discover.h"
#include "topology/job.h"
#include "topology/orders.h"
#include "topology/text.h"

namespace tutti::cli {
namespace {

using topology::Graph;
using topology::Partition;
using topology::Topology;

struct Settings {
  TopologySource source;
  std::string json;
  std::string svg;
};

int fail(const std::string& sentence) {
  fmt::print(stderr, "tutti topology: {}\n", sentence);
  return 2;
}

Status write(const std::string& path, const std::string& text) {
  if (path == "-") {
    fmt::print("{}", text);
    return {};
  }
  errno = 0;
  std::ofstream file(path);
  file << text;
  file.close();
  if (file) return {};
  return Status(Code::system, fmt::format("cannot write {}: {}", quote(path), std::strerror(errno != 0 ? errno : EIO)));
}

/// Ranks as ranges: "0-7 8-15".
std::string groups_of(const Partition& partition) {
  std::string text;
  for (const std::vector<int>& group : partition) {
    text += text.empty() ? "" : "  ";
    for (std::size_t i = 0; i < group.size();) {
      std::size_t end = i + 1;
      while (end < group.size() && group[end] == group[end - 1] + 1) ++end;
      text += i == 0 ? "" : ",";
      text += end - i > 1 ? fmt::format("{}-{}", group[i], group[end - 1]) : fmt::format("{}", group[i]);
      i = end;
    }
  }
  return text;
}

std::string caches_of(const topology::Host& host) {
  std::map<std::pair<int, std::uint64_t>, int> counts;
  for (const topology::Cache& cache : host.caches) ++counts[{cache.level, cache.bytes}];
  std::string text;
  for (const auto& [kind, count] : counts) {
    text += fmt::format("{}L{} {} x {}", text.empty() ? "" : ", ", kind.first, print_bytes(kind.second), count);
  }
  return text.empty() ? "not told" : text;
}

void print_route(const Graph& graph, const char* what, int from, int to) {
  const topology::Route& route = graph.route(from, to);
  fmt::print("{} (rank {} to rank {}): {:.4g} GB/s, {:.3g} us\n", what, from, to, route.gb_per_s, route.latency_us);
  std::string line = "   ";
  for (const int vertex : route.vertices) line += " > " + graph.name_of_vertex(vertex);
  fmt::print("{}\n", line);
}

void print_orders(const Graph& graph) {
  const topology::Groups groups = topology::groups(graph);
  fmt::print("\ngroups\n");
  for (std::size_t level = 0; level < groups.levels.size(); ++level) {
    const int depth = static_cast<int>(level);
    fmt::print("  {}: {}\n",
               depth < groups.hosts    ? "near hosts"
               : depth == groups.hosts ? "hosts"
                                       : "within hosts",
               groups_of(groups.levels[level]));
  }
  fmt::print("rings\n");
  for (const topology::Ring& ring : topology::rings(graph)) {
    fmt::print("  {}{}\n", ring.lane < 0 ? "" : fmt::format("lane {}: ", ring.lane), fmt::join(ring.order, " "));
  }
  const int rails = static_cast<int>(graph.nics_of(0).size());
  if (rails > 1 && graph.topology().hosts.size() > 1) {
    fmt::print("rails of host 0 by rank\n");
    for (int rank = 0; rank < graph.ranks(); ++rank) {
      if (graph.host_of(rank) != 0) continue;
      const topology::RailShare share = graph.shares().of(rank, rails);
      fmt::print("  rank {}: {}\n", rank,
                 share.count > 1 ? fmt::format("{} to {}", share.first, share.first + share.count - 1)
                                 : fmt::format("{}", share.first));
    }
  }
  fmt::print("\n");
  bool within = false;
  bool across = false;
  for (int rank = 1; rank < graph.ranks(); ++rank) {
    const bool same = graph.host_of(rank) == graph.host_of(0);
    if (same && !within) print_route(graph, "within a host", 0, rank);
    if (!same && !across) print_route(graph, "across hosts", 0, rank);
    (same ? within : across) = true;
  }
}

/// Prints the topology of a job, from which its ranks plan.
Result<Topology> topology_of_job(const TuttiCommunicator& job) {
  if (const Topology* hosts = job.job().topology(); hosts != nullptr) return *hosts;
  TUTTI_ASSIGN(Topology found, topology::topology_of_process());
  if (found.hosts.size() != 1 || !found.ranks.empty()) return found;
  const std::vector<int> all_here(static_cast<std::size_t>(job.size()), 0);
  return topology::of_job({{.found = std::move(found)}}, all_here);
}

Status write_json(const Topology& t, const std::string& path) {
  TUTTI_TRY(Graph::of(t).status());
  return write(path, topology::print(t));
}

/// Writes the job's topology on rank 0; all ranks of the job call it. A job of one rank is this host.
Result<bool> write_json_of_job(const std::string& path) {
  TUTTI_ASSIGN(const std::shared_ptr<CommunicatorInterface> made, create_from_environment({}));
  auto* job = dynamic_cast<TuttiCommunicator*>(made.get());
  if (job == nullptr) return false;
  Status status;
  if (job->rank() == 0) {
    const Result<Topology> t = topology_of_job(*job);
    status = t.ok() ? write_json(t.value(), path) : t.status();
  }
  // The others wait: a rank that leaves is missed.
  TUTTI_TRY(job->run({.collective = Collective::barrier}));
  TUTTI_TRY(status);
  return true;
}

int show(const Settings& settings) {
  if (const Status status = options::check(); !status.ok()) return fail(status.message());
  if (!settings.json.empty() && settings.source.is_this_host() && settings.source.options.ranks == 0 && is_launched()) {
    if (!settings.svg.empty()) return fail("--svg draws no job; expected --json alone, and --topology with that file");
    const Result<bool> written = write_json_of_job(settings.json);
    if (!written.ok()) return fail(written.status().message());
    if (written.value()) return 0;
  }
  const Result<Topology> found = topology_of(settings.source);
  if (!found.ok()) return fail(found.status().message());
  const Topology& t = found.value();
  const Result<Graph> graph = Graph::of(t);
  if (!graph.ok()) return fail(graph.status().message());
  if (!settings.json.empty()) {
    if (const Status status = write_json(t, settings.json); !status.ok()) return fail(status.message());
  }
  if (!settings.svg.empty()) {
    if (const Status status = write_svg(graph.value(), settings.svg); !status.ok()) return fail(status.message());
  }
  if (!settings.json.empty() || !settings.svg.empty()) return 0;
  print_topology(t);
  if (graph.value().ranks() > 1) print_orders(graph.value());
  return 0;
}

}  // namespace

void print_topology(const topology::Topology& topology) {
  for (std::size_t h = 0; h < topology.hosts.size(); ++h) {
    const topology::Host& host = topology.hosts[h];
    std::uint64_t memory = 0;
    for (const topology::NumaNode& node : host.numa_nodes) memory += node.bytes;
    fmt::print("  host {} {}: {}\n", h, host.name, host.cpu_model.empty() ? "CPU not named" : host.cpu_model);
    fmt::print("    {} package(s), {} NUMA node(s) with {:.1f} GiB, {} core(s), {} CPU(s)\n    caches: {}\n",
               host.packages, host.numa_nodes.size(), static_cast<double>(memory) / (1 << 30), host.cores.size(),
               topology::cpus_of(host), caches_of(host));
    for (const topology::Device& device : host.devices) {
      fmt::print("    {} {}{}{} at {}{}\n", topology::name_of(device.kind), device.name,
                 device.rdma.empty() || device.rdma == device.name ? "" : " " + device.rdma,
                 device.pci.empty() ? "" : " " + device.pci,
                 device.parent < 0
                     ? fmt::format("NUMA node {}", device.numa_node)
                     : fmt::format("PCI switch {}", host.devices[static_cast<std::size_t>(device.parent)].pci),
                 device.gb_per_s > 0 ? fmt::format(", {:.4g} GB/s", device.gb_per_s) : "");
    }
  }
  for (const topology::Link& link : topology.links) {
    fmt::print("  link {} to {}: {} GB/s, {} us\n", topology::name_of(topology, link.a),
               topology::name_of(topology, link.b), link.gb_per_s, link.latency_us);
  }
  for (std::size_t r = 0; r < topology.ranks.size(); ++r) {
    fmt::print("  rank {}: {}\n", r, topology::name_of(topology, topology.ranks[r]));
  }
}

void add_source(CLI::App& command, TopologySource& source) {
  CLI::Option* file =
      command.add_option("--topology", source.file, "a file; without one: TUTTI_TOPOLOGY, or this host");
  CLI::Option* machine =
      command.add_option("--machine", source.machine, "a known machine: nvswitch, pcie, ethernet, uneven");
  file->excludes(machine);
  command.add_option("--hosts", source.options.hosts, "so many of it")->needs(machine)->capture_default_str();
  command.add_option("--rails", source.options.rails, "with so many NICs each")->needs(machine)->capture_default_str();
  command.add_option("--ranks", source.options.ranks,
                     "ranks on each host of a known machine, or on this one; 0: the usual");
}

Result<Topology> topology_of(const TopologySource& source) {
  if (!source.machine.empty()) return topology::machine(source.machine, source.options);
  TUTTI_ASSIGN(Topology found,
               source.file.empty() ? topology::topology_of_process() : topology::read_file(source.file));
  if (source.options.ranks == 0) return found;
  if (found.hosts.size() != 1 || !found.ranks.empty()) {
    return invalid_argument("--ranks: the topology's file says where ranks are");
  }
  const std::vector<int> all_here(static_cast<std::size_t>(std::max(source.options.ranks, 0)), 0);
  return topology::of_job({{.found = found}}, all_here);
}

void add_topology(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<Settings>();
  CLI::App* command = app.add_subcommand(
      "topology", "Hosts, devices, links and ranks, and the orders that follow; as text, JSON or SVG");
  add_source(*command, settings->source);
  command->add_option("--json", settings->json,
                      "write it to this file, as one for TUTTI_TOPOLOGY; -: here. In a job: the job's, by rank 0");
  command->add_option("--svg", settings->svg, "draw it into this file (needs Graphviz)");
  command->callback([settings, &exit_code] { exit_code = show(*settings); });
}

}  // namespace tutti::cli
