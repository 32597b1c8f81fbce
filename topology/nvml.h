// NVML, NVIDIA's management library, found at run time: the few functions that give the links between GPUs. Types and
// numbers are those of nvml.h (its ABI is stable). They are repeated here, since no toolkit package that this build
// needs has the header.
//
// Threads: any.
// Source: NVML API reference, r580.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace tutti::topology {

inline constexpr int kNvmlSuccess = 0;
inline constexpr int kNvmlNotSupported = 3;
inline constexpr unsigned kNvLinksMost = 18;

using NvmlDevice = void*;

struct NvmlPci {  // nvmlPciInfo_t
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

enum class NvmlRemote : unsigned { gpu = 0, ibmnpu = 1, nvswitch = 2, unknown = 0xFF };

/// nvmlGpuTopologyLevel_t.
enum class NvmlAncestor : unsigned {
  internal = 0,  // one board
  one_switch = 10,
  switches = 20,
  host_bridge = 30,
  numa_node = 40,
  system = 50,
};

struct Nvml {
  int (*init)() = nullptr;                                                          // nvmlInit_v2
  int (*device_by_pci)(const char* bus_id, NvmlDevice* device) = nullptr;           // nvmlDeviceGetHandleByPciBusId_v2
  int (*link_state)(NvmlDevice device, unsigned link, unsigned* active) = nullptr;  // nvmlDeviceGetNvLinkState
  int (*link_remote)(NvmlDevice device, unsigned link, NvmlPci* remote) = nullptr;  // ...RemotePciInfo_v2
  int (*link_remote_type)(NvmlDevice device, unsigned link, NvmlRemote* type) = nullptr;  // ...RemoteDeviceType
  int (*ancestor)(NvmlDevice a, NvmlDevice b, NvmlAncestor* level) = nullptr;  // nvmlDeviceGetTopologyCommonAncestor
  /// nvmlDeviceGetMemoryAffinity: a bit for each NUMA node; scope 0: nodes.
  int (*memory_affinity)(NvmlDevice device, unsigned words, unsigned long* nodes, unsigned scope) = nullptr;
};

/// Returns this machine's table, initialised once. Errors: unsupported.
Result<const Nvml*> nvml();

}  // namespace tutti::topology
