// A topology as a picture, laid out by Graphviz: a box for each host with its packages, devices and ranks, the switches
// of the network above, links with their bandwidth; what is wide is drawn wide.
#pragma once

#include <string>

#include "base/status.h"
#include "topology/graph.h"

namespace tutti::cli {

/// The text that Graphviz' dot reads. Of many hosts that are alike but for their names (more than kMostAlike) only the
/// first and the last are drawn in full. The first ring of topology::rings() is drawn in colour.
std::string dot_of(const topology::Graph& graph);
inline constexpr int kMostAlike = 4;

/// Runs dot. Errors: unsupported, when there is no such program; system, when it fails.
Status write_svg(const topology::Graph& graph, const std::string& path);

}  // namespace tutti::cli
