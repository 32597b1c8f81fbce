#include "transport/ucx/ucx.h"

#ifdef TUTTI_HAS_UCX
#include "transport/ucx/am_wire.h"
#endif

namespace tutti::transport {

#ifdef TUTTI_HAS_UCX

Result<std::unique_ptr<Wire>> UcxWire::open(const WireJob& job) { return ucx::AmWire::open(job); }

std::string UcxWire::missing() { return ucx::ucp().status().message(); }

#else

Result<std::unique_ptr<Wire>> UcxWire::open(const WireJob& /*job*/) { return unsupported(missing()); }

std::string UcxWire::missing() { return "UCX: this build is without it (its headers were not there)"; }

#endif

}  // namespace tutti::transport
