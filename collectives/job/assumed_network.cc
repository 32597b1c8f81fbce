#include "collectives/job/assumed_network.h"

#include <algorithm>
#include <cstddef>

#include "base/options.h"

namespace tutti {

transport::WireInfo assumed_network(const topology::Topology& topology) {
  const auto is_rdma = [&](const topology::Place& place) {
    if (place.kind != topology::PlaceKind::device) return false;
    const topology::Host& host = topology.hosts[static_cast<std::size_t>(place.host)];
    return !host.devices[static_cast<std::size_t>(place.index)].rdma.empty();
  };
  const bool rdma = std::any_of(topology.links.begin(), topology.links.end(),
                                [&](const topology::Link& link) { return is_rdma(link.a) || is_rdma(link.b); });
  // As each of them says when it is opened (tests/collectives/job/planner_factory_test.cc).
  transport::WireInfo info;
  info.name = options::text(Option::network);
  if (info.name == "auto") info.name = rdma ? "verbs" : "tcp";
  if (info.name == "verbs") {
    info.copied = 512;
    info.alpha_us = 2;
  } else if (info.name == "ucx") {
    info.copied = 2048;
    info.alpha_us = rdma ? 2 : 12;
  } else {
    info.copied = 4096;
    info.alpha_us = 9;
  }
  return info;
}

}  // namespace tutti
