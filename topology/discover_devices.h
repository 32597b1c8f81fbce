// The devices of a host, for discover.cc.
#pragma once

#include <string>

#include "topology/topology.h"

namespace tutti::topology {

/// Adds the PCI switches, NICs and GPUs that hwloc finds, in the order of its tree; nothing where hwloc was not there
/// when this was built or is not there now. `numa_numbers`: the system's number of each of host.numa_nodes. hwloc reads
/// this machine, or the file that its own variable HWLOC_XMLFILE names; `root` stands before what is read here.
void add_devices(Host& host, const CpuList& numa_numbers, const std::string& root);

/// Adds the NICs that have no place in the PCI tree: virtual ones (veth in a namespace or container, bonds) and
/// software RDMA devices (Soft-RoCE, which makes an RDMA device of any NIC). Not those that are down, that belong to a
/// bond or a bridge, bridges, or loopback. In the order of their names.
void add_virtual_nics(Host& host, const std::string& root);

/// Returns what the port of a NIC moves in a second; 0: unknown. Either name may be empty.
double port_gb_per_s(const std::string& root, const std::string& interface, const std::string& rdma);

}  // namespace tutti::topology
