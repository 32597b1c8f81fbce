// A copy between device memory, or between it and the host's, in a stream. Thread-safe.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace tutti {

/// Returns when it is in the stream (a cudaStream_t). Errors: what the driver says.
Status copy_on_device(void* to, const void* from, std::size_t bytes, void* stream);

}  // namespace tutti
