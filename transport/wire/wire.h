// The contract between the transport of a job on several hosts (transport/hosts) and what a network offers: one-sided
// writes into memory that its owner has exposed, and signals behind them. TCP, verbs and UCX implement it.
//
//   TUTTI_ASSIGN(std::unique_ptr<Wire> wire, TcpWire::open(job));
//   ... everybody's wire->address() is exchanged ...
//   TUTTI_TRY(wire->meet(addresses));
//   TUTTI_ASSIGN(const std::string key, wire->expose(memory, bytes));
//   ... everybody's key is exchanged ...
//   TUTTI_ASSIGN(const Region there, wire->attach(member, key, bytes));
//   TUTTI_TRY(wire->put(member, lane, there, at, from, bytes, ticket));   // `from` is read until settled(ticket)
//   TUTTI_TRY(wire->signal(member, lane, there, cell, count, tag, Push::now));  // seen after what was put before it
//   TUTTI_TRY(wire->progress());                                          // again and again while waiting
//
// One Wire serves a process in one job, whatever communicators it makes; peers are named by their number in the job.
//
// Order. What is put, signalled and noted to one member in one lane is seen there in that order: whoever sees a signal
// sees all that was put before it. Lanes are not ordered among each other; they may go by different devices (rails).
//
// Holding back. put(), and signal() and note() with Push::later, may wait for more, so that what belongs together goes
// as one message: a signal() or note() with Push::now to the member in that lane, or post(), sends it.
//
// Failure. A link that has broken stays so: put(), signal(), note() and broken() tell, for that member alone; what was
// on its way settles. Words of the status: which device or address, and what the network's library says.
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

/// Who takes part in a job, as a wire must know it.
struct WireJob {
  int own = 0;                     // this process's member number
  std::vector<int> hosts;          // by member: equal numbers on equal hosts. Members of the own host are not linked
  std::vector<std::string> names;  // by member, for errors: "rank 3 (host alpha, pid 4711)"
  int lanes = 1;                   // that put() and signal() name
  std::string own_ip;              // the address of this host that its peers reach (IPv4 or IPv6), which chooses the
                                   // interface where TUTTI_INTERFACE does not; empty: any
  std::string only_link_local;  // where own_ip is empty: the interface by which another host was met, whose addresses
                                // mean nothing there; empty: none
  Blocks* blocks = nullptr;     // of these a wire may keep registrations; null: of none. Outlives the wire

  int members() const { return static_cast<int>(hosts.size()); }
  bool linked(int member) const {
    return hosts[static_cast<std::size_t>(member)] != hosts[static_cast<std::size_t>(own)];
  }
};

/// For a network that goes by IP addresses alone. Errors: unsupported, where peers on other hosts could use none of
/// this host's: a link-local one counts only beside the number of an interface, which differs from host to host.
inline Status check_has_address(const WireJob& job) {
  if (job.only_link_local.empty()) return {};
  return unsupported("this host's interface " + job.only_link_local +
                     " has link-local addresses of IPv6 alone; expected another address, IPv4 or IPv6");
}

/// A peer's exposed memory, as this process names it; never 0.
using Region = std::uint32_t;

/// Memory of a device (a GPU), as its driver hands it out to other devices: a dmabuf. The descriptor is its owner's.
struct Dmabuf {
  int descriptor = -1;
  std::uint64_t offset = 0;  // where in it the memory begins
};

/// Of a put whose source is still being read; 0: it has been.
using Ticket = std::uint64_t;

/// Whether a signal sends what was held back, and itself, or may be held back too.
enum class Push : std::uint8_t { now, later };

struct WireInfo {
  std::string name;         // "tcp", "verbs", "ucx"
  std::string devices;      // what it goes by, for people: "eth0", "rxe0:1 gid 1 (10.9.0.1), rxe1:1 gid 1 (10.9.1.1)"
  std::size_t copied = 0;   // puts of so many bytes are settled at once
  double alpha_us = 0;      // latency of a signal
  double gb_per_s = 0;      // of all rails together
  bool to_devices = false;  // expose_device() is worth trying
};

class Wire {
 public:
  /// What a key or an address may take at most.
  static constexpr std::size_t kMostKeyBytes = 256;
  static constexpr std::size_t kMostKeyWords = kMostKeyBytes / sizeof(std::uint64_t);
  static constexpr std::size_t kMostAddressBytes = 64 << 10;
  static constexpr std::size_t kMostNoteBytes = 512;

  virtual ~Wire() = default;
  virtual const WireInfo& info() const = 0;

  /// What peers must know to reach this process. Valid for the wire's lifetime.
  virtual const std::string& address() const = 0;
  /// Everybody's, by member. Connections may be made here or when they are first needed. Errors: unsupported (peers
  /// that cannot be reached by this wire; names them), system.
  virtual Status meet(const std::vector<std::string>& addresses) = 0;

