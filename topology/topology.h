// Where ranks are and what lies between them, as data: hosts with their packages, NUMA nodes, caches and cores, and the
// links between those places. Filled in by discovery (discover.h) or from a file (text.h); nothing here asks the
// system.
//
// Thread-safe: plain values.
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
  CpuList cpus;  // who shares it
  friend bool operator==(const Cache&, const Cache&) = default;
};

struct NumaNode {
  std::uint64_t bytes = 0;
  std::vector<int> distances;  // to each NUMA node of the host, itself (10) included; relative, from the firmware
  friend bool operator==(const NumaNode&, const NumaNode&) = default;
};

struct Host {
  std::string name;
  std::string cpu_model;
  int packages = 1;
  std::vector<NumaNode> numa_nodes;  // at least one; may have no cores (memory on a card)
  std::vector<Core> cores;           // at least one
  std::vector<Cache> caches;
  friend bool operator==(const Host&, const Host&) = default;
};

enum class PlaceKind : std::uint8_t { host, package, numa_node };

/// A host, or a part of one.
struct Place {
  int host = 0;  // index in Topology::hosts
  PlaceKind kind = PlaceKind::host;
  int index = 0;  // of the package or NUMA node; 0 for a host
  friend bool operator==(const Place&, const Place&) = default;
};

/// What lies between two places, in both directions alike.
struct Link {
  Place a;
  Place b;
  double gb_per_s = 0;    // 10^9 bytes a second, each way
  double latency_us = 0;  // of a small message
  friend bool operator==(const Link&, const Link&) = default;
};

struct Topology {
  std::vector<Host> hosts;        // at least one
  std::vector<Link> links;        // those that are known
  std::vector<int> host_of_rank;  // index in `hosts`; empty: not said
  friend bool operator==(const Topology&, const Topology&) = default;
};

/// Whether every index is in bounds, every number is possible, and no CPU lies in two cores or in two caches of a
/// level. Errors: invalid_argument, naming the place: "hosts[1].cores[3]: package is 2; the host has 2".
Status check(const Topology& topology);

/// All hardware threads of a host.
int cpus_of(const Host& host);
/// Bytes of the smallest cache of that level; 0: none is known.
std::uint64_t smallest_cache(const Host& host, int level);
/// Bytes of the host's largest caches that each of `ranks` ranks, spread evenly over it, has; 0: none is known.
std::uint64_t cache_share(const Host& host, int ranks);

}  // namespace tutti::topology
