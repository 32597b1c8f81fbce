// A topology as JSON: what `tutti info --topology` prints and TUTTI_TOPOLOGY=file reads.
//
//   { "tutti_topology": 1,
//     "hosts": [ { "name": "alpha", "cpu_model": "...", "packages": 2,
//                  "numa_nodes": [ {"bytes": 274877906944, "distances": [10, 21]}, ... ],
//                  "cores": [ {"package": 0, "numa_node": 0, "cpus": "0,64"}, ... ],
//                  "caches": [ {"level": 2, "bytes": 1048576, "cpus": "0,64"}, ... ] } ],
//     "links": [ {"a": {"host": 0, "numa_node": 0}, "b": {"host": 0, "numa_node": 1},
//                 "gb_per_s": 40, "latency_us": 0.1} ],
//     "host_of_rank": [0, 0] }
//
// "distances", "caches", "links" and "host_of_rank" may be left out. A key that is not listed here is refused, so that
// a slip of the pen does not go unseen.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "topology/topology.h"

namespace tutti::topology {

inline constexpr std::size_t kMostTextBytes = std::size_t{8} << 20;

/// One line for each core, cache, NUMA node and link. parse(print(t)) == t for every t that check() passes and whose
/// names are UTF-8.
std::string print(const Topology& topology);

/// What it returns has passed check(). Takes time and memory in proportion to the text. Errors: invalid_argument,
/// naming the place in the text: "hosts[0].cores[2].cpus: ...".
Result<Topology> parse(std::string_view text);

}  // namespace tutti::topology
