// The order, groups and NICs in which the ranks of a topology should exchange messages.
//
// How: all rest on one number for each pair of ranks, the cost of a hop: the time of kHopBytes on their route. The
// cheapest order crosses slow links least.
#pragma once

#include <functional>
#include <vector>

#include "topology/graph.h"

namespace tutti::topology {

inline constexpr double kHopBytes = 1 << 20;

/// Returns the cost of a hop in us.
double hop_cost(const Route& route);

struct Ring {
  int lane = -1;           // that the ring is for; -1: there is one host
  std::vector<int> order;  // every rank once; the last is followed by the first
};

/// Returns one ring for each rail, each for a lane of its own; one ring if there is one host.
/// How: a ring enters and leaves every host once. All rings have the same order of hosts, with hosts at near switches
/// one after the other. Inside a host the way from the previous host, through all its ranks, to the next host is the
/// cheapest. It is exact up to kExactStops ranks; beyond that, clusters are improved by exchanges. A ring avoids the
/// NICs (rails.h) of the rings before it if it can. REQUIRES: there are ranks.
std::vector<Ring> rings(const Graph& graph);
inline constexpr int kExactStops = 10;

/// Groups of ranks.
using Partition = std::vector<std::vector<int>>;

struct Groups {
  std::vector<Partition> levels;  // each is a refinement of the one before it
  int hosts = 0;                  // the level whose groups are the hosts
};

/// Returns the levels from clusters of near hosts down to ranks at one PCI switch. A level of one group, or of groups
/// of one rank each, is left out, except that of the hosts. A host with fewer levels than others keeps its groups.
Groups groups(const Graph& graph);

/// Returns the cheapest way through n stops, from first(i) over cost(i, j) to last(j). Declared for tests of rings().
using CostOfStop = std::function<double(int)>;
using CostOfHop = std::function<double(int, int)>;
std::vector<int> cheapest_way(int n, const CostOfStop& first, const CostOfHop& cost, const CostOfStop& last);
/// Returns the cheapest round trip of n stops that begins at 0.
std::vector<int> cheapest_circle(int n, const CostOfHop& cost);

}  // namespace tutti::topology
