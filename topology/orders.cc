#include "topology/orders.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/index.h"

namespace tutti::topology {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kAlike = 1.0005;  // costs that differ by less are the same level; nodes of two sockets by 0.0009
constexpr int kPasses = 4;
constexpr double kTaken = 1e6;  // us: more than any way within a host

double length(const std::vector<int>& way, const CostOfStop& first, const CostOfHop& cost, const CostOfStop& last) {
  double sum = first(way.front()) + last(way.back());
  for (std::size_t i = 1; i < way.size(); ++i) sum += cost(way[i - 1], way[i]);
  return sum;
}

/// Held and Karp, "A dynamic programming approach to sequencing problems", 1962: the cheapest way through each set of
/// stops that begins at each of them. Of ways that cost the same it finds the one whose numbers come first.
std::vector<int> exact_way(int n, const CostOfStop& first, const CostOfHop& cost, const CostOfStop& last) {
  constexpr double kSame = 1e-9;
  const auto sets = std::size_t{1} << n;
  std::vector<std::vector<double>> best(sets, std::vector<double>(at(n), kNever));
  std::vector<std::vector<int>> after(sets, std::vector<int>(at(n), -1));
  std::vector<std::vector<double>> hop(at(n), std::vector<double>(at(n), 0));
  for (int i = 0; i < n; ++i) {
    best[std::size_t{1} << i][at(i)] = last(i);
    for (int j = 0; j < n; ++j) hop[at(i)][at(j)] = i == j ? 0 : cost(i, j);
  }
  for (std::size_t set = 1; set < sets; ++set) {
    for (int start = 0; start < n; ++start) {
      const std::size_t rest = set & ~(std::size_t{1} << start);
      if (rest == set || rest == 0) continue;
      for (int next = 0; next < n; ++next) {
        const double then = hop[at(start)][at(next)] + best[rest][at(next)];
        if (then + kSame >= best[set][at(start)]) continue;
        best[set][at(start)] = then;
        after[set][at(start)] = next;
      }
    }
  }
  int stop = 0;
  for (int start = 1; start < n; ++start) {
    if (first(start) + best[sets - 1][at(start)] + kSame < first(stop) + best[sets - 1][at(stop)]) stop = start;
  }
  std::vector<int> way;
  for (std::size_t set = sets - 1; stop >= 0;) {
    way.push_back(stop);
    const int next = after[set][at(stop)];
    set &= ~(std::size_t{1} << stop);
    stop = next;
  }
  return way;
}

struct Merge {
  double cost;
  int a, b;
};

/// The pairs of stops that join clusters, the nearest first (single linkage, by Prim's tree).
std::vector<Merge> merges_of(int n, const CostOfHop& cost) {
  std::vector<Merge> tree;
  std::vector<Merge> nearest(at(n), {kNever, -1, -1});
  std::vector<bool> in(at(n));
  int latest = 0;
  for (int done = 1; done < n; ++done) {
    in[at(latest)] = true;
    int next = -1;
    for (int i = 0; i < n; ++i) {
      if (in[at(i)]) continue;
      const double c = cost(latest, i);
      if (c < nearest[at(i)].cost) nearest[at(i)] = {c, latest, i};
      if (next < 0 || nearest[at(i)].cost < nearest[at(next)].cost) next = i;
    }
    tree.push_back(nearest[at(next)]);
    latest = next;
  }
  std::stable_sort(tree.begin(), tree.end(), [](const Merge& x, const Merge& y) { return x.cost < y.cost; });
  return tree;
}

/// Puts clusters in one row, near ones next to each other. If costs are those of a tree of switches, no order is
/// cheaper.
std::vector<int> row_of_clusters(int n, const CostOfHop& cost) {
  std::vector<int> cluster_of(at(n));
  std::iota(cluster_of.begin(), cluster_of.end(), 0);
  std::vector<std::vector<int>> rows(at(n));
  for (int i = 0; i < n; ++i) rows[at(i)] = {i};
  for (const Merge& merge : merges_of(n, cost)) {
    int a = cluster_of[at(merge.a)];
    int b = cluster_of[at(merge.b)];
    if (rows[at(b)].front() < rows[at(a)].front()) std::swap(a, b);
    std::vector<int>& left = rows[at(a)];
    std::vector<int>& right = rows[at(b)];
    if (cost(left.back(), right.back()) < cost(left.back(), right.front())) std::reverse(right.begin(), right.end());
    for (const int stop : right) cluster_of[at(stop)] = a;
    left.insert(left.end(), right.begin(), right.end());
    right.clear();
  }
  return rows[at(cluster_of[0])];
}

/// Rotates the row to its cheapest beginning, then reverses parts of it as long as that helps.
std::vector<int> improved(std::vector<int> way, const CostOfStop& first, const CostOfHop& cost,
                          const CostOfStop& last) {
  const int n = static_cast<int>(way.size());
  std::vector<int> best = way;
  for (int turn = 0; turn < n; ++turn) {
    std::rotate(way.begin(), way.begin() + 1, way.end());
    if (length(way, first, cost, last) < length(best, first, cost, last)) best = way;
  }
  for (int pass = 0; pass < kPasses; ++pass) {
    bool better = false;
    for (int i = 0; i < n; ++i) {
      for (int j = i + 1; j < n; ++j) {
        const auto into = [&](int stop) { return i == 0 ? first(stop) : cost(best[at(i - 1)], stop); };
        const auto out_of = [&](int stop) { return j == n - 1 ? last(stop) : cost(stop, best[at(j + 1)]); };
        const int a = best[at(i)];
        const int b = best[at(j)];
        if (into(b) + out_of(a) + 1e-9 >= into(a) + out_of(b)) continue;
        std::reverse(best.begin() + i, best.begin() + j + 1);
        better = true;
      }
    }
    if (!better) break;
  }
  return best;
}

/// Returns the ranks by host, hosts in the order of their first rank.
Partition ranks_by_host(const Graph& graph) {
  Partition hosts;
  std::map<int, std::size_t> index;
  for (int rank = 0; rank < graph.ranks(); ++rank) {
    const auto [found, is_new] = index.try_emplace(graph.host_of(rank), hosts.size());
    if (is_new) hosts.emplace_back();
    hosts[found->second].push_back(rank);
  }
  return hosts;
}

CostOfHop between(const Graph& graph, const std::vector<int>& ranks) {
  return [&graph, &ranks](int i, int j) { return hop_cost(graph.route(ranks[at(i)], ranks[at(j)])); };
}

/// Returns the costs between hosts, of their first ranks.
CostOfHop between_hosts(const Graph& graph, const Partition& hosts) {
  return [&graph, &hosts](int i, int j) { return hop_cost(graph.route(hosts[at(i)].front(), hosts[at(j)].front())); };
}

/// Returns a ring for one lane through `hosts`, in that order. `taken`: the edges between hosts and the network that
/// rings of other lanes use, which it avoids; its own are added.
Ring ring_through(const Graph& graph, const Partition& hosts, int lane, std::set<int>& taken) {
  const auto leaves_host = [&](int edge) {
    const Edge& e = graph.edges()[at(edge)];
    return graph.vertices()[at(e.from)].host != graph.vertices()[at(e.to)].host;
  };
  const auto hop = [&](int from, int to) {
    const Route& route = graph.route(from, to, lane);
    const bool meets = std::any_of(route.edges.begin(), route.edges.end(), [&](int e) { return taken.contains(e); });
    return hop_cost(route) + (meets ? kTaken : 0);
  };
  Ring ring;
  ring.lane = lane;
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    const std::vector<int>& ranks = hosts[h];
    // While the other end of a hop is unknown, the best one counts.
    const CostOfStop in = [&](int stop) {
      if (h > 0) return hop(ring.order.back(), ranks[at(stop)]);
      double best = kNever;
      for (const int from : hosts.back()) best = std::min(best, hop(from, ranks[at(stop)]));
      return best;
    };
    const CostOfStop out = [&](int stop) {
      if (h + 1 == hosts.size()) return hop(ranks[at(stop)], ring.order.front());
      double best = kNever;
      for (const int to : hosts[h + 1]) best = std::min(best, hop(ranks[at(stop)], to));
      return best;
    };
    const std::vector<int> way = cheapest_way(static_cast<int>(ranks.size()), in, between(graph, ranks), out);
    for (const int stop : way) ring.order.push_back(ranks[at(stop)]);
  }
  for (std::size_t i = 0; i < ring.order.size(); ++i) {
    const Route& route = graph.route(ring.order[i], ring.order[(i + 1) % ring.order.size()], lane);
    std::copy_if(route.edges.begin(), route.edges.end(), std::inserter(taken, taken.end()), leaves_host);
  }
  return ring;
}

