// The contract between the transport of a job on several hosts (transport/hosts) and what a network offers: one-sided
// writes into memory that its owner has exposed, and signals behind them. TCP, verbs and UCX implement it.
//
//   TUTTI_ASSIGN(std::unique_ptr<Wire> wire, TcpWire::open(job));
//   ... the addresses of all ranks are exchanged ...
//   TUTTI_TRY(wire->meet(addresses));
//   TUTTI_ASSIGN(const std::string key, wire->expose(memory, bytes));
//   ... the keys of all ranks are exchanged ...
//   TUTTI_ASSIGN(const Region there, wire->attach(rank, key, bytes));
//   TUTTI_TRY(wire->put(rank, lane, there, at, from, bytes, ticket));     // `from` is read until completed(ticket)
//   TUTTI_TRY(wire->signal(rank, lane, there, cell, count, tag, Flush::now));  // seen after what was put before it
//   TUTTI_TRY(wire->progress());                                           // again and again while waiting
//
// One Wire serves a process in one job, whatever communicators it makes. All ranks here are ranks of the job.
//
// Order: what is put, signalled and put inline to one rank in one lane is seen there in that order: a rank that sees a
// signal sees all that was put before it. Lanes are not ordered among each other; they may go by different devices
// (rails).
//
// Holding back: put(), and signal() and put_inline() with Flush::later, may wait for more, so that what belongs
// together goes as one message. A signal() or put_inline() with Flush::now to the same rank and lane sends it, and so
// does flush().
//
// Failure: a link that has broken stays broken. put(), signal(), put_inline() and broken() return its error, for that
// rank alone; the tickets of what was under way complete. The error has the device or address, and what the network's
// library says.
//
// Threads: any; calls are serialised inside.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tutti::transport {

class Blocks;  // blocks.h

/// The ranks of a job, as a wire must know them.
struct WireJob {
  int rank = 0;                    // this process's
  std::vector<int> hosts;          // by rank: equal numbers on equal hosts. Ranks of one host are not linked
  std::vector<std::string> names;  // by rank, for errors: "rank 3 (host alpha, pid 4711)"
  int lanes = 1;                   // that put() and signal() name
  std::string own_ip;              // the address of this host that its peers reach (IPv4 or IPv6), which chooses the
                                   // interface where TUTTI_INTERFACE does not; empty: any
  std::string only_link_local;  // where own_ip is empty: the interface by which another host was met, whose addresses
                                // mean nothing there; empty: none
  Blocks* blocks = nullptr;     // memory whose registrations a wire may keep; null: none. Outlives the wire

  int size() const { return static_cast<int>(hosts.size()); }
  /// Returns true if `other` is on another host.
  bool linked(int other) const {
    return hosts[static_cast<std::size_t>(other)] != hosts[static_cast<std::size_t>(rank)];
  }
};

/// Checked by networks that go by IP addresses alone. Errors: unsupported, this host has link-local addresses alone:
/// they count only beside the number of an interface, which differs from host to host.
inline Status check_has_address(const WireJob& job) {
  if (job.only_link_local.empty()) return {};
  return unsupported("this host's interface " + job.only_link_local +
                     " has link-local addresses of IPv6 alone; expected another address, IPv4 or IPv6");
}

/// A peer's exposed memory, as this process names it; never 0.
using Region = std::uint32_t;

/// Memory of a device (a GPU), as its driver hands it out to other devices: a dmabuf. The caller owns the descriptor.
struct Dmabuf {
  int descriptor = -1;
  std::uint64_t offset = 0;  // where in it the memory begins
};

/// A put whose source is still being read; 0: it has been read.
using Ticket = std::uint64_t;

/// Says whether a signal is sent now, with what was held back before it, or may be held back too.
enum class Flush : std::uint8_t { now, later };

struct WireInfo {
  std::string name;         // "tcp", "verbs", "ucx"
  std::string devices;      // what it goes by, for people: "eth0", "rxe0:1 gid 1 (10.9.0.1), rxe1:1 gid 1 (10.9.1.1)"
  std::size_t copied = 0;   // puts of up to so many bytes complete at once
  double alpha_us = 0;      // latency of a signal
  double gb_per_s = 0;      // of all rails together
  bool to_devices = false;  // expose_device() is worth trying
};

class Wire {
 public:
  // Limits of a key, an address and an inline put.
  static constexpr std::size_t kMostKeyBytes = 256;
  static constexpr std::size_t kMostKeyWords = kMostKeyBytes / sizeof(std::uint64_t);
  static constexpr std::size_t kMostAddressBytes = 64 << 10;
  static constexpr std::size_t kMostInlineBytes = 512;

  virtual ~Wire() = default;
  virtual const WireInfo& info() const = 0;

  /// Returns what peers must know to reach this process. Valid for the wire's lifetime.
  virtual const std::string& address() const = 0;
  /// Takes the addresses of all ranks, by rank. Connections may be made here or when they are first needed.
  /// Errors: unsupported (names a peer that this wire cannot reach), system.
  virtual Status meet(const std::vector<std::string>& addresses) = 0;

