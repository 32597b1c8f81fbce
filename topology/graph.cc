#include "topology/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <limits>
#include <queue>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/index.h"

namespace tutti::topology {

Graph::Graph(const Topology& topology, const Assumed& assumed, const RailShares& shares)
    : topology_(topology), assumed_(assumed), parts_(build_graph(topology_, assumed_)), shares_(shares) {
  for (const std::vector<int>& nics : parts_.nics) rails_ = std::max(rails_, static_cast<int>(nics.size()));
}

Result<Graph> Graph::of(const Topology& topology, const Assumed& assumed) {
  return of(topology, assumed, RailShares(host_of_rank(topology)));
}

Result<Graph> Graph::of(const Topology& topology, const Assumed& assumed, const RailShares& shares) {
  TUTTI_TRY(check(topology));
  Graph graph(topology, assumed, shares);
  TUTTI_TRY(graph.check_reach());
  return graph;
}

/// Checks that links lead from host 0 to all NUMA nodes of all hosts.
Status Graph::check_reach() const {
  std::vector<bool> seen(parts_.vertices.size());
  std::vector<int> next{parts_.numa[0][0]};
  seen[at(next.front())] = true;
  while (!next.empty()) {
    const int vertex = next.back();
    next.pop_back();
    for (const int edge : parts_.edges_from[at(vertex)]) {
      const int to = parts_.edges[at(edge)].to;
      if (!seen[at(to)]) next.push_back(to);
      seen[at(to)] = true;
    }
  }
  for (std::size_t host = 1; host < parts_.numa.size(); ++host) {
    for (const int node : parts_.numa[host]) {
      if (seen[at(node)]) continue;
      return invalid_argument(fmt::format("hosts[{}]: no link leads from hosts[0] to its NUMA node {}", host,
                                          parts_.vertices[at(node)].index));
    }
  }
  return check_ways();
}

/// Returns the networks that a vertex reaches without passing through another host; each by its first switch.
std::set<int> Graph::networks_from(int start, const std::vector<int>& network_of) const {
  std::set<int> networks;
  std::set<int> seen{start};
  std::vector<int> next{start};
  while (!next.empty()) {
    const int vertex = next.back();
    next.pop_back();
    for (const int edge : parts_.edges_from[at(vertex)]) {
      const int to = parts_.edges[at(edge)].to;
      if (network_of[at(to)] >= 0) networks.insert(network_of[at(to)]);
      if (may_enter(to, start, start, {}) && seen.insert(to).second) next.push_back(to);
    }
  }
  return networks;
}

/// Checks that there is a way between the first ranks of any two hosts, and from these to the other ranks of their
/// host. Hosts on one network reach each other there, so no search is needed for each pair, of which there may be half
/// a million.
Status Graph::check_ways() const {
  std::vector<int> network_of(parts_.vertices.size(), -1);  // of a switch; -1: it is none
  for (const int first : parts_.switches) {
    if (network_of[at(first)] >= 0) continue;
    std::vector<int> next{first};
    network_of[at(first)] = first;
    while (!next.empty()) {
      const int vertex = next.back();
      next.pop_back();
      for (const int edge : parts_.edges_from[at(vertex)]) {
        const int to = parts_.edges[at(edge)].to;
        if (parts_.vertices[at(to)].host >= 0 || network_of[at(to)] >= 0) continue;
        network_of[at(to)] = first;
        next.push_back(to);
      }
    }
  }
  struct First {
    int rank;
    int home;
    std::set<int> networks;
  };
  std::map<int, First> firsts;  // by host
  const auto no_way = [&](int from, int to) {
    return invalid_argument(fmt::format(
        "no way leads from ranks[{}] on hosts[{}] to ranks[{}] on hosts[{}] without passing through a third "
        "host",
        from, host_of(from), to, host_of(to)));
  };
  for (int rank = 0; rank < ranks(); ++rank) {
    const int home = parts_.edges[at(parts_.edges_from[at(parts_.ranks[at(rank)])].front())].to;
    const auto known = firsts.find(host_of(rank));
    if (known == firsts.end()) {
      firsts.emplace(host_of(rank), First{rank, home, networks_from(home, network_of)});
    } else if (way(known->second.home, home, {}).vertices.empty()) {
      return no_way(known->second.rank, rank);
    }
  }
  for (auto one = firsts.begin(); one != firsts.end(); ++one) {
    for (auto other = std::next(one); other != firsts.end(); ++other) {
      const First& a = one->second;
      const First& b = other->second;
      const bool meet =
          std::any_of(a.networks.begin(), a.networks.end(), [&](int n) { return b.networks.contains(n); });
      if (!meet && way(a.home, b.home, {}).vertices.empty()) return no_way(a.rank, b.rank);
    }
  }
  return {};
}

Graph::Nics Graph::nics_between(int from, int to, int lane) const {
  const auto rails = [&](int rank) { return static_cast<int>(nics_of(host_of(rank)).size()); };
  if (lane == kAnyLane || host_of(from) == host_of(to)) return {};
  const auto nic = [&](int rank, int other) {
    if (rails(rank) == 0) return -1;
    const RailShare share = shares_.between(rank, rails(rank), other, std::max(rails(other), 1));
    return nics_of(host_of(rank))[at(share.of_lane(lane))];
  };
  return {nic(from, to), nic(to, from)};
}

bool Graph::may_enter(int vertex, int from, int to, const Nics& by) const {
  if (vertex == to) return true;
  const Vertex& v = parts_.vertices[at(vertex)];
  const int here = parts_.vertices[at(from)].host;
  const int there = parts_.vertices[at(to)].host;
  if (v.host < 0) return here != there;
  if (v.host != here && v.host != there) return false;
  switch (v.kind) {
    case VertexKind::rank:
    case VertexKind::core:
    case VertexKind::gpu: return false;
    case VertexKind::nic: {
      const int only = v.host == here ? by.out : by.in;
      return only < 0 || only == vertex;
    }
    default: return true;
  }
}

Route Graph::search(int from, int to, const Nics& by) const {
  constexpr double kFar = std::numeric_limits<double>::infinity();
  // First the width of the widest way, then the quickest way of that width.
  std::vector<double> width(parts_.vertices.size(), 0);
  std::priority_queue<std::pair<double, int>> widest;
  width[at(from)] = kFar;
  widest.emplace(kFar, from);
  while (!widest.empty()) {
    const auto [w, vertex] = widest.top();
    widest.pop();
    if (w < width[at(vertex)]) continue;
    for (const int edge : parts_.edges_from[at(vertex)]) {
      const Edge& e = parts_.edges[at(edge)];
      const double through = std::min(w, e.gb_per_s);
      if (through <= width[at(e.to)] || !may_enter(e.to, from, to, by)) continue;
      width[at(e.to)] = through;
      widest.emplace(through, e.to);
    }
  }
  Route route;
  if (width[at(to)] == 0) return route;
  using Cost = std::tuple<double, int, int>;  // latency, hops, vertex
  std::vector<std::pair<double, int>> best(parts_.vertices.size(), {kFar, 0});
  std::vector<int> came_by(parts_.vertices.size(), -1);
  std::priority_queue<Cost, std::vector<Cost>, std::greater<>> quickest;
  best[at(from)] = {0, 0};
  quickest.emplace(0, 0, from);
  while (!quickest.empty()) {
    const auto [latency, hops, vertex] = quickest.top();
    quickest.pop();
    if (std::pair(latency, hops) > best[at(vertex)]) continue;
    for (const int edge : parts_.edges_from[at(vertex)]) {
      const Edge& e = parts_.edges[at(edge)];
      const std::pair then{latency + e.latency_us, hops + 1};
      if (e.gb_per_s < width[at(to)] || then >= best[at(e.to)] || !may_enter(e.to, from, to, by)) continue;
      best[at(e.to)] = then;
      came_by[at(e.to)] = edge;
      quickest.emplace(then.first, then.second, e.to);
    }
  }
  for (int vertex = to; vertex != from; vertex = parts_.edges[at(route.edges.back())].from) {
    route.edges.push_back(came_by[at(vertex)]);
  }
  std::reverse(route.edges.begin(), route.edges.end());
  route.vertices.push_back(from);
  for (const int edge : route.edges) route.vertices.push_back(parts_.edges[at(edge)].to);
  return route;
}

void Graph::finish(Route& route) const {
  route.resources = route.edges;
  for (const int edge : route.edges) route.latency_us += parts_.edges[at(edge)].latency_us;
  for (const int vertex : route.vertices) {
    const Vertex& v = parts_.vertices[at(vertex)];
    // Messages of a GPU pass NUMA nodes, but not their memory.
    const bool only_passes =
        v.kind == VertexKind::numa_node && std::any_of(route.vertices.begin(), route.vertices.end(), [&](int other) {
          return parts_.vertices[at(other)].host == v.host && parts_.vertices[at(other)].kind == VertexKind::gpu;
        });
    if (v.gb_per_s > 0 && !only_passes) route.resources.push_back(static_cast<int>(parts_.edges.size()) + vertex);
  }
  std::sort(route.resources.begin(), route.resources.end());
  route.resources.erase(std::unique(route.resources.begin(), route.resources.end()), route.resources.end());
  route.gb_per_s = route.resources.empty() ? 0 : std::numeric_limits<double>::infinity();
  for (const int resource : route.resources) route.gb_per_s = std::min(route.gb_per_s, gb_per_s_of(resource));
}

const Route& Graph::way(int from, int to, const Nics& by) const {
  const auto [found, is_new] = ways_.try_emplace({from, to, by});
  Route& route = found->second;
  if (!is_new) return route;
  if (from == to) {
    route.vertices.push_back(from);
    return route;
  }
  route = search(from, to, by);
  if (route.vertices.empty() && by != Nics()) route = way(from, to, {});
  return route;
}

const Route& Graph::route(int from, int to, int lane) const {
  const Nics by = nics_between(from, to, lane);
  const auto [found, is_new] = routes_.try_emplace({from, to, by});
  Route& route = found->second;
  if (!is_new) return route;
  const int out = parts_.edges_from[at(parts_.ranks[at(from)])].front();
  const int in = parts_.edges_from[at(parts_.ranks[at(to)])].front() ^ 1;  // a link's edges are neighbours
  const Route& between = way(parts_.edges[at(out)].to, parts_.edges[at(in)].from, by);
  if (between.vertices.empty()) return route;
  route.vertices.push_back(parts_.ranks[at(from)]);
  route.vertices.insert(route.vertices.end(), between.vertices.begin(), between.vertices.end());
  route.vertices.push_back(parts_.ranks[at(to)]);
  route.edges.push_back(out);
  route.edges.insert(route.edges.end(), between.edges.begin(), between.edges.end());
  route.edges.push_back(in);
  finish(route);
  return route;
}

const Route& Graph::at_home(int rank) const {
  const auto [found, is_new] = routes_.try_emplace({rank, rank, Nics()});
  Route& route = found->second;
  if (!is_new) return route;
  const int out = parts_.edges_from[at(parts_.ranks[at(rank)])].front();
  route.edges.push_back(out);
  route.vertices = {parts_.edges[at(out)].from, parts_.edges[at(out)].to};
  if (parts_.vertices[at(route.vertices.back())].kind == VertexKind::core) {  // its memory is its NUMA node's
    const int core = parts_.vertices[at(route.vertices.back())].index;
    const int node = topology_.hosts[at(host_of(rank))].cores[at(core)].numa_node;
    const Route& down = way(route.vertices.back(), parts_.numa[at(host_of(rank))][at(node)], {});
    route.edges.insert(route.edges.end(), down.edges.begin(), down.edges.end());
    route.vertices.insert(route.vertices.end(), down.vertices.begin() + 1, down.vertices.end());
  }
  finish(route);
  return route;
}

const Route& Graph::route_to_nic(int rank, int nic) const {
  const std::vector<int>& nics = nics_of(host_of(rank));
  TUTTI_CHECK(nic >= 0 && nic < static_cast<int>(nics.size()));
  const int vertex = nics[at(nic)];
  const auto [found, is_new] = routes_.try_emplace({rank, -1 - vertex, Nics()});
  Route& route = found->second;
  if (!is_new) return route;
  const int out = parts_.edges_from[at(parts_.ranks[at(rank)])].front();
  route = way(parts_.edges[at(out)].to, vertex, {});
  finish(route);
  return route;
}

double Graph::gb_per_s_of(int resource) const {
  const int edges = static_cast<int>(parts_.edges.size());
  return resource < edges ? parts_.edges[at(resource)].gb_per_s : parts_.vertices[at(resource - edges)].gb_per_s;
}

bool Graph::is_of_cores(int resource) const {
  const auto of_cores = [&](int vertex) {
    const VertexKind kind = parts_.vertices[at(vertex)].kind;
    return kind == VertexKind::rank || kind == VertexKind::core || kind == VertexKind::cache ||
           kind == VertexKind::numa_node;
  };
  const int edges = static_cast<int>(parts_.edges.size());
  if (resource >= edges) return of_cores(resource - edges);
  return of_cores(parts_.edges[at(resource)].from) && of_cores(parts_.edges[at(resource)].to);
}

std::string Graph::name_of_vertex(int vertex) const {
  const Vertex& v = parts_.vertices[at(vertex)];
  switch (v.kind) {
    case VertexKind::rank: return fmt::format("rank {}", v.index);
    case VertexKind::core: return name_of(topology_, {v.host, PlaceKind::core, v.index});
    case VertexKind::cache: return fmt::format("host {} cache {}", v.host, v.index);
    case VertexKind::numa_node: return name_of(topology_, {v.host, PlaceKind::numa_node, v.index});
    case VertexKind::network: return name_of(topology_, {0, PlaceKind::network, v.index});
    default: return name_of(topology_, {v.host, PlaceKind::device, v.index});
  }
}

std::string Graph::name_of_resource(int resource) const {
  const int edges = static_cast<int>(parts_.edges.size());
  if (resource >= edges) return "memory of " + name_of_vertex(resource - edges);
  const Edge& edge = parts_.edges[at(resource)];
  return fmt::format("{} -> {}", name_of_vertex(edge.from), name_of_vertex(edge.to));
}

}  // namespace tutti::topology