  /// Lets peers write into [base, base + bytes), until conceal(). Errors: system, memory_limit (the limit of locked
  /// memory, with what to do).
  virtual Result<std::string> expose(std::byte* base, std::size_t bytes) = 0;
  /// The same for a device's memory, which this process itself may be unable to reach by its address `base`: what is
  /// put from there or into it the network's card reads and writes, nobody copies it. Errors: unsupported (this wire,
  /// its library or its device cannot, and why), those of expose().
  virtual Result<std::string> expose_device(std::byte* base, std::size_t bytes, const Dmabuf& memory) {
    return unsupported(info().name + " has no way to a device's memory");
  }
  /// REQUIRES: no peer writes there any more, or its link is broken.
  virtual void conceal(std::byte* base) = 0;
  /// By the key that `member` has exposed it with. Errors: invalid_argument (it is no key, or not of `bytes`, which the
  /// own puts and signals must not go beyond). REQUIRES: linked(member).
  virtual Result<Region> attach(int member, std::string_view key, std::size_t bytes) = 0;
  virtual void detach(Region region) = 0;

  /// Writes `bytes` to `at` in the region. `from`: any memory of this process, or a device's that is exposed; what lies
  /// in exposed memory need not be copied. Errors: the link is broken; a ticket is of what was taken all the same.
  virtual Status put(int member, int lane, Region to, std::size_t at, const void* from, std::size_t bytes,
                     Ticket& ticket) = 0;
  /// Writes `count` to `at` and `tag` behind it, sixteen bytes at a multiple of sixteen: whoever sees `count` sees all
  /// that was put before. `tag` comes with it, but over some networks (verbs) may be seen a moment later: who must not
  /// see an old one there puts it before, too. Errors: the link is broken.
  virtual Status signal(int member, int lane, Region to, std::size_t at, std::uint64_t count, std::uint64_t tag,
                        Push push) = 0;
  /// A signal that is more than sixteen bytes: writes `bytes`, of 16 to kMostNoteBytes, to `at`, a multiple of sixteen,
  /// behind what was put before. It may be seen in any order and in part, so a note must show by itself whether it is
  /// whole. `from` is free at once. Errors: the link is broken. (As written here: for wires that copy such puts.)
  virtual Status note(int member, int lane, Region to, std::size_t at, const void* from, std::size_t bytes, Push push) {
    const auto* begin = static_cast<const std::byte*>(from);
    std::uint64_t head[2];
    std::memcpy(head, begin, sizeof head);
    Ticket copied = 0;
    TUTTI_TRY(put(member, lane, to, at + sizeof head, begin + sizeof head, bytes - sizeof head, copied));
    return signal(member, lane, to, at, head[0], head[1], push);
  }
  virtual bool settled(Ticket ticket) = 0;
  /// What comes to [slot, slot + bytes) of exposed memory, as one put, may be written to `to` in its place, until
  /// landed(slot): its receiver would copy it there. Wires whose bytes the network's card places leave it.
  virtual void land(const void* /*slot*/, std::size_t /*bytes*/, void* /*to*/) {}
  /// Ends that, from when on `to` is not touched any more. True: it has come there, and nothing to the slot. REQUIRES:
  /// the signal behind the put has come, or nobody wants either any more.
  virtual bool landed(const void* /*slot*/) { return false; }
  /// After a failure: the source is its owner's when this returns, who may free it. What has not left is copied, and so
  /// arrives all the same; where it is not this wire's to copy any more, the link breaks. Takes a second at most.
  virtual void let_go(Ticket ticket) = 0;
  /// After a failure, before the communicator ends: the wire need not deliver what has not left by its own end.
  virtual void give_up() {}
  /// Sends what was held back, to everybody. Does not wait.
  virtual Status post() = 0;
  /// Whether all that was sent to these is the kernel's or the device's by now, so that this process may go away
  /// computing: they get it without its help.
  virtual bool idle(std::span<const int> /*members*/) { return true; }
  /// Moves what can be moved, both ways. True: something has.
  virtual bool progress() = 0;
  /// The same for who waits for what comes from `member`: others may have their turn only now and then.
  virtual bool progress_for(int /*member*/) { return progress(); }
  /// Sleeps until something may have come or has settled, or `most` has passed. May return early.
  virtual void doze(std::chrono::nanoseconds most) = 0;

  /// Ok, or why `member` cannot be reached any more. Cheap.
  virtual Status broken(int member) = 0;
  /// For the error of a deadline: what keeps `member` from being reached as yet, as far as this wire knows; else empty.
  virtual std::string obstacle(int /*member*/) { return ""; }
};

}  // namespace tutti::transport