  /// Lets peers write into [base, base + bytes), until unexpose(). Errors: system, memory_limit (the limit of locked
  /// memory, with what to do).
  virtual Result<std::string> expose(std::byte* base, std::size_t bytes) = 0;
  /// Exposes a device's memory, which this process may be unable to reach by its address `base`: the NIC reads and
  /// writes it without a copy. Errors: unsupported (this wire, its library or its device cannot), those of expose().
  virtual Result<std::string> expose_device(std::byte* base, std::size_t bytes, const Dmabuf& memory) {
    return unsupported(info().name + " has no way to a device's memory");
  }
  /// Deregisters it. REQUIRES: no peer writes there any more, or its link is broken.
  virtual void unexpose(std::byte* base) = 0;
  /// Attaches memory by the key under which `rank` has exposed it. Errors: invalid_argument (it is no key, or not of
  /// `bytes`, which puts and signals must not go beyond). REQUIRES: linked(rank).
  virtual Result<Region> attach(int rank, std::string_view key, std::size_t bytes) = 0;
  virtual void detach(Region region) = 0;

  /// Writes `bytes` to `at` in the region. `from`: memory of this process, or of a device that is exposed; what lies in
  /// exposed memory need not be copied. Errors: the link is broken; then `ticket` stands for what was taken.
  virtual Status put(int rank, int lane, Region to, std::size_t at, const void* from, std::size_t bytes,
                     Ticket& ticket) = 0;
  /// Writes `count` to `at` and `tag` behind it, sixteen bytes at a multiple of sixteen. A rank that sees `count` sees
  /// all that was put before. `tag` comes with it, but over some networks (verbs) may be seen a moment later: a caller
  /// that must not see an old tag there puts it before, too. Errors: the link is broken.
  virtual Status signal(int rank, int lane, Region to, std::size_t at, std::uint64_t count, std::uint64_t tag,
                        Flush flush) = 0;
  /// Writes `bytes`, 16 to kMostInlineBytes, to `at`, a multiple of sixteen, behind what was put before. They may be
  /// seen in any order and in part, so a record that goes this way needs a checksum. `from` is free at once. Errors:
  /// the link is broken. (As written here: for wires that copy such puts.)
  virtual Status put_inline(int rank, int lane, Region to, std::size_t at, const void* from, std::size_t bytes,
                            Flush flush) {
    const auto* begin = static_cast<const std::byte*>(from);
    std::uint64_t head[2];
    std::memcpy(head, begin, sizeof head);
    Ticket copied = 0;
    TUTTI_TRY(put(rank, lane, to, at + sizeof head, begin + sizeof head, bytes - sizeof head, copied));
    return signal(rank, lane, to, at, head[0], head[1], flush);
  }
  /// Returns true once the source of the put has been read.
  virtual bool completed(Ticket ticket) = 0;
  /// Allows what comes to [slot, slot + bytes) of exposed memory, as one put, to be written to `to` in its place, until
  /// end_redirect(slot): its receiver would copy it there. Wires whose bytes the NIC places ignore it.
  virtual void redirect(const void* /*slot*/, std::size_t /*bytes*/, void* /*to*/) {}
  /// Ends the redirect; `to` is not written after this returns. Returns true if the put went to `to`, and nothing to
  /// the slot. REQUIRES: the signal behind the put has come, or neither is wanted any more.
  virtual bool end_redirect(const void* /*slot*/) { return false; }
  /// Called after a failure: takes the source from the wire, so that the caller may free it. What has not left is
  /// copied, and so arrives all the same. If the network's device is reading the source, the link breaks. Takes a
  /// second at most.
  virtual void release_source(Ticket ticket) = 0;
  /// Called after a failure, before the communicator ends: from now on the wire's end need not deliver what has not
  /// left.
  virtual void give_up() {}
  /// Sends what was held back, to all ranks. Does not wait.
  virtual Status flush() = 0;
  /// Returns true if all that was sent to these ranks is with the kernel or the device, so that it arrives even while
  /// this process computes.
  virtual bool idle(std::span<const int> /*ranks*/) { return true; }
  /// Sends and receives what is possible without waiting. Returns true if anything moved.
  virtual bool progress() = 0;
  /// Does the same for a caller that waits for `rank`: other ranks may be served now and then only.
  virtual bool progress_for(int /*rank*/) { return progress(); }
  /// Sleeps until something may have come or completed, or `most` has passed. May return early.
  virtual void sleep(std::chrono::nanoseconds most) = 0;

  /// Returns ok, or why `rank` cannot be reached any more. Cheap.
  virtual Status broken(int rank) = 0;
  /// Returns what keeps `rank` from being reached as yet, for the error of a deadline; empty where the wire knows
  /// nothing.
  virtual std::string obstacle(int /*rank*/) { return ""; }
};

}  // namespace tutti::transport
