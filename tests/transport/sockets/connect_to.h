// A connection that a test waits for.
#pragma once

#include "base/status.h"
#include "transport/sockets/fd.h"
#include "transport/sockets/socket.h"

namespace tutti::testing {

inline Result<sockets::Fd> connect_to(const sockets::Endpoint& to, int timeout_ms) {
  TUTTI_ASSIGN(sockets::Connecting connecting, sockets::Connecting::begin(to, timeout_ms));
  return connecting.wait();
}

}  // namespace tutti::testing
