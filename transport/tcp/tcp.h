// A wire over TCP, by sockets and nothing else: where hosts have no RDMA network.
//
//   TUTTI_ASSIGN(std::unique_ptr<Wire> wire, TcpWire::open(job));
//
// How. Two ranks have one connection, for both ways and all lanes, so that an answer carries the acknowledgement of
// what it answers. What goes over it are frames (frame.h): the header of a put with its bytes behind it, or a signal.
// What was held back leaves with one call of the kernel, which takes large puts from where they lie; the receiver reads
// them to where they belong. So a byte is copied by the kernel alone, once at each end. (UCX over TCP copies once more
// at each end, and asks the kernel twice where this asks once: which connection has something, and then what.)
//
// Where they belong may be elsewhere than where they were put: a receiver that would only copy a put from its slot says
// so beforehand (redirects.h), and the kernel copies the bytes to the destination.
//
// Connections are made when they are first needed. The rank that connects says which it is, and proves to be of this
// job by a nonce in the other's address, which the ranks alone know. If both connect at once, the connection of the
// lower rank stays. No call waits for a connection to be made: what is put before the other has answered waits in this
// process, and other links go on. The kernel tries for some two minutes; the deadline of a call comes first where it is
// shorter, and then obstacle() has the address. An own connection that is still being made gives way to the other's.
//
// Order. That of the connection.
//
// Failure. The kernel tells of a process that has ended, and of a host that has been silent for some 15 s (keep-alive),
// unless something is on its way there: that TCP sends again for many minutes, and the deadline of a call comes first.
// (TCP_USER_TIMEOUT would also break the link to a peer that computes and takes nothing meanwhile.)
//
// A process that waits reads its connection, if it has a single one (half a microsecond less than to ask first, and
// epoll need not hear of each message); of several, epoll tells which have something. sleep() sleeps.
//
// Threads: any; one mutex. progress() of one thread leaves that of another to it; sleep() sleeps outside of it.
#pragma once

#include <memory>

#include "transport/wire/wire.h"

namespace tutti::transport {

class TcpWire {
 public:
  /// Listens at job.own_ip. Errors: system, invalid_argument (no interface has job.own_ip).
  static Result<std::unique_ptr<Wire>> open(const WireJob& job);
};

}  // namespace tutti::transport
