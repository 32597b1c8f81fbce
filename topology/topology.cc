#include "topology/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

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

Status check_host(const std::string& where, const Host& host) {
  if (host.packages < 1) return wrong(where, fmt::format("has {} packages", host.packages));
  if (host.numa_nodes.empty()) return wrong(where, "has no NUMA nodes");
  if (host.cores.empty()) return wrong(where, "has no cores");
  for (std::size_t i = 0; i < host.numa_nodes.size(); ++i) {
    const std::vector<int>& distances = host.numa_nodes[i].distances;
    if (!distances.empty() && distances.size() != host.numa_nodes.size()) {
      return wrong(
          fmt::format("{}.numa_nodes[{}]", where, i),
          fmt::format("has {} distances; the host has {} NUMA nodes", distances.size(), host.numa_nodes.size()));
    }
    if (std::any_of(distances.begin(), distances.end(), [](int distance) { return distance < 0; })) {
      return wrong(fmt::format("{}.numa_nodes[{}]", where, i), "a distance is negative");
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
  return {};
}

Status check_place(const std::string& where, const Place& place, const std::vector<Host>& hosts) {
  TUTTI_TRY(check_index(where, "host", place.host, hosts.size(), "the topology"));
  const Host& host = hosts[static_cast<std::size_t>(place.host)];
  switch (place.kind) {
    case PlaceKind::host: return check_index(where, "index", place.index, 1, "a host as a whole");
    case PlaceKind::package:
      return check_index(where, "package", place.index, static_cast<std::size_t>(host.packages), "the host");
    case PlaceKind::numa_node: return check_index(where, "numa_node", place.index, host.numa_nodes.size(), "the host");
  }
  return wrong(where, "is of an unknown kind");
}

bool is_possible(double number) { return std::isfinite(number) && number >= 0; }

}  // namespace

Status check(const Topology& topology) {
  if (topology.hosts.empty()) return wrong("hosts", "there are none");
  for (std::size_t i = 0; i < topology.hosts.size(); ++i) {
    TUTTI_TRY(check_host(fmt::format("hosts[{}]", i), topology.hosts[i]));
  }
  for (std::size_t i = 0; i < topology.links.size(); ++i) {
    const Link& link = topology.links[i];
    const std::string here = fmt::format("links[{}]", i);
    TUTTI_TRY(check_place(here + ".a", link.a, topology.hosts));
    TUTTI_TRY(check_place(here + ".b", link.b, topology.hosts));
    if (link.a == link.b) return wrong(here, "both ends are the same place");
    if (!is_possible(link.gb_per_s) || link.gb_per_s == 0) {
      return wrong(here, fmt::format("gb_per_s is {}; expected more than 0", link.gb_per_s));
    }
    if (!is_possible(link.latency_us)) return wrong(here, fmt::format("latency_us is {}", link.latency_us));
  }
  for (std::size_t i = 0; i < topology.host_of_rank.size(); ++i) {
    TUTTI_TRY(check_index(fmt::format("host_of_rank[{}]", i), "host", topology.host_of_rank[i], topology.hosts.size(),
                          "the topology"));
  }
  return {};
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
