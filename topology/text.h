// A topology as JSON: what `tutti topology --json FILE` writes and TUTTI_TOPOLOGY=file reads.
//
//   { "tutti_topology": 1,
//     "hosts": [ { "name": "alpha", "cpu_model": "...", "packages": 2, "core_gb_per_s": 10,
//                  "numa_nodes": [ {"bytes": 274877906944, "gb_per_s": 200, "distances": [10, 21]}, ... ],
//                  "cores": [ {"package": 0, "numa_node": 0, "cpus": "0,64"}, ... ],
//                  "caches": [ {"level": 2, "bytes": 1048576, "cpus": "0,64"}, ... ],
//                  "devices": [ {"kind": "pci_switch", "pci": "0000:3a:00.0", "numa_node": 0, "up_gb_per_s": 63},
//                               {"kind": "nic", "name": "ib0", "rdma": "mlx5_0", "parent": 0, "gb_per_s": 50},
//                               {"kind": "gpu", "parent": 0, "up_gb_per_s": 63, "gb_per_s": 3350}, ... ] } ],
//     "switches": [ {"name": "leaf0"} ],
//     "links": [ {"a": {"host": 0, "numa_node": 0}, "b": {"host": 0, "numa_node": 1},
//                 "gb_per_s": 40, "latency_us": 0.1},
//                {"a": {"host": 0, "device": 1}, "b": {"switch": 0}, "gb_per_s": 50, "latency_us": 1} ],
//     "ranks": [ {"host": 0, "device": 2}, {"host": 0, "core": 0}, {"host": 0} ] }
//
// A place is a host, or one of its "package", "numa_node", "core" and "device", or a "switch". Hosts that are
// containers or namespaces of one machine also have a "machine", the same words for each. May be left out, besides:
// "caches", "devices", "switches", "links", "ranks", "core_gb_per_s"; of a NUMA node all but "bytes"; of a device all
// but "kind". A key that is not listed here is refused, so that a typing mistake is found.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"
#include "topology/topology.h"

namespace tutti::topology {

inline constexpr std::size_t kMostTextBytes = std::size_t{8} << 20;

/// One line for each core, cache, NUMA node, device, link and rank. parse(print(t)) == t for every t that check()
/// passes and whose names are UTF-8.
std::string print(const Topology& topology);

/// Returns a topology that has passed check(). Takes time and memory in proportion to the text. Errors:
/// invalid_argument, naming the place in the text: "hosts[0].cores[2].cpus: ...".
Result<Topology> parse(std::string_view text);

/// Returns the first place where two topologies differ, in the words of the file, and both values:
/// "hosts[1] (beta).devices[0].gb_per_s: 12.5 and 1.25", "links[2] (host 0 to switch leaf0).latency_us: 1 and 2",
/// "hosts[0] (alpha).cores[4]: {...} and nothing". Empty if they are equal.
std::string first_difference(const Topology& one, const Topology& other);

}  // namespace tutti::topology
