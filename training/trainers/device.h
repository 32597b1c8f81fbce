// --device of the trainers.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "tutti/tutti.hpp"

namespace tutti::training {

/// Checks the device before any rank starts. Errors: invalid_argument, one sentence that begins with `program`: there
/// is no such device here, or the backend does not serve its memory.
void check_device(const std::string& program, const std::string& device, const std::string& backend);

/// Collective. "cpu", or with "cuda" the GPUs of each host in turn, as its ranks come; this rank's is then the calling
/// thread's current one. `deterministic`: LibTorch's kernels give the same bits each time, too.
c10::Device choose_device(const std::string& device, const Communicator& comm, bool deterministic);

}  // namespace tutti::training
