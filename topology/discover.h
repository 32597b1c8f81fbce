// Asks the operating system about the machine: sysfs for CPUs, caches and NUMA nodes, hwloc for the PCI tree
// (discover_devices.cc; without hwloc a host has the NICs of sysfs alone), and the scheduler and the control groups for
// the CPUs that this process may use.
//
// CPUs, caches and NUMA nodes are read from sysfs itself, since every communicator needs them quickly. hwloc reads the
// same files; a test compares the two if hwloc is installed.
//
// `root`: the prefix of every path, for tests that have their own /sys and /proc. Threads: any.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>

#include "base/status.h"
#include "topology/topology.h"

namespace tutti::topology {

/// Returns the host of this process with its online CPUs. Defaults fill in what the system does not give: one package,
/// one NUMA node, a core for each CPU, no caches. Errors: system if even the CPUs cannot be listed.
Result<Host> discover_host(const std::string& root = "");

/// Returns a topology of this host with its devices. Takes some ten milliseconds if hwloc is installed.
/// Errors: as discover_host().
Result<Topology> discover(const std::string& root = "");

/// Reads a topology from a file. Errors: as parse(), with the file's name; system if the file cannot be read.
Result<Topology> read_file(const std::string& path);

/// Returns the topology for the plans of this process: the file in the option TUTTI_TOPOLOGY, else the host as
/// discovered with its GPUs from the CUDA driver and NVML (gpus.h; this initialises the driver if there is one).
/// Errors: as read_file() and discover().
Result<Topology> topology_of_process();

/// Returns the number of CPUs that these processes of this host have together: those that at least one of them may run
/// on. It is at most the limit of this process's control group (rounded down), and at least 1. An empty list means this
/// process. Launchers often bind each rank to a core of its own, so one process alone would see one CPU.
int usable_cpus(std::span<const pid_t> processes, const std::string& root = "");

/// Returns the CPUs to which this thread is bound, perhaps by its launcher. Empty: it may run on all online CPUs, or
/// the system call fails.
CpuList bound_cpus();

/// Returns the NUMA node of a PCI device ("0000:10:00.0"); -1: unknown.
int numa_node_of_pci(const std::string& bus_id, const std::string& root = "");

/// Returns the limit of CPUs of this process's control groups (versions 1 and 2); 0: no limit.
double cpu_quota(const std::string& root = "");

}  // namespace tutti::topology
