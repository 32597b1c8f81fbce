#include "transport/tcp/tcp.h"

#include "transport/tcp/stream_wire.h"

namespace tutti::transport {

Result<std::unique_ptr<Wire>> TcpWire::open(const WireJob& job) { return tcp::StreamWire::open(job); }

}  // namespace tutti::transport
