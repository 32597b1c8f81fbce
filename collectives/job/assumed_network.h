// What a network would tell of itself that is not here to be asked: for hosts that one plans for and need not have.
#pragma once

#include "topology/topology.h"
#include "transport/wire/wire.h"

namespace tutti {

/// Of the network that TUTTI_NETWORK names; for "auto" of verbs where a link of some host is an RDMA device's, else of
/// TCP. Without devices and bandwidth, which the topology has.
transport::WireInfo assumed_network(const topology::Topology& topology);

}  // namespace tutti
