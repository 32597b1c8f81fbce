// What the subcommands that look at topologies share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/status.h"
#include "topology/machines.h"
#include "topology/topology.h"

namespace tutti::cli {

/// The source of a topology: a file, a known machine, or else what this process plans from, with ranks on its cores
/// where some are asked for.
struct TopologySource {
  std::string file;
  std::string machine;
  topology::MachineOptions options;
  /// Returns true if it is the topology of this process.
  bool is_this_host() const { return file.empty() && machine.empty(); }
};

/// Adds --topology, --machine, --hosts, --rails and --ranks.
void add_source(CLI::App& command, TopologySource& source);
Result<topology::Topology> topology_of(const TopologySource& source);

/// Hosts, devices, links and ranks, to standard output.
void print_topology(const topology::Topology& topology);

}  // namespace tutti::cli
