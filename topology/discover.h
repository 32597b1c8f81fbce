// The one part that asks the operating system about the machine: sysfs for CPUs, caches and NUMA nodes, hwloc for the
// PCI tree (discover_devices.cc; without hwloc a host has the NICs of sysfs alone), the scheduler and the control
// groups for what this process may use of them.
//
// CPUs, caches and NUMA nodes are read from sysfs itself: hwloc reads the same files, and every communicator wants them
// in a moment. A test compares the two where hwloc is installed.
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

/// Returns the host with its devices, as a topology of this one host. Takes some ten milliseconds where hwloc is
/// installed. Errors: as discover_host().
Result<Topology> discover(const std::string& root = "");

/// A topology from a file. Errors: as parse(), with the file's name; system when the file cannot be read.
Result<Topology> read_file(const std::string& path);

/// Returns the topology that this process plans from: the file that the option TUTTI_TOPOLOGY names, else the host as
/// discovered with what the CUDA driver and NVML tell of its GPUs (gpus.h; where there is a driver, that initialises
/// it). Errors: as read_file() and discover().
Result<Topology> topology_of_process();

/// How many CPUs these processes of this host have between them: the CPUs that at least one of them may run on, at most
/// what the control group of this process pays for (rounded down), at least 1. An empty list means this process.
///
/// All of them together, because launchers often bind each rank to a core of its own: then each sees one CPU, and yet
/// there is one for each.
int usable_cpus(std::span<const pid_t> processes, const std::string& root = "");

/// The CPUs that this thread is bound to, by its launcher perhaps. Empty: it may run on all that are online, or the
/// system does not tell.
CpuList bound_cpus();

/// The NUMA node of a PCI device ("0000:10:00.0"); -1: the system does not tell.
int numa_node_of_pci(const std::string& bus_id, const std::string& root = "");

/// CPUs that the control groups of this process pay for (versions 1 and 2); 0: no limit.
double cpu_quota(const std::string& root = "");

}  // namespace tutti::topology
