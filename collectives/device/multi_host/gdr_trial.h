// Whether GPUDirect works on this machine.
#pragma once

#include <string>

#include "base/status.h"

namespace tutti {

/// Tries whether the NIC of this machine that serves peers at `own_ip` can read and write memory of GPU `device`, with
/// a small buffer. Errors: unsupported and why not; system.
Status try_gpu_direct(int device, const std::string& own_ip);

}  // namespace tutti
