// The devices of a host, for discover.cc.
#pragma once

#include <string>

#include "topology/topology.h"

namespace tutti::topology {

/// Adds the PCI switches, NICs and GPUs that hwloc finds, in the order of its tree. Adds nothing if hwloc was missing
/// in the build or is missing now. `numa_numbers`: the system's number of each of host.numa_nodes. hwloc reads this
/// machine or the file in its variable HWLOC_XMLFILE; `root` is the prefix of the paths that are read here.
void add_devices(Host& host, const CpuList& numa_numbers, const std::string& root);

/// Adds the NICs that have no place in the PCI tree: virtual ones (veth in a namespace or container, bonds) and
/// software RDMA devices (Soft-RoCE, which makes an RDMA device of any NIC), in the order of their names. Leaves out
/// NICs that are down or belong to a bond or a bridge, bridges, and loopback.
void add_virtual_nics(Host& host, const std::string& root);

/// Returns the GB/s of a NIC's port; 0: unknown. Either name may be empty.
double port_gb_per_s(const std::string& root, const std::string& interface, const std::string& rdma);

}  // namespace tutti::topology