/// Returns clusters of n stops, coarse to fine, without the trivial ones (all in one; one in each).
std::vector<Partition> clusters(int n, const CostOfHop& cost) {
  std::vector<Partition> levels;
  if (n < 2) return levels;
  std::vector<int> cluster_of(at(n));
  std::iota(cluster_of.begin(), cluster_of.end(), 0);
  const std::vector<Merge> merges = merges_of(n, cost);
  for (std::size_t m = 0; m < merges.size(); ++m) {
    if (m > 0 && merges[m].cost > kAlike * merges[m - 1].cost) {
      Partition partition(at(n));
      for (int i = 0; i < n; ++i) partition[at(cluster_of[at(i)])].push_back(i);
      std::erase_if(partition, [](const std::vector<int>& group) { return group.empty(); });
      levels.insert(levels.begin(), std::move(partition));
    }
    const int from = cluster_of[at(merges[m].b)];
    const int to = cluster_of[at(merges[m].a)];
    for (int& cluster : cluster_of) {
      if (cluster == from) cluster = to;
    }
  }
  for (Partition& partition : levels) std::sort(partition.begin(), partition.end());
  return levels;
}

}  // namespace

double hop_cost(const Route& route) {
  const double us = route.latency_us + (route.gb_per_s > 0 ? kHopBytes / (route.gb_per_s * 1e3) : 0);
  return std::round(us * 1e3) / 1e3;  // equal distances must come out equal, in any order of addition
}

