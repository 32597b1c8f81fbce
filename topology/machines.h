// Descriptions of known machines, for tests and for `tutti topology --machine` and `tutti explain --machine`.
//
//   TUTTI_ASSIGN(const Topology t, machine("nvswitch", {.hosts = 64, .rails = 8}));
//
//   nvswitch   8 GPUs joined by NVSwitch (450 GB/s each way), two sockets, four PCIe 5.0 switches, NICs of 50 GB/s
//   pcie       8 GPUs on PCIe 4.0, two to a switch, two sockets, NICs of 25 GB/s
//   ethernet   16 cores in one socket, one NIC of 3.125 GB/s, TCP; every host at one switch
//   uneven     hosts of 3, 1 and 2 ranks in turn, on cores; every third has a NIC of half the speed
// NIC k of every host is at switch k ("rail k"); where there are several, a spine of the same bandwidth joins them.
// Figures are the vendors' nominal ones; latencies are round numbers of their order. None of them was measured.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "topology/topology.h"

namespace tutti::topology {

struct MachineOptions {
  int hosts = 1;  // 1 to 1024
  int rails = 1;  // NICs of each host: 1, 2, 4 or 8 (ethernet and uneven: 1)
  int ranks = 0;  // on each host, one for each GPU or core; 0: one for each GPU, or one (uneven: 3, 1, 2)
};

/// Errors: invalid_argument if there is no such machine or an option is out of bounds.
Result<Topology> machine(std::string_view name, const MachineOptions& options);
/// Returns the names that machine() knows.
const std::vector<std::string>& machine_names();

}  // namespace tutti::topology
