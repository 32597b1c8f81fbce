#include "cli/topology_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/parse.h"
#include "topology/cpu_list.h"
#include "topology/orders.h"

namespace tutti::cli {
namespace {

using topology::Device;
using topology::DeviceKind;
using topology::Edge;
using topology::Graph;
using topology::Host;
using topology::Vertex;
using topology::VertexKind;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

struct Look {
  const char* shape;
  const char* fill;
};

Look look_of(VertexKind kind) {
  switch (kind) {
    case VertexKind::rank: return {"circle", "#ffffff"};
    case VertexKind::core: return {"box", "#eceff1"};
    case VertexKind::cache: return {"box", "#cfd8dc"};
    case VertexKind::numa_node: return {"box", "#b3cde0"};
    case VertexKind::pci_switch: return {"box", "#e1d5e7"};
    case VertexKind::nic: return {"box", "#ffe0b2"};
    case VertexKind::gpu: return {"box", "#c5e1a5"};
    case VertexKind::nvswitch: return {"box", "#81c784"};
    case VertexKind::network: return {"box", "#ffcc80"};
  }
  return {"box", "#ffffff"};
}

/// Returns the text for a label in double quotes, with special characters escaped.
std::string plain(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else {
      result += static_cast<unsigned char>(c) < ' ' ? '?' : c;
    }
  }
  return result;
}

std::string number(double value) { return fmt::format("{:.4g}", value); }

class Drawing {
 public:
  explicit Drawing(const Graph& graph) : graph_(graph), t_(graph.topology()) {
    for (int v = 0; v < static_cast<int>(graph.vertices().size()); ++v) {
      const Vertex& vertex = graph.vertices()[at(v)];
      by_host_[vertex.host].push_back(v);
    }
    choose_hosts();
    if (graph.ranks() > 1) ring_ = topology::rings(graph)[0].order;
  }

  std::string text() {
    out_ =
        "graph topology {\n"
        "  graph [rankdir=TB, splines=true, nodesep=0.18, ranksep=0.55, newrank=true, fontname=\"Helvetica\", "
        "fontsize=13, bgcolor=white, pad=0.3];\n"
        "  node [fontname=\"Helvetica\", fontsize=10, style=\"filled,rounded\", color=\"#546e7a\", penwidth=0.8, "
        "height=0.32, margin=\"0.09,0.05\"];\n"
        "  edge [fontname=\"Helvetica\", fontsize=8, color=\"#78909c\", fontcolor=\"#455a64\"];\n";
    out_ += fmt::format("  label=\"{} host{}, {} rank{}\"; labelloc=t;\n", t_.hosts.size(),
                        t_.hosts.size() == 1 ? "" : "s", graph_.ranks(), graph_.ranks() == 1 ? "" : "s");
    for (const int v : by_host_[-1]) node(v, "  ");
    for (int h = 0; h < static_cast<int>(t_.hosts.size()); ++h) {
      if (drawn_.contains(h)) host(h);
    }
    if (left_out_ > 0) {
      out_ += fmt::format("  more [shape=plaintext, style=\"\", fontsize=13, label=\"{} more hosts like host {}\"];\n",
                          left_out_, *drawn_.begin());
      if (!by_host_[-1].empty()) out_ += fmt::format("  v{} -- more [style=dotted];\n", by_host_[-1].front());
    }
    links();
    ring();
    return out_ + "}\n";
  }

 private:
  /// Hosts that differ in name only are drawn twice at most, when there are many.
  void choose_hosts() {
    const int hosts = static_cast<int>(t_.hosts.size());
    Host first = t_.hosts.front();
    bool alike = hosts > kMostAlike;
    for (int h = 1; h < hosts && alike; ++h) {
      Host other = t_.hosts[at(h)];
      other.name = first.name;
      alike = other == first && by_host_[h].size() == by_host_[0].size();
    }
    for (int h = 0; h < hosts; ++h) {
      if (!alike || h == 0 || h == hosts - 1) drawn_.insert(h);
    }
    left_out_ = hosts - static_cast<int>(drawn_.size());
  }

  bool is_drawn(int vertex) const {
    const int host = graph_.vertices()[at(vertex)].host;
    return host < 0 || drawn_.contains(host);
  }

  std::string label_of(int vertex) const {
    const Vertex& v = graph_.vertices()[at(vertex)];
    const auto figure = [](double gb_per_s, const char* of) {
      return gb_per_s > 0 ? fmt::format("\\n{} {} GB/s", of, number(gb_per_s)) : std::string();
    };
    switch (v.kind) {
      case VertexKind::rank: return fmt::format("{}", v.index);
      case VertexKind::core: return fmt::format("core {}", v.index);
      case VertexKind::network: return plain(t_.switches[at(v.index)].name);
      case VertexKind::cache: {
        const topology::Cache& cache = t_.hosts[at(v.host)].caches[at(v.index)];
        return fmt::format("L{} {}\\nCPUs {}", cache.level, print_bytes(cache.bytes), topology::print_cpus(cache.cpus));
      }
      case VertexKind::numa_node: {
        const Host& host = t_.hosts[at(v.host)];
        const topology::NumaNode& node = host.numa_nodes[at(v.index)];
        const auto cores = std::count_if(host.cores.begin(), host.cores.end(),
                                         [&](const topology::Core& core) { return core.numa_node == v.index; });
        return fmt::format("NUMA node {}\\n{} cores, {:.0f} GiB{}", v.index, cores,
                           static_cast<double>(node.bytes) / (1 << 30), figure(node.gb_per_s, "memory"));
      }
      default: break;
    }
    const Device& device = t_.hosts[at(v.host)].devices[at(v.index)];
    const std::string name = plain(device.name.empty() ? device.pci : device.name);
    switch (device.kind) {
      case DeviceKind::gpu: return fmt::format("GPU {}{}", name, figure(device.gb_per_s, "memory"));
      case DeviceKind::nic:
        return fmt::format("NIC {}{}{}", name, device.rdma.empty() ? "" : " / " + plain(device.rdma),
                           figure(device.gb_per_s, "port"));
      case DeviceKind::nvswitch: return "NVSwitch";
      case DeviceKind::pci_switch: break;
    }
    return "PCI switch" + (name.empty() ? "" : " " + name);
  }

