// A wire over UCX's UCP, whatever it goes by: TCP, InfiniBand, RoCE.
//
//   TUTTI_ASSIGN(std::unique_ptr<Wire> wire, UcxWire::open(job));
//
// How. All goes by UCP's active messages, not by ucp_put: over TCP that is emulated, with an answer from the peer for
// each put (98 us and 144 MB/s at 1 MiB between two namespaces, where active messages had 12.5 us and 587 MB/s). What
// is held back for one rank and lane is one message (am_message.h): small puts with their bytes, signals, and at most
// one piece of a large put, whose bytes UCX takes from where they are; the receiver names the destination in the
// exposed memory. Over RDMA a large put is one piece, by rendezvous, and not copied at all. Over TCP it goes in pieces
// that fit into a segment, which are copied once, from UCX's segment to their destination. Rendezvous is hardly faster
// there, and its answers wait behind the data that goes the other way: where both sides put 1 MiB at once over 1 Gbit/s
// it took 24 ms, pieces take 8.8, and the link alone 8.4. UCX_RNDV_THRESH, if set, brings UCX's own choice back.
//
// Registrations. Exposed memory is registered (ucp_mem_map) until unexpose(). Other memory that a large put is sent
// from UCX registers by itself where it goes by RDMA, and keeps that in a cache of its own until the pages are
// unmapped, for which it watches; job.blocks is not used.
//
// Order. Messages are numbered in their lane. A signal is written when all messages before its own have come, and the
// large puts before it have been written (ReorderQueue). Puts are written as they come: of two that write the same
// bytes, the one that is put later is seen only if the peer has answered in between. (Plans do not do that: the
// verifier refuses it.)
//
// Going away. A process that computes for a minute moves nothing meanwhile. Nearly always a message is the kernel's (or
// the device's) when signal() returns; where it is not, because the connection is new or the socket full, idle() tells.
// It does not tell of one thing: a full socket that took the last message in part (am_wire.cc, idle(), has why).
//
// Failure. UCX tells when a link breaks (UCP_ERR_HANDLING_MODE_PEER); a peer that is silent is asked for signs of life
// (kKeepalive). That needs an endpoint: made at the first put or signal to a peer, or when it is first heard of. No
// call waits for the connection (TCP_CONN_NB); where there is none yet (a firewall that drops), obstacle() tells that
// nothing has left. What UCX has taken it reads until the peer has it: release_source() closes the endpoint by force.
// Shared memory, if UCX_TLS names it, tells of no death, and nothing ends what is under way there.
//
// What UCX is told, where its environment (UCX_...) does not say otherwise: to use the interface of job.own_ip and this
// host's RDMA devices (TUTTI_INTERFACE: that interface alone, and the RDMA device behind it), and no shared memory,
// since ranks of one host are not linked here and the memory of namespaces is not that of hosts. UCX_LOG_LEVEL is
// fatal: what goes wrong is told by a Status.
//
// Threads: any; one mutex. progress() of one thread leaves that of another to it; sleep() sleeps outside of it.
#pragma once

#include <memory>
#include <string>

#include "transport/wire/wire.h"

namespace tutti::transport {

class UcxWire {
 public:
  /// Errors: unsupported (no UCX in this build or on this machine, or nothing it could go by), invalid_argument (no
  /// interface has job.own_ip), system.
  static Result<std::unique_ptr<Wire>> open(const WireJob& job);

  /// Why there is none here, in a sentence; empty: there may be. Loads the library, opens nothing.
  static std::string missing();
};

}  // namespace tutti::transport
