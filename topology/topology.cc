#include "topology/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

namespace tutti::topology {

namespace {

constexpr int kMostLevels = 8;

Status wrong(const std::string& where, const std::string& what) { return invalid_argument(where + ": " + what); }

Status check_index(const std::string& where, const char* name, int index, std::size_t size, const char* of) {
  if (index >= 0 && static_cast<std::size_t>(index) < size) return {};
  return wrong(where, fmt::format("{} is {}; {} has {}", name, index, of, size));
}

/// Ascending, and disjoint from `taken`, to which it is added.
Status check_cpus(const std::string& where, const CpuList& cpus, std::set<int>& taken) {
  if (cpus.empty()) return wrong(where, "has no CPUs");
  if (cpus.front() < 0) return wrong(where, fmt::format("has CPU {}", cpus.front()));
  for (std::size_t i = 0; i < cpus.size(); ++i) {
    if (i > 0 && cpus[i] <= cpus[i - 1]) return wrong(where, "its CPUs are not in ascending order");
    if (!taken.insert(cpus[i]).second) return wrong(where, fmt::format("CPU {} is in another one already", cpus[i]));
  }
  return {};
}

bool is_possible(double number) { return std::isfinite(number) && number >= 0; }

Status check_number(const std::string& where, const char* name, double number) {
  if (is_possible(number)) return {};
  return wrong(where, fmt::format("{} is {}; expected 0 or more", name, number));
}

Status check_device(const std::string& where, const Host& host, std::size_t index) {
  const Device& device = host.devices[index];
  TUTTI_TRY(check_index(where, "numa_node", device.numa_node, host.numa_nodes.size(), "the host"));
  if (device.parent != -1) {
    // A parent comes before its children, so there are no circles.
    TUTTI_TRY(check_index(where, "parent", device.parent, index, "what comes before it"));
    const Device& parent = host.devices[static_cast<std::size_t>(device.parent)];
    if (parent.kind != DeviceKind::pci_switch) {
      return wrong(where, fmt::format("its parent is a {}; expected a pci_switch", name_of(parent.kind)));
    }
    if (parent.numa_node != device.numa_node) return wrong(where, "is at another NUMA node than its parent");
  }
  if (device.kind != DeviceKind::nic && !device.rdma.empty()) return wrong(where, "has rdma, and is no nic");
  TUTTI_TRY(check_number(where, "up_gb_per_s", device.up_gb_per_s));
  TUTTI_TRY(check_number(where, "up_latency_us", device.up_latency_us));
  return check_number(where, "gb_per_s", device.gb_per_s);
}

Status check_host(const std::string& where, const Host& host) {
  if (host.packages < 1) return wrong(where, fmt::format("has {} packages", host.packages));
  if (host.numa_nodes.empty()) return wrong(where, "has no NUMA nodes");
  if (host.cores.empty()) return wrong(where, "has no cores");
  for (std::size_t i = 0; i < host.numa_nodes.size(); ++i) {
    const std::string here = fmt::format("{}.numa_nodes[{}]", where, i);
    TUTTI_TRY(check_number(here, "gb_per_s", host.numa_nodes[i].gb_per_s));
    const std::vector<int>& distances = host.numa_nodes[i].distances;
    if (!distances.empty() && distances.size() != host.numa_nodes.size()) {
      return wrong(
          here, fmt::format("has {} distances; the host has {} NUMA nodes", distances.size(), host.numa_nodes.size()));
    }
    if (std::any_of(distances.begin(), distances.end(), [](int distance) { return distance < 0; })) {
      return wrong(here, "a distance is negative");
    }
  }
  std::set<int> in_cores;
  for (std::size_t i = 0; i < host.cores.size(); ++i) {
    const Core& core = host.cores[i];
    const std::string here = fmt::format("{}.cores[{}]", where, i);
    TUTTI_TRY(check_index(here, "package", core.package, static_cast<std::size_t>(host.packages), "the host"));
    TUTTI_TRY(check_index(here, "numa_node", core.numa_node, host.numa_nodes.size(), "the host"));
    TUTTI_TRY(check_cpus(here, core.cpus, in_cores));
  }
  std::map<int, std::set<int>> in_caches;  // by level
  for (std::size_t i = 0; i < host.caches.size(); ++i) {
    const Cache& cache = host.caches[i];
    const std::string here = fmt::format("{}.caches[{}]", where, i);
    if (cache.level < 1 || cache.level > kMostLevels) {
      return wrong(here, fmt::format("level is {}; expected 1 to {}", cache.level, kMostLevels));
    }
    TUTTI_TRY(check_cpus(here, cache.cpus, in_caches[cache.level]));
    for (const int cpu : cache.cpus) {
      if (!in_cores.contains(cpu)) return wrong(here, fmt::format("CPU {} is in no core", cpu));
    }
  }
  for (std::size_t i = 0; i < host.devices.size(); ++i) {
    TUTTI_TRY(check_device(fmt::format("{}.devices[{}]", where, i), host, i));
  }
  return check_number(where, "core_gb_per_s", host.core_gb_per_s);
}

Status check_place(const std::string& where, const Place& place, const Topology& topology) {
  if (place.kind == PlaceKind::network) {
    return check_index(where, "switch", place.index, topology.switches.size(), "the topology");
  }
  TUTTI_TRY(check_index(where, "host", place.host, topology.hosts.size(), "the topology"));
  const Host& host = topology.hosts[static_cast<std::size_t>(place.host)];
  switch (place.kind) {
    case PlaceKind::host: return check_index(where, "index", place.index, 1, "a host as a whole");
    case PlaceKind::package:
      return check_index(where, "package", place.index, static_cast<std::size_t>(host.packages), "the host");
    case PlaceKind::numa_node: return check_index(where, "numa_node", place.index, host.numa_nodes.size(), "the host");
    case PlaceKind::core: return check_index(where, "core", place.index, host.cores.size(), "the host");
    case PlaceKind::device: return check_index(where, "device", place.index, host.devices.size(), "the host");
    case PlaceKind::network: break;
  }
  return wrong(where, "is of an unknown kind");
}

}  // namespace

Status check(const Topology& topology) {
  if (topology.hosts.empty()) return wrong("hosts", "there are none");
  for (std::size_t i = 0; i < topology.hosts.size(); ++i) {
    TUTTI_TRY(check_host(fmt::format("hosts[{}]", i), topology.hosts[i]));
  }
  for (std::size_t i = 0; i < topology.links.size(); ++i) {
    const Link& link = topology.links[i];
    const std::string here = fmt::format("links[{}]", i);
    TUTTI_TRY(check_place(here + ".a", link.a, topology));
    TUTTI_TRY(check_place(here + ".b", link.b, topology));
    if (link.a == link.b) return wrong(here, "both ends are the same place");
    if (!is_possible(link.gb_per_s) || link.gb_per_s == 0) {
      return wrong(here, fmt::format("gb_per_s is {}; expected more than 0", link.gb_per_s));
    }
    if (!is_possible(link.latency_us)) return wrong(here, fmt::format("latency_us is {}", link.latency_us));
  }
  for (std::size_t i = 0; i < topology.ranks.size(); ++i) {
    const Place& place = topology.ranks[i];
    const std::string here = fmt::format("ranks[{}]", i);
    TUTTI_TRY(check_place(here, place, topology));
    if (place.kind == PlaceKind::network) return wrong(here, "is on a switch of the network");
    if (place.kind != PlaceKind::device) continue;
    const Host& host = topology.hosts[static_cast<std::size_t>(place.host)];
    const DeviceKind kind = host.devices[static_cast<std::size_t>(place.index)].kind;
    if (kind != DeviceKind::gpu) return wrong(here, fmt::format("is on a {}; expected a gpu", name_of(kind)));
  }
  return {};
}

const char* name_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::pci_switch: return "pci_switch";
    case DeviceKind::nic: return "nic";
    case DeviceKind::gpu: return "gpu";
    case DeviceKind::nvswitch: return "nvswitch";
  }
  return "unknown";
}

