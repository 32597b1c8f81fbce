// The assumed properties of a network that cannot be asked: for hosts that one plans for and need not have.
#pragma once

#include "topology/topology.h"
#include "transport/wire/wire.h"

namespace tutti {

/// Returns the network that TUTTI_NETWORK names; for "auto" verbs if a link of some host is an RDMA device's, else TCP.
/// Without devices and bandwidth, which the topology has.
transport::WireInfo assumed_network(const topology::Topology& topology);

}  // namespace tutti
