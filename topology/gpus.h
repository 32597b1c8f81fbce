// The GPUs that this process may use, and the links between them: from the CUDA driver, and from NVML if it is
// installed (NVLink, NVSwitch, PCIe distance, NUMA nodes). All found at run time.
//
// Threads: any; plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "topology/topology.h"

namespace tutti::topology {

struct Gpu {
  std::string name;
  std::string pci;     // "0000:1b:00.0", small letters
  std::string uuid;    // 32 hexadecimal digits: the same on every process
  int capability = 0;  // 90: sm_90
  int multiprocessors = 0;
  std::uint64_t bytes = 0;
  double gb_per_s = 0;        // of its memory, by its clock and width; 0: unknown
  int numa_node = -1;         // with the nearest memory; -1: unknown
  int nvlinks = 0;            // that are up
  int links_to_switches = 0;  // of these: to an NVSwitch, over which all of its GPUs are reached
};

/// How far a PCIe message goes from one GPU to another.
enum class PciPath { unknown, board, one_switch, switches, host_bridge, numa_node, system };
const char* name_of(PciPath path);

/// Two GPUs, by index; a < b.
struct GpuPair {
  int a = 0;
  int b = 0;
  bool peer_access = false;  // kernels of one reach the memory of the other, both ways
  int nvlinks = 0;           // direct ones
  bool nvswitch = false;     // both are linked to switches
  PciPath path = PciPath::unknown;
};

struct Gpus {
  std::vector<Gpu> gpus;  // by ordinal
  std::vector<GpuPair> pairs;
  std::string without_nvml;  // why there are no figures of NVML; empty: there are
};

/// Adds them to a host: each becomes a device, or fills in the one of the same PCI address, and NVLinks become links
/// (to the host's NVSwitch if they lead to switches). Unknown figures stay as they are. NVLink's bandwidth is that of
/// the GPU's generation, 25 GB/s a link and direction before sm_100, 50 from then on. REQUIRES: the host has NUMA
/// nodes.
void add_gpus(const Gpus& gpus, int host, Topology& topology);

/// Errors: unsupported (no driver, no GPU, or a build without CUDA), system.
Result<Gpus> discover_gpus();

}  // namespace tutti::topology