std::string name_of(const Topology& topology, const Place& place) {
  const auto index = static_cast<std::size_t>(place.index);
  switch (place.kind) {
    case PlaceKind::host: return fmt::format("host {}", place.host);
    case PlaceKind::package: return fmt::format("host {} package {}", place.host, place.index);
    case PlaceKind::numa_node: return fmt::format("host {} NUMA node {}", place.host, place.index);
    case PlaceKind::core: return fmt::format("host {} core {}", place.host, place.index);
    case PlaceKind::network: return fmt::format("switch {}", topology.switches[index].name);
    case PlaceKind::device: break;
  }
  const Device& device = topology.hosts[static_cast<std::size_t>(place.host)].devices[index];
  return fmt::format("host {} {} {}{}", place.host, name_of(device.kind), place.index,
                     device.name.empty() ? "" : " (" + device.name + ")");
}

Place on_machine(const Topology& topology, Place place) {
  const std::vector<Host>& hosts = topology.hosts;
  const std::string& machine = hosts[static_cast<std::size_t>(place.host)].machine;
  if (place.kind == PlaceKind::network || machine.empty()) return place;
  const auto first = std::find_if(hosts.begin(), hosts.end(), [&](const Host& one) { return one.machine == machine; });
  place.host = static_cast<int>(first - hosts.begin());
  return place;
}

bool ranks_share_cores(const Topology& topology) {
  std::set<std::pair<int, int>> taken;  // host and core
  for (const Place& rank : topology.ranks) {
    const Place place = on_machine(topology, rank);
    if (place.kind == PlaceKind::core && !taken.emplace(place.host, place.index).second) return true;
  }
  return false;
}

std::vector<int> host_of_rank(const Topology& topology) {
  std::vector<int> hosts;
  for (const Place& place : topology.ranks) hosts.push_back(place.host);
  return hosts;
}

int cpus_of(const Host& host) {
  std::size_t cpus = 0;
  for (const Core& core : host.cores) cpus += core.cpus.size();
  return static_cast<int>(cpus);
}

std::uint64_t smallest_cache(const Host& host, int level) {
  std::uint64_t bytes = 0;
  for (const Cache& cache : host.caches) {
    if (cache.level == level && (bytes == 0 || cache.bytes < bytes)) bytes = cache.bytes;
  }
  return bytes;
}

std::uint64_t cache_share(const Host& host, int ranks) {
  int last = 0;
  for (const Cache& cache : host.caches) last = std::max(last, cache.level);
  std::uint64_t all = 0;
  for (const Cache& cache : host.caches) all += cache.level == last ? cache.bytes : 0;
  return std::min(smallest_cache(host, last), all / static_cast<std::uint64_t>(ranks));
}

}  // namespace tutti::topology
