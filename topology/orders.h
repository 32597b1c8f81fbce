// In which order, in which groups and by which NICs the ranks of a topology should talk.
//
// All of it rests on one number for each pair of ranks, the cost of a hop: the time that kHopBytes take on their route.
// What is cheapest to go around is what crosses slow links least.
#pragma once

#include <functional>
#include <vector>

#include "topology/graph.h"

namespace tutti::topology {

inline constexpr double kHopBytes = 1 << 20;

/// us.
double hop_cost(const Route& route);

struct Ring {
  int lane = -1;           // that it is for; -1: there is one host
  std::vector<int> order;  // every rank once; the last is followed by the first
};

/// One ring for each rail, which are to be used in a lane each; one in all where there is one host. Every host is
/// entered once and left once, in the same order of hosts by all rings, at switches that are near each other one after
/// the other. Inside a host the way from the one before through all its ranks to the one after is the cheapest (exact
/// up to kExactStops ranks; beyond that from clusters, improved by exchanges), by NICs (rails.h) that the rings before
/// do not go by, where there are such. REQUIRES: there are ranks.
std::vector<Ring> rings(const Graph& graph);
inline constexpr int kExactStops = 10;

/// Groups of ranks.
using Partition = std::vector<std::vector<int>>;

struct Groups {
  std::vector<Partition> levels;  // each is a refinement of the one before it
  int hosts = 0;                  // the level whose groups are the hosts
};

/// From clusters of hosts that are near each other down to ranks at one PCI switch. Levels that would be one group, or
/// groups of one rank each, are left out, except that of the hosts. Where a host has fewer levels than others its
/// groups stay as they are.
Groups groups(const Graph& graph);

/// The cheapest way through n stops, from first(i) over cost(i, j) to last(j); as rings() needs it, for tests.
using CostOfStop = std::function<double(int)>;
using CostOfHop = std::function<double(int, int)>;
std::vector<int> cheapest_way(int n, const CostOfStop& first, const CostOfHop& cost, const CostOfStop& last);
/// The cheapest way around n stops, beginning at 0.
std::vector<int> cheapest_circle(int n, const CostOfHop& cost);

}  // namespace tutti::topology
