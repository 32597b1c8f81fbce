#include "topology/gpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <utility>

#include "device/memory_kind.h"
#include "topology/discover.h"
#include "topology/nvml.h"
#if TUTTI_HAS_CUDA
#include "device/driver.h"
#endif

namespace tutti::topology {

const char* name_of(PciPath path) {
  switch (path) {
    case PciPath::unknown: return "not told";
    case PciPath::board: return "one board";
    case PciPath::one_switch: return "one PCIe switch";
    case PciPath::switches: return "several PCIe switches";
    case PciPath::host_bridge: return "the host's PCIe bridge";
    case PciPath::numa_node: return "bridges of one NUMA node";
    case PciPath::system: return "NUMA nodes";
  }
  return "?";
}

namespace {

/// Returns the host's device of that kind and PCI address, made if it is missing.
std::size_t find_or_add(Host& host, DeviceKind kind, const std::string& pci) {
  for (std::size_t d = 0; d < host.devices.size(); ++d) {
    if (host.devices[d].kind == kind && host.devices[d].pci == pci) return d;
  }
  host.devices.push_back({.kind = kind, .pci = pci});
  return host.devices.size() - 1;
}

double nvlink_gb_per_s(const Gpu& gpu) { return gpu.capability >= 100 ? 50 : 25; }

}  // namespace

void add_gpus(const Gpus& gpus, int number, Topology& topology) {
  Host& host = topology.hosts[static_cast<std::size_t>(number)];
  std::vector<Place> places;
  for (const Gpu& gpu : gpus.gpus) {
    const std::size_t at = find_or_add(host, DeviceKind::gpu, gpu.pci);
    Device& device = host.devices[at];
    device.name = gpu.name;
    device.bytes = gpu.bytes;
    device.gb_per_s = gpu.gb_per_s;
    const bool known = gpu.numa_node >= 0 && static_cast<std::size_t>(gpu.numa_node) < host.numa_nodes.size();
    if (known && device.parent < 0) device.numa_node = gpu.numa_node;  // below a switch it is the switch's
    places.push_back({.host = number, .kind = PlaceKind::device, .index = static_cast<int>(at)});
  }
  const auto link = [&](const Place& a, const Place& b, double gb_per_s) {
    const bool there = std::any_of(topology.links.begin(), topology.links.end(), [&](const Link& known) {
      return (known.a == a && known.b == b) || (known.a == b && known.b == a);
    });
    if (!there) topology.links.push_back({.a = a, .b = b, .gb_per_s = gb_per_s});
  };
  for (std::size_t g = 0; g < gpus.gpus.size(); ++g) {
    const Gpu& gpu = gpus.gpus[g];
    if (gpu.links_to_switches == 0) continue;
    const std::size_t at = find_or_add(host, DeviceKind::nvswitch, "");
    host.devices[at].name = "NVSwitch";
    link(places[g], {.host = number, .kind = PlaceKind::device, .index = static_cast<int>(at)},
         gpu.links_to_switches * nvlink_gb_per_s(gpu));
  }
  for (const GpuPair& pair : gpus.pairs) {
    const auto a = static_cast<std::size_t>(pair.a);
    if (pair.nvlinks == 0) continue;
    link(places[a], places[static_cast<std::size_t>(pair.b)], pair.nvlinks * nvlink_gb_per_s(gpus.gpus[a]));
  }
}

#if TUTTI_HAS_CUDA

namespace {

using device::attribute;
using device::check;

Result<Gpu> ask_driver(const device::Driver& cuda, int ordinal) {
  Gpu gpu;
  CUdevice handle = 0;
  char text[256] = {};
  std::size_t bytes = 0;
  TUTTI_TRY(check(cuda.DeviceGet(&handle, ordinal), "cuDeviceGet"));
  TUTTI_TRY(check(cuda.DeviceGetName(text, sizeof(text) - 1, handle), "cuDeviceGetName"));
  gpu.name = text;
  TUTTI_TRY(check(cuda.DeviceGetPCIBusId(text, sizeof(text) - 1, handle), "cuDeviceGetPCIBusId"));
  gpu.pci = text;
  std::transform(gpu.pci.begin(), gpu.pci.end(), gpu.pci.begin(), [](unsigned char c) { return std::tolower(c); });
  TUTTI_TRY(check(cuda.DeviceTotalMem(&bytes, handle), "cuDeviceTotalMem"));
  gpu.bytes = bytes;
  TUTTI_ASSIGN(const int major, attribute(ordinal, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  TUTTI_ASSIGN(const int minor, attribute(ordinal, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  gpu.capability = 10 * major + minor;
  TUTTI_ASSIGN(gpu.multiprocessors, attribute(ordinal, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  TUTTI_ASSIGN(const int clock, attribute(ordinal, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE));        // kHz
  TUTTI_ASSIGN(const int width, attribute(ordinal, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH));  // bits
  gpu.gb_per_s = 2.0 * clock * 1e3 * width / 8 * 1e-9;  // two transfers a clock
  TUTTI_ASSIGN(const CUuuid uuid, device::uuid_of(ordinal));
  for (const char byte : uuid.bytes) gpu.uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  gpu.numa_node = numa_node_of_pci(gpu.pci);
  return gpu;
}

/// Bus ids are written with 4 or 8 digits for the domain, and in either case.
bool is_same_bus(std::string a, std::string b) {
  for (std::string* id : {&a, &b}) {
    std::transform(id->begin(), id->end(), id->begin(), [](unsigned char c) { return std::tolower(c); });
    if (id->size() > 12) id->erase(0, id->size() - 12);
  }
  return a == b;
}

PciPath path_of(NvmlAncestor level) {
  switch (level) {
    case NvmlAncestor::internal: return PciPath::board;
    case NvmlAncestor::one_switch: return PciPath::one_switch;
    case NvmlAncestor::switches: return PciPath::switches;
    case NvmlAncestor::host_bridge: return PciPath::host_bridge;
    case NvmlAncestor::numa_node: return PciPath::numa_node;
    case NvmlAncestor::system: return PciPath::system;
  }
  return PciPath::unknown;
}

/// Figures that NVML does not have stay as they are.
void ask_nvml(const Nvml& nvml, Gpus& found) {
  std::vector<NvmlDevice> devices(found.gpus.size());
  std::vector<std::vector<std::string>> remotes(found.gpus.size());  // bus ids at the other ends of NVLinks
  for (std::size_t g = 0; g < devices.size(); ++g) {
    Gpu& gpu = found.gpus[g];
    if (nvml.device_by_pci(gpu.pci.c_str(), &devices[g]) != kNvmlSuccess) {
      devices[g] = nullptr;
      continue;
    }
    unsigned long nodes = 0;
    if (nvml.memory_affinity(devices[g], 1, &nodes, 0) == kNvmlSuccess && nodes != 0) {
      gpu.numa_node = __builtin_ctzl(nodes);
    }
    for (unsigned link = 0; link < kNvLinksMost; ++link) {
      unsigned active = 0;
      if (nvml.link_state(devices[g], link, &active) != kNvmlSuccess || active == 0) continue;
      ++gpu.nvlinks;
      NvmlRemote type = NvmlRemote::unknown;
      NvmlPci remote{};
      if (nvml.link_remote_type(devices[g], link, &type) == kNvmlSuccess && type == NvmlRemote::nvswitch) {
        ++gpu.links_to_switches;
      } else if (nvml.link_remote(devices[g], link, &remote) == kNvmlSuccess) {
        remotes[g].emplace_back(remote.bus_id, strnlen(remote.bus_id, sizeof(remote.bus_id)));
      }
    }
  }
  for (GpuPair& pair : found.pairs) {
    const auto a = static_cast<std::size_t>(pair.a);
    const auto b = static_cast<std::size_t>(pair.b);
    pair.nvswitch = found.gpus[a].links_to_switches > 0 && found.gpus[b].links_to_switches > 0;
    pair.nvlinks = static_cast<int>(std::count_if(remotes[a].begin(), remotes[a].end(), [&](const std::string& bus) {
      return is_same_bus(bus, found.gpus[b].pci);
    }));
    NvmlAncestor level{};
    if (devices[a] != nullptr && devices[b] != nullptr &&
        nvml.ancestor(devices[a], devices[b], &level) == kNvmlSuccess) {
      pair.path = path_of(level);
    }
  }
}

}  // namespace

Result<Gpus> discover_gpus() {
  TUTTI_ASSIGN(const device::Driver* cuda, device::driver());
  TUTTI_ASSIGN(const int count, device::device_count());
  Gpus found;
  for (int g = 0; g < count; ++g) {
    TUTTI_ASSIGN(Gpu gpu, ask_driver(*cuda, g));
    found.gpus.push_back(std::move(gpu));
  }
  for (int a = 0; a < count; ++a) {
    for (int b = a + 1; b < count; ++b) {
      int there = 0;
      int back = 0;
      TUTTI_TRY(check(cuda->DeviceCanAccessPeer(&there, a, b), "cuDeviceCanAccessPeer"));
      TUTTI_TRY(check(cuda->DeviceCanAccessPeer(&back, b, a), "cuDeviceCanAccessPeer"));
      found.pairs.push_back({.a = a, .b = b, .peer_access = there != 0 && back != 0});
    }
  }
  const Result<const Nvml*> management = nvml();
  if (management.ok()) {
    ask_nvml(*management.value(), found);
  } else {
    found.without_nvml = management.status().message();
  }
  return found;
}

#else

Result<Gpus> discover_gpus() { return device::available(); }

#endif

}  // namespace tutti::topology
