#include "transport/tcp/tcp.h"

#include "transport/tcp/links.h"

namespace tutti::transport {

Result<std::unique_ptr<Wire>> TcpWire::open(const WireJob& job) { return tcp::Links::open(job); }

}  // namespace tutti::transport