std::vector<int> cheapest_way(int n, const CostOfStop& first, const CostOfHop& cost, const CostOfStop& last) {
  if (n <= kExactStops) return exact_way(n, first, cost, last);
  return improved(row_of_clusters(n, cost), first, cost, last);
}

std::vector<int> cheapest_circle(int n, const CostOfHop& cost) {
  if (n == 1) return {0};
  const auto at_zero = [](int stop) { return stop == 0 ? 0 : kNever; };
  if (n <= kExactStops) {
    return exact_way(n, at_zero, cost, [&](int stop) { return stop == 0 ? kNever : cost(stop, 0); });
  }
  std::vector<int> row = row_of_clusters(n, cost);
  std::rotate(row.begin(), std::find(row.begin(), row.end(), 0), row.end());
  // The first stop stays in place: it lies before the first and behind the last of the others.
  const std::vector<int> others(row.begin() + 1, row.end());
  const CostOfStop from_zero = [&](int stop) { return cost(0, stop); };
  const CostOfStop to_zero = [&](int stop) { return cost(stop, 0); };
  row = improved(others, from_zero, cost, to_zero);
  row.insert(row.begin(), 0);
  return row;
}

std::vector<Ring> rings(const Graph& graph) {
  TUTTI_CHECK(graph.ranks() > 0);
  const Partition hosts = ranks_by_host(graph);
  std::vector<Ring> all;
  if (hosts.size() == 1) {
    Ring ring;
    for (const int stop : cheapest_circle(graph.ranks(), between(graph, hosts[0]))) {
      ring.order.push_back(hosts[0][at(stop)]);
    }
    all.push_back(std::move(ring));
    return all;
  }
  Partition in_order;
  for (const int h : cheapest_circle(static_cast<int>(hosts.size()), between_hosts(graph, hosts))) {
    in_order.push_back(hosts[at(h)]);
  }
  std::set<int> taken;
  for (int lane = 0; lane < graph.rails(); ++lane) all.push_back(ring_through(graph, in_order, lane, taken));
  return all;
}

Groups groups(const Graph& graph) {
  const Partition hosts = ranks_by_host(graph);
  Groups result;
  for (const Partition& of_hosts : clusters(static_cast<int>(hosts.size()), between_hosts(graph, hosts))) {
    Partition& level = result.levels.emplace_back();
    for (const std::vector<int>& group : of_hosts) {
      std::vector<int>& ranks = level.emplace_back();
      for (const int h : group) ranks.insert(ranks.end(), hosts[at(h)].begin(), hosts[at(h)].end());
      std::sort(ranks.begin(), ranks.end());
    }
  }
  result.hosts = static_cast<int>(result.levels.size());
  result.levels.push_back(hosts);
  std::vector<std::vector<Partition>> within;
  std::size_t depth = 0;
  for (const std::vector<int>& ranks : hosts) {
    within.push_back(clusters(static_cast<int>(ranks.size()), between(graph, ranks)));
    depth = std::max(depth, within.back().size());
  }
  for (std::size_t d = 0; d < depth; ++d) {
    Partition& level = result.levels.emplace_back();
    for (std::size_t h = 0; h < hosts.size(); ++h) {
      if (within[h].empty()) {
        level.push_back(hosts[h]);
        continue;
      }
      for (const std::vector<int>& group : within[h][std::min(d, within[h].size() - 1)]) {
        std::vector<int>& ranks = level.emplace_back();
        for (const int stop : group) ranks.push_back(hosts[h][at(stop)]);
      }
    }
  }
  return result;
}

}  // namespace tutti::topology
