// The PCI tree by hwloc, and what the kernel says of the ports of NICs.
//
// hwloc is loaded on demand and privately. This library is loaded into programs that may have an hwloc of their own
// (MPI libraries do), and it must work without one.
#include "topology/discover_devices.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "base/cores.h"

#ifdef TUTTI_HAS_HWLOC
#include <dlfcn.h>
#include <fmt/format.h>
#include <hwloc.h>

#include <memory>
#endif

namespace tutti::topology {

namespace {

double number_in(const std::string& path) {
  double number = 0;
  std::ifstream(path) >> number;
  return number;
}

std::string word_in(const std::string& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    names.insert(entry->path().filename().string());
  }
  return names;
}

/// Returns true if other hosts could be reached by this NIC itself.
bool is_port(const std::string& folder) {
  constexpr int kEthernet = 1;
  constexpr int kInfiniBand = 32;
  const auto type = static_cast<int>(number_in(folder + "/type"));
  std::error_code error;
  return (type == kEthernet || type == kInfiniBand) && word_in(folder + "/operstate") != "down" &&
         !std::filesystem::exists(folder + "/master", error) && !std::filesystem::exists(folder + "/bridge", error);
}

}  // namespace

void add_virtual_nics(Host& host, const std::string& root) {
  const auto nic_called = [&](const std::string& name) {
    return std::find_if(host.devices.begin(), host.devices.end(), [&](const Device& device) {
      return device.kind == DeviceKind::nic && !name.empty() && (device.name == name || device.rdma == name);
    });
  };
  const auto add = [&](const std::string& name, const std::string& rdma) {
    Device device{DeviceKind::nic, name, "", rdma};
    device.gb_per_s = port_gb_per_s(root, name, rdma);
    host.devices.push_back(std::move(device));
  };
  const std::string interfaces = root + "/sys/class/net";
  for (const std::string& name : names_in(interfaces)) {
    if (nic_called(name) == host.devices.end() && is_port(interfaces + "/" + name)) add(name, "");
  }
  const std::string rdma_devices = root + "/sys/class/infiniband";
  for (const std::string& rdma : names_in(rdma_devices)) {
    if (nic_called(rdma) != host.devices.end()) continue;
    const auto under = nic_called(word_in(rdma_devices + "/" + rdma + "/parent"));  // Soft-RoCE: the NIC it goes by
    if (under == host.devices.end()) {
      add(rdma, rdma);
    } else if (under->rdma.empty()) {
      under->rdma = rdma;
    }
  }
}

double port_gb_per_s(const std::string& root, const std::string& interface, const std::string& rdma) {
  // "200 Gb/sec (4X HDR)"; the interface of an InfiniBand NIC has no speed.
  if (!rdma.empty()) {
    const double gbit = number_in(root + "/sys/class/infiniband/" + rdma + "/ports/1/rate");
    if (gbit > 0) return gbit / 8;
  }
  const double mbit = interface.empty() ? 0 : number_in(root + "/sys/class/net/" + interface + "/speed");
  return mbit > 0 ? mbit / 8e3 : 0;  // -1: a virtual one
}

#ifdef TUTTI_HAS_HWLOC

namespace {

using PciAttributes = hwloc_obj_attr_u::hwloc_pcidev_attr_s;

/// The functions of hwloc that are needed here.
struct Hwloc {
  void* library = dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL);
  decltype(&hwloc_topology_init) init = find<decltype(init)>("hwloc_topology_init");
  decltype(&hwloc_topology_set_io_types_filter) set_io_types_filter =
      find<decltype(set_io_types_filter)>("hwloc_topology_set_io_types_filter");
  decltype(&hwloc_topology_load) load = find<decltype(load)>("hwloc_topology_load");
  decltype(&hwloc_topology_destroy) destroy = find<decltype(destroy)>("hwloc_topology_destroy");
  decltype(&hwloc_get_obj_by_depth) object = find<decltype(object)>("hwloc_get_obj_by_depth");
  decltype(&hwloc_bitmap_first) first_of = find<decltype(first_of)>("hwloc_bitmap_first");

  bool is_there() const { return init && set_io_types_filter && load && destroy && object && first_of; }

 private:
  template <class Function>
  Function find(const char* name) const {
    return library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
  }
};

constexpr unsigned kNetworkClass = 0x02;
constexpr unsigned kDisplayClass = 0x03;
constexpr unsigned kAcceleratorClass = 0x12;
constexpr unsigned kNvidia = 0x10de;
constexpr unsigned kAmd = 0x1002;

class DeviceTree {
 public:
  DeviceTree(const Hwloc& hwloc, Host& host, const CpuList& numa_numbers, const std::string& root)
      : hwloc_(hwloc), host_(host), numa_numbers_(numa_numbers), root_(root) {}

