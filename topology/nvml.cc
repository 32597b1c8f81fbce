#include "topology/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <type_traits>

#include "topology/nvml_testing.h"

namespace tutti::topology {

namespace {

std::atomic<const Nvml*> table_for_tests{nullptr};

struct Loaded {
  Nvml table;
  Status status;
  Loaded() : status(load()) {}

  Status load() {
    // Never closed, as the driver.
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return unsupported("this machine has no NVML (libnvidia-ml.so.1 cannot be loaded)");
    const auto find = [&](const char* name, auto& function) -> Status {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr ? Status() : unsupported(fmt::format("NVML has no {}", name));
    };
    TUTTI_TRY(find("nvmlInit_v2", table.init));
    TUTTI_TRY(find("nvmlDeviceGetHandleByPciBusId_v2", table.device_by_pci));
    TUTTI_TRY(find("nvmlDeviceGetNvLinkState", table.link_state));
    TUTTI_TRY(find("nvmlDeviceGetNvLinkRemotePciInfo_v2", table.link_remote));
    TUTTI_TRY(find("nvmlDeviceGetNvLinkRemoteDeviceType", table.link_remote_type));
    TUTTI_TRY(find("nvmlDeviceGetTopologyCommonAncestor", table.ancestor));
    TUTTI_TRY(find("nvmlDeviceGetMemoryAffinity", table.memory_affinity));
    const int started = table.init();
    return started == kNvmlSuccess ? Status() : unsupported(fmt::format("NVML does not start (error {})", started));
  }
};

}  // namespace

Result<const Nvml*> nvml() {
  if (const Nvml* table = table_for_tests.load(std::memory_order_acquire)) return table;
  static const auto* loaded = new Loaded;
  if (!loaded->status.ok()) return loaded->status;
  return &loaded->table;
}

void set_nvml_for_tests(const Nvml* table) { table_for_tests.store(table, std::memory_order_release); }

}  // namespace tutti::topology
