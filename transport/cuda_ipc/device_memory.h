// tutti::allocate() for device memory, as the public API needs it; needs no CUDA header.
//
// Thread-safe.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace tutti::transport {

/// On the calling thread's current device, or GPU 0 when it has none, from that GPU's arena (arena.h). Zero-filled.
/// Errors: memory_limit; unsupported without a driver, or in a build without CUDA.
Result<std::byte*> allocate_device(std::size_t bytes);
/// Returns false if it is not from there. Costs a load as long as nothing was allocated.
bool deallocate_device(void* pointer);

}  // namespace tutti::transport
