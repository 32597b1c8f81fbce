// The places of ranks and the links between them, as data: hosts with their packages, NUMA nodes, caches, cores and
// devices (PCI switches, NICs, GPUs, NVSwitches), the switches of the network, the links between those places, and the
// place of each rank. Filled in by discovery (discover.h), from a file (text.h) or by the builder of known machines
// (machines.h); nothing here asks the system. graph.h finds routes in it.
//
// Bandwidth is in GB/s (10^9 bytes a second), each way; latency in us. 0 means: not known.
//
// Threads: any; plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tutti::topology {

/// CPU numbers as the operating system gives them; ascending, none twice.
using CpuList = std::vector<int>;

struct Core {
  int package = 0;    // below Host::packages
  int numa_node = 0;  // index in Host::numa_nodes
  CpuList cpus;       // its hardware threads
  friend bool operator==(const Core&, const Core&) = default;
};

/// A data or unified cache.
struct Cache {
  int level = 1;
  std::uint64_t bytes = 0;
  CpuList cpus;  // that share it
  friend bool operator==(const Cache&, const Cache&) = default;
};

struct NumaNode {
  std::uint64_t bytes = 0;
  std::vector<int> distances;  // to each NUMA node of the host, itself (10) included; relative, from the firmware
  double gb_per_s = 0;         // of its memory
  friend bool operator==(const NumaNode&, const NumaNode&) = default;
};

enum class DeviceKind : std::uint8_t { pci_switch, nic, gpu, nvswitch };

/// A device of a host. `parent` holds the PCI tree: a device below a switch names it.
struct Device {
  DeviceKind kind = DeviceKind::nic;
  std::string name;        // "eth0", "NVIDIA H100 80GB HBM3"
  std::string pci;         // "0000:3b:00.0"; empty: it has no such address
  std::string rdma;        // of a NIC: its RDMA device, "mlx5_0"; empty: it has none
  int numa_node = 0;       // index in Host::numa_nodes
  int parent = -1;         // index in Host::devices of the PCI switch above it; -1: the NUMA node
  double up_gb_per_s = 0;  // of the link to there
  double up_latency_us = 0;
  double gb_per_s = 0;      // its own: a GPU's memory, a NIC's port
  std::uint64_t bytes = 0;  // a GPU's memory
  friend bool operator==(const Device&, const Device&) = default;
};

struct Host {
  std::string name;
  std::string machine;  // hosts with the same text are containers or namespaces of one machine and share its
                        // cores; empty: a machine of its own
  std::string cpu_model;
  int packages = 1;
  std::vector<NumaNode> numa_nodes;  // at least one; may have no cores (memory on a card)
  std::vector<Core> cores;           // at least one
  std::vector<Cache> caches;
  std::vector<Device> devices;  // an NVSwitch here stands for all of the host's
  double core_gb_per_s = 0;     // what one core copies
  friend bool operator==(const Host&, const Host&) = default;
};

/// A switch of the network, outside of all hosts.
struct Switch {
  std::string name;
  friend bool operator==(const Switch&, const Switch&) = default;
};

enum class PlaceKind : std::uint8_t { host, package, numa_node, core, device, network };

/// A host, a part of one, or a switch of the network.
struct Place {
  int host = 0;  // index in Topology::hosts; 0 for a switch
  PlaceKind kind = PlaceKind::host;
  int index = 0;  // of the package, NUMA node, core, device or switch; 0 for a host
  friend bool operator==(const Place&, const Place&) = default;
};

/// A link between two places, with the same figures in both directions.
struct Link {
  Place a;
  Place b;
  double gb_per_s = 0;    // 10^9 bytes a second, each way
  double latency_us = 0;  // of a small message
  friend bool operator==(const Link&, const Link&) = default;
};

struct Topology {
  std::vector<Host> hosts;  // at least one
  std::vector<Switch> switches;
  std::vector<Link> links;   // the known ones, in addition to those from devices to their parents
  std::vector<Place> ranks;  // of each rank; not a switch; empty: unknown
  friend bool operator==(const Topology&, const Topology&) = default;
};

/// Checks that every index is in bounds, every number is possible, and no CPU is in two cores or in two caches of a
/// level. Errors: invalid_argument, naming the place: "hosts[1].cores[3]: package is 2; the host has 2".
Status check(const Topology& topology);

/// "host 1", "host 0 gpu 3 (NVIDIA H100)", "switch rail0".
std::string name_of(const Topology& topology, const Place& place);
const char* name_of(DeviceKind kind);
/// Returns the index in `hosts` of each rank; empty: unknown.
std::vector<int> host_of_rank(const Topology& topology);
/// Returns this place as the first host of its machine has it: equal for the same place seen by hosts of one machine.
Place on_machine(const Topology& topology, Place place);
/// Returns true if two ranks are on one core.
bool ranks_share_cores(const Topology& topology);

/// The assumed network if nothing is known of it: 10 Gbit/s Ethernet with TCP.
inline constexpr double kNetworkGbPerS = 1.25;
inline constexpr double kNetworkLatencyUs = 10;  // from a host to the switch

/// Returns all hardware threads of a host.
int cpus_of(const Host& host);
/// Returns the bytes of the smallest cache of that level; 0: none is known.
std::uint64_t smallest_cache(const Host& host, int level);
/// Returns each rank's share of the host's largest caches if `ranks` ranks are spread evenly; 0: none is known.
std::uint64_t cache_share(const Host& host, int ranks);

}  // namespace tutti::topology
