// The one file that asks the operating system about the machine: sysfs for CPUs, caches and NUMA nodes, the scheduler
// and the control groups for what this process may use of them.
//
// It reads sysfs itself rather than through hwloc: for what a Topology holds today hwloc reads the same files, and a
// library that is loaded into other people's programs has better not to bring a second hwloc along (MPI libraries bring
// one). A test compares the two where hwloc is installed.
//
// `root` stands before every path, for tests that bring their own /sys and /proc. Thread-safe.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>

#include "base/status.h"
#include "topology/topology.h"

namespace tutti::topology {

/// The host that this process runs on: its online CPUs. What the system does not tell is filled in plainly (one
/// package, one NUMA node, a core for each CPU, no caches). Errors: system, when not even the CPUs can be listed.
Result<Host> discover_host(const std::string& root = "");

/// What this process plans from: the file that the option TUTTI_TOPOLOGY names, else the host as discovered.
/// Errors: as parse() and discover_host(), with the file's name; system when the file cannot be read.
Result<Topology> topology_of_process();

/// How many CPUs these processes of this host have between them: the CPUs that at least one of them may run on, at most
/// what the control group of this process pays for (rounded down), at least 1. An empty list means this process.
///
/// All of them together, because launchers often bind each rank to a core of its own: then each sees one CPU, and yet
/// there is one for each.
int usable_cpus(std::span<const pid_t> processes, const std::string& root = "");

/// The NUMA node of a PCI device ("0000:10:00.0"); -1: the system does not tell.
int numa_node_of_pci(const std::string& bus_id, const std::string& root = "");

/// CPUs that the control groups of this process pay for (versions 1 and 2); 0: no limit.
double cpu_quota(const std::string& root = "");

}  // namespace tutti::topology