  void node(int vertex, const char* indent) {
    const Vertex& v = graph_.vertices()[at(vertex)];
    const Look look = look_of(v.kind);
    out_ += fmt::format("{}v{} [shape={}, fillcolor=\"{}\", label=\"{}\"{}];\n", indent, vertex, look.shape, look.fill,
                        label_of(vertex),
                        v.kind == VertexKind::rank ? ", width=0.3, height=0.3, fixedsize=true, penwidth=1.4, "
                                                     "color=\"#c62828\", fontcolor=\"#c62828\""
                                                   : "");
  }

  void host(int h) {
    const Host& host = t_.hosts[at(h)];
    out_ += fmt::format(
        "  subgraph cluster_host{} {{\n    label=\"host {}: {}{}\"; style=\"rounded,filled\"; color=\"#90a4ae\"; "
        "fillcolor=\"#fafafa\"; fontsize=12;\n",
        h, h, plain(host.name), host.cpu_model.empty() ? "" : "\\n" + plain(host.cpu_model));
    for (const int v : by_host_[h]) node(v, "    ");
    out_ += "  }\n";
  }

  /// Places the children of a vertex below it, in whichever direction its links were given.
  static bool stands_above(VertexKind kind, VertexKind other) {
    const auto height = [](VertexKind k) {
      switch (k) {
        case VertexKind::network: return 0;
        case VertexKind::nic: return 1;
        case VertexKind::numa_node: return 2;
        case VertexKind::pci_switch: return 3;
        case VertexKind::cache: return 4;
        case VertexKind::gpu:
        case VertexKind::core: return 5;
        case VertexKind::nvswitch: return 6;
        case VertexKind::rank: return 7;
      }
      return 8;
    };
    return height(kind) < height(other);
  }

  void links() {
    for (std::size_t e = 0; e + 1 < graph_.edges().size(); e += 2) {  // the other direction is e + 1
      int a = graph_.edges()[e].from;
      int b = graph_.edges()[e].to;
      if (!is_drawn(a) || !is_drawn(b)) continue;
      const VertexKind kind_a = graph_.vertices()[at(a)].kind;
      const VertexKind kind_b = graph_.vertices()[at(b)].kind;
      // Of two switches the later one is the spine.
      const bool to_spine = kind_a == VertexKind::network && kind_b == kind_a && a < b;
      if (stands_above(kind_b, kind_a) || to_spine) std::swap(a, b);
      const Edge& edge = graph_.edges()[e];
      const bool is_rank = kind_a == VertexKind::rank || kind_b == VertexKind::rank;
      const double width = std::clamp(0.6 + 0.9 * std::log2(1 + edge.gb_per_s / 8), 0.6, 7.0);
      out_ += fmt::format("  v{} -- v{} [penwidth={:.2f}, tooltip=\"{} GB/s, {} us\"{}{}];\n", a, b,
                          is_rank ? 0.6 : width, number(edge.gb_per_s), number(edge.latency_us),
                          is_rank ? ", style=dashed" : fmt::format(", label=\" {} \"", number(edge.gb_per_s)),
                          kind_a == kind_b && kind_a != VertexKind::network ? ", constraint=false" : "");
    }
  }

  void ring() {
    std::map<int, int> vertex_of;
    for (int v = 0; v < static_cast<int>(graph_.vertices().size()); ++v) {
      const Vertex& vertex = graph_.vertices()[at(v)];
      if (vertex.kind == VertexKind::rank) vertex_of[vertex.index] = v;
    }
    for (std::size_t i = 0; i < ring_.size(); ++i) {
      const int from = vertex_of[ring_[i]];
      const int to = vertex_of[ring_[(i + 1) % ring_.size()]];
      if (!is_drawn(from) || !is_drawn(to) || (ring_.size() == 2 && i == 1)) continue;
      out_ += fmt::format(
          "  v{} -- v{} [dir=forward, constraint=false, color=\"#c62828\", penwidth=1.2, arrowsize=0.6];\n", from, to);
    }
  }

  const Graph& graph_;
  const topology::Topology& t_;
  std::map<int, std::vector<int>> by_host_;
  std::set<int> drawn_;
  int left_out_ = 0;
  std::vector<int> ring_;
  std::string out_;
};

}  // namespace

std::string dot_of(const Graph& graph) { return Drawing(graph).text(); }

Status write_svg(const Graph& graph, const std::string& path) {
  if (std::system("command -v dot > /dev/null") != 0) {
    return unsupported("a drawing needs the program dot (Debian: graphviz), which was not found");
  }
  std::string quoted = "'";
  for (const char c : path) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  const std::string command = "dot -Tsvg -o " + quoted + "'";
  FILE* dot = popen(command.c_str(), "w");
  if (dot == nullptr) return system_error("popen of dot", errno);
  const std::string text = dot_of(graph);
  const bool written = std::fwrite(text.data(), 1, text.size(), dot) == text.size();
  const int end = pclose(dot);
  if (written && end == 0) return {};
  return Status(Code::system, fmt::format("dot could not write {}", quote(path)));
}

}  // namespace tutti::cli
