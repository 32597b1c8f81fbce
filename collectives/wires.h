// The networks that this build knows.
#pragma once

#include <memory>

#include "base/status.h"
#include "transport/wire.h"

namespace tutti {

/// The one that TUTTI_NETWORK names; for "auto" the first of those below that can be had on this host. Errors:
/// unsupported, saying for each why it cannot be had.
///   verbs   libibverbs: InfiniBand and RoCE, directly
///   ucx     Debian's libucx: TCP, shared memory, InfiniBand, whatever it finds
Result<std::unique_ptr<transport::Wire>> open_wire(const transport::WireJob& job);

}  // namespace tutti
