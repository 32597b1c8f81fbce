#include "topology/machines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/parse.h"

namespace tutti::topology {

namespace {

constexpr int kMostHosts = 1024;
constexpr int kGpus = 8;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

int size_of(const std::vector<Device>& devices) { return static_cast<int>(devices.size()); }

/// `sockets` packages, each a NUMA node with a last-level cache of its own.
Host host_of_cores(const std::string& name, const std::string& model, int sockets, int cores, double core_gb_per_s) {
  Host host;
  host.name = name;
  host.cpu_model = model;
  host.packages = sockets;
  host.core_gb_per_s = core_gb_per_s;
  for (int s = 0; s < sockets; ++s) {
    NumaNode node{256 * kGiB, std::vector<int>(static_cast<std::size_t>(sockets), 20), 200};
    node.distances[static_cast<std::size_t>(s)] = 10;
    host.numa_nodes.push_back(node);
    Cache cache{3, 64 << 20, {}};
    for (int c = 0; c < cores; ++c) {
      const int cpu = s * cores + c;
      host.cores.push_back({s, s, {cpu}});
      cache.cpus.push_back(cpu);
    }
    host.caches.push_back(std::move(cache));
  }
  return host;
}

struct GpuHost {
  const char* gpu;
  double gpu_gb_per_s;
  std::uint64_t gpu_bytes;
  double pci_gb_per_s;
  double socket_gb_per_s;
  double nvlink_gb_per_s;  // 0: none
  double nic_gb_per_s;
  double nic_latency_us;
};

constexpr GpuHost kNvswitch{"H100 80GB", 3350, 80 * kGiB, 63, 60, 450, 50, 1};
constexpr GpuHost kPcie{"A100 80GB PCIe", 1935, 80 * kGiB, 31.5, 40, 0, 25, 1};

/// Four PCIe switches, two to a socket, two GPUs to a switch; NIC k of r is at switch 4 k / r.
void add_gpu_host(Topology& t, const GpuHost& kind, int rails) {
  const int h = static_cast<int>(t.hosts.size());
  Host host = host_of_cores(fmt::format("host{}", h), "two sockets", 2, 4, 12);
  constexpr int kSwitches = 4;
  for (int s = 0; s < kSwitches; ++s) {
    host.devices.push_back({DeviceKind::pci_switch, fmt::format("switch{}", s), fmt::format("0000:{:02x}:00.0", 16 * s),
                            "", s / 2, -1, kind.pci_gb_per_s, 0.3});
  }
  for (int g = 0; g < kGpus; ++g) {
    const int parent = g / 2;
    host.devices.push_back({DeviceKind::gpu, kind.gpu, fmt::format("0000:{:02x}:00.0", 16 * parent + 1 + g % 2), "",
                            parent / 2, parent, kind.pci_gb_per_s, 0.3, kind.gpu_gb_per_s, kind.gpu_bytes});
  }
  for (int k = 0; k < rails; ++k) {
    const int parent = kSwitches * k / rails;
    t.links.push_back({{h, PlaceKind::device, size_of(host.devices)},
                       {0, PlaceKind::network, k},
                       kind.nic_gb_per_s,
                       kind.nic_latency_us});
    host.devices.push_back({DeviceKind::nic, fmt::format("ib{}", k),
                            fmt::format("0000:{:02x}:00.0", 16 * parent + 4 + k % 2), fmt::format("mlx5_{}", k),
                            parent / 2, parent, kind.pci_gb_per_s, 0.3, kind.nic_gb_per_s});
  }
  t.links.push_back({{h, PlaceKind::numa_node, 0}, {h, PlaceKind::numa_node, 1}, kind.socket_gb_per_s, 0.15});
  if (kind.nvlink_gb_per_s > 0) {
    const Place nvswitch{h, PlaceKind::device, size_of(host.devices)};
    host.devices.push_back({DeviceKind::nvswitch, "NVSwitch"});
    for (int g = 0; g < kGpus; ++g) {
      t.links.push_back({{h, PlaceKind::device, kSwitches + g}, nvswitch, kind.nvlink_gb_per_s, 0.3});
    }
  }
  t.hosts.push_back(std::move(host));
}

void add_core_host(Topology& t, int cores, double nic_gb_per_s) {
  const int h = static_cast<int>(t.hosts.size());
  Host host = host_of_cores(fmt::format("host{}", h), "one socket", 1, cores, 10);
  t.links.push_back({{h, PlaceKind::device, 0}, {0, PlaceKind::network, 0}, nic_gb_per_s, 10});
  host.devices.push_back({DeviceKind::nic, "eth0", "0000:01:00.0", "", 0, -1, 15.75, 0.5, nic_gb_per_s});
  t.hosts.push_back(std::move(host));
}

Status check_option(const char* name, int value, int least, int most) {
  if (value >= least && value <= most) return {};
  return invalid_argument(fmt::format("{} is {}; expected {} to {}", name, value, least, most));
}

}  // namespace

const std::vector<std::string>& machine_names() {
  static const std::vector<std::string> names{"nvswitch", "pcie", "ethernet", "uneven"};
  return names;
}

Result<Topology> machine(std::string_view name, const MachineOptions& options) {
  const auto& names = machine_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    return invalid_argument(fmt::format("no machine is called {}; there are {}", quote(name), fmt::join(names, ", ")));
  }
  constexpr int kCores = 16;
  const bool has_gpus = name == "nvswitch" || name == "pcie";
  TUTTI_TRY(check_option("hosts", options.hosts, 1, kMostHosts));
  TUTTI_TRY(check_option("rails", options.rails, 1, has_gpus ? 8 : 1));
  if (options.rails & (options.rails - 1)) {
    return invalid_argument(fmt::format("rails is {}; expected 1, 2, 4 or 8", options.rails));
  }
  TUTTI_TRY(check_option("ranks", options.ranks, 0, has_gpus ? kGpus : kCores));
  Topology t;
  for (int k = 0; k < options.rails; ++k) t.switches.push_back({fmt::format("rail{}", k)});
  for (int h = 0; h < options.hosts; ++h) {
    if (has_gpus) {
      add_gpu_host(t, name == "nvswitch" ? kNvswitch : kPcie, options.rails);
    } else {
      add_core_host(t, kCores, name == "uneven" && h % 3 == 2 ? 1.5625 : 3.125);
    }
    constexpr int kUneven[] = {3, 1, 2};
    const int usual = has_gpus ? kGpus : (name == "uneven" ? kUneven[h % 3] : 1);
    int ranks = options.ranks == 0 ? usual : options.ranks;
    const std::vector<Device>& devices = t.hosts.back().devices;
    for (int i = 0; i < kCores && !has_gpus && ranks > 0; ++i, --ranks) t.ranks.push_back({h, PlaceKind::core, i});
    for (int d = 0; d < size_of(devices) && ranks > 0; ++d) {
      if (devices[static_cast<std::size_t>(d)].kind != DeviceKind::gpu) continue;
      t.ranks.push_back({h, PlaceKind::device, d});
      --ranks;
    }
  }
  if (options.rails > 1) {
    t.switches.push_back({"spine"});
    for (int k = 0; k < options.rails; ++k) {
      const double gb_per_s = (name == "nvswitch" ? kNvswitch : kPcie).nic_gb_per_s * options.hosts;
      t.links.push_back({{0, PlaceKind::network, k}, {0, PlaceKind::network, options.rails}, gb_per_s, 0.5});
    }
  }
  return t;
}

}  // namespace tutti::topology