  /// Adds the devices of an object that is no I/O object, and of its children.
  void visit(hwloc_obj_t object) {
    for (hwloc_obj_t io = object->io_first_child; io != nullptr; io = io->next_sibling) {
      const int number = object->nodeset == nullptr ? -1 : hwloc_.first_of(object->nodeset);
      const auto found = std::find(numa_numbers_.begin(), numa_numbers_.end(), number);
      const auto node = found == numa_numbers_.end() ? 0 : static_cast<int>(found - numa_numbers_.begin());
      visit_io(io, std::min(node, static_cast<int>(host_.numa_nodes.size()) - 1), -1);
    }
    for (hwloc_obj_t child = object->first_child; child != nullptr; child = child->next_sibling) visit(child);
  }

 private:
  static std::string address_of(const PciAttributes& pci) {
    return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", unsigned{pci.domain}, unsigned{pci.bus}, unsigned{pci.dev},
                       unsigned{pci.func});
  }

  static bool is_gpu(const PciAttributes& pci) {
    const unsigned kind = pci.class_id >> 8;
    return (kind == kDisplayClass || kind == kAcceleratorClass) && (pci.vendor_id == kNvidia || pci.vendor_id == kAmd);
  }

  static std::string name_of_child(hwloc_obj_t pci, hwloc_obj_osdev_type_e type) {
    for (hwloc_obj_t child = pci->io_first_child; child != nullptr; child = child->next_sibling) {
      if (child->type == HWLOC_OBJ_OS_DEVICE && child->attr->osdev.type == type && child->name != nullptr) {
        return child->name;
      }
    }
    return "";
  }

  static bool is_nic(hwloc_obj_t pci) {
    return pci->attr->pcidev.class_id >> 8 == kNetworkClass &&
           !(name_of_child(pci, HWLOC_OBJ_OSDEV_NETWORK) + name_of_child(pci, HWLOC_OBJ_OSDEV_OPENFABRICS)).empty();
  }

  /// GPUs and NICs at or below an object.
  static int devices_in(hwloc_obj_t io) {
    if (io->type == HWLOC_OBJ_PCI_DEVICE) return is_gpu(io->attr->pcidev) || is_nic(io) ? 1 : 0;
    int count = 0;
    for (hwloc_obj_t child = io->io_first_child; child != nullptr; child = child->next_sibling) {
      count += devices_in(child);
    }
    return count;
  }

  void visit_io(hwloc_obj_t io, int node, int parent) {
    if (io->type == HWLOC_OBJ_PCI_DEVICE) {
      add(io, node, parent);
      return;
    }
    if (io->type != HWLOC_OBJ_BRIDGE) return;
    // A bridge counts as a switch if devices below it branch; a port with one device behind it is part of the way.
    int branches = 0;
    for (hwloc_obj_t child = io->io_first_child; child != nullptr; child = child->next_sibling) {
      branches += devices_in(child) > 0 ? 1 : 0;
    }
    if (branches > 1 && io->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI) {
      const PciAttributes& pci = io->attr->bridge.upstream.pci;
      host_.devices.push_back({DeviceKind::pci_switch, "", address_of(pci), "", node, parent, pci.linkspeed});
      parent = static_cast<int>(host_.devices.size()) - 1;
    }
    for (hwloc_obj_t child = io->io_first_child; child != nullptr; child = child->next_sibling) {
      visit_io(child, node, parent);
    }
  }

  void add(hwloc_obj_t io, int node, int parent) {
    const PciAttributes& pci = io->attr->pcidev;
    Device device{DeviceKind::gpu, "", address_of(pci), "", node, parent, pci.linkspeed};
    if (is_nic(io)) {
      device.kind = DeviceKind::nic;
      device.name = name_of_child(io, HWLOC_OBJ_OSDEV_NETWORK);
      device.rdma = name_of_child(io, HWLOC_OBJ_OSDEV_OPENFABRICS);
      device.gb_per_s = port_gb_per_s(root_, device.name, device.rdma);
      if (device.name.empty()) device.name = device.rdma;
    } else if (!is_gpu(pci)) {
      return;
    }
    host_.devices.push_back(std::move(device));
  }

  const Hwloc& hwloc_;
  Host& host_;
  const CpuList& numa_numbers_;
  const std::string& root_;
};

}  // namespace

void add_devices(Host& host, const CpuList& numa_numbers, const std::string& root) {
  // If sched_getaffinity is refused, hwloc asks for the allowed cores again for ever.
  if (allowed_cores().empty()) return;
  static const Hwloc hwloc;
  hwloc_topology_t topology = nullptr;
  if (!hwloc.is_there() || hwloc.init(&topology) != 0) return;
  if (hwloc.set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL) == 0 && hwloc.load(topology) == 0) {
    DeviceTree(hwloc, host, numa_numbers, root).visit(hwloc.object(topology, 0, 0));
  }
  hwloc.destroy(topology);
}

#else

void add_devices(Host& /*host*/, const CpuList& /*numa_numbers*/, const std::string& /*root*/) {}

#endif

}  // namespace tutti::topology
