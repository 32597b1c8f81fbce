#include "collectives/device/multi_host/gdr_trial.h"

#include <cstddef>
#include <memory>

#include "collectives/device/multi_host/host_staging.h"
#include "transport/verbs/verbs.h"

namespace tutti {

Status try_gpu_direct(int device, const std::string& own_ip) {
  TUTTI_ASSIGN(const std::unique_ptr<HostStaging> staging, HostStaging::create(device, std::size_t{64} << 10));
  TUTTI_ASSIGN(const HostStaging::Direct direct, staging->open_gdr());
  return transport::VerbsWire::try_device_memory(own_ip, direct.base, direct.bytes, direct.memory);
}

}  // namespace tutti
