// The wire over InfiniBand and RoCE: libibverbs directly, one reliable connection (RC queue pair) for each linked
// rank and each rail that the two go by (topology/rails.h), RDMA writes for puts and for signals.
//
//   TUTTI_ASSIGN(std::unique_ptr<Wire> wire, VerbsWire::open(job));      // from here on as transport/wire/wire.h says
//
// Signals are RDMA writes too: one of sixteen bytes, inline, behind the data on the same connection. The bytes of one
// write may land in any order, so the tag may be seen a moment after its count (wire.h says so); writes of a connection
// are executed one after the other: the responder takes packets in the order of their numbers, drops those that come
// early, and answers one that comes twice without writing again. (Two writes, the tag's first, were a packet and an
// acknowledgement more for each signal.) The device's writes to memory keep their order too, as long as memory is
// not registered for relaxed ordering (here it never is). The specification promises that only for what a completion at
// the receiver announces, that is for a write with immediate data, but NICs do it, and every library that polls memory
// builds on it. The immediate's price is why it is not taken: each one uses up a receive request, so a receiver that
// computes for a while, and gives no new ones, would stop its senders (receiver-not-ready, retries, a broken link);
// here a receiver need not do anything. Soft-RoCE copies a write byte by byte in rising order, so a count may be seen
// half written; such a value is at most the new one as long as counts grow: the counts of a cell may only grow. An
// inline put is one write too; that its bytes may land in any order is why it must show by itself whether it is whole.
//
// No wake-up. An RDMA write wakes no process at the receiver. sleep() sleeps until something of its own completes,
// or for a pause: 20 us, twice that when it is called again and nothing has happened, up to what its caller allows
// (half a millisecond: kNetSleep of the executor). That is what a message may cost after a quiet time, and what quiet
// costs: two thousand wake-ups a second, about 2 % of a core.
//
// Sources. A put whose source lies in exposed memory, or in a block of tutti's own allocation, is sent from there (a
// ticket tells when it has been read). A block is registered with the first put of 16 KiB or more from it, whole, and
// until it ends, with the rail that it leaves by, as long as such blocks lock no more than half of what the process
// may. Any other source is copied through 4 MiB of registered bounce buffers, and is completed when put() returns,
// where there is room; rail.h says why there is no cache of all registrations. Up to Link::kMostInline bytes go along
// with the request.
//
// Device memory (GPUDirect). What is exposed by a dmabuf (ibv_reg_dmabuf_mr) is read and written by the NIC alone:
// puts from there are never inlined, packed or copied, however small. A NIC, its kernel's driver or a library that
// cannot says so, and memory of the host serves instead (collectives/device/multi_host/host_staging.h).
//
// Flow. Send queues are as deep as fits into the completion queue (flow.h), so neither can overrun. What
// finds its queue or the bounce buffers full stays in a backlog of its link, from where it lies, as long as its ticket
// is not completed; progress() moves it on, and idle() tells whether there is any. So nothing here waits for a slow
// link: the caller waits, with its deadline.
//
// Errors: a packet without an answer is sent again for about two seconds; then the link breaks with the device's
// words. A peer that is gone is noticed when something is sent to it; who waits and sends nothing probes all peers with
// a write of nothing, twice a second. A link breaks on all rails at once. What the device has been given it reads
// until it is done, or until the queue pair is taken from it: so does release_source().
//
// Address: a header, then what a rail is known by, then the numbers of the queue pairs for each rank: each pair of
// processes has queue pairs of its own, which are made when the wire is opened and connected in meet(). REQUIRES:
// all ranks have returned from meet() before any of them puts (the exchange of keys sees to it).
//
// Rail k of a rank is connected to rail k of its peer where both have equally many. Else each end takes its share of
// its rails; the peer with more leaves the rest unused for this pair.
// Threads: as transport/wire/wire.h says.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "transport/wire/wire.h"

namespace tutti::transport {

class VerbsWire {
 public:
  /// The devices of TUTTI_VERBS_DEVICES, or those that devices.h chooses. Errors: unsupported (no library, no device),
  /// invalid_argument (devices that there are not), memory_limit, system.
  static Result<std::unique_ptr<Wire>> open(const WireJob& job);
  /// Opens it with other devices than the process's option names.
  static Result<std::unique_ptr<Wire>> open(const WireJob& job, const std::string& devices);

  /// Registers a device's memory with the first port that a wire at `own_ip` would use, and forgets it again. Errors:
  /// unsupported (no library, no port, or what Wire::expose_device() says), system.
  static Status try_device_memory(const std::string& own_ip, std::byte* base, std::size_t bytes, const Dmabuf& memory);

  /// Lists what there is: "rxe0:1 (RoCE, active, 10.9.0.1)". Errors: unsupported, where there is no port or no library.
  static Result<std::string> devices();
};

}  // namespace tutti::transport
