// The contract between the executor and whatever moves bytes.
//
// One Transport object serves one rank in one communicator. It owns (or maps) a *window* of memory per rank:
//
//   Board     the rank's announcements: a ring of its last calls (which is also the flight recorder) and its failure
//   signals   one cell per (sender, lane, channel), in the receiver's window, written only by the sender
//   scratch   inbound slots, written by peers; two halves, used by alternate calls
//   published slots written by the owner and read by peers; two halves likewise
//   mailboxes one per sender: a small queue of slots for send/recv
//
// On load/store links (threads, shared memory, CUDA peers) all of it is reached by pointer, and the executor does so
// itself. Ranks on other hosts are *far*: their windows here are drafts, and FarLinks carries over what is put and
// signalled.
//
// Threads: one thread at a time may use a Transport (the communicator sees to that).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace tutti::transport {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr int kCallRing = 256;  // calls that a Board remembers

/// Where a user's buffer is, as a peer can reach it: a plain address in its owner's address space, or (top bit set) an
/// offset in its owner's registered arena.
using Handle = std::uint64_t;
inline constexpr Handle kRegistered = Handle{1} << 63;
constexpr bool is_registered(Handle handle) { return (handle & kRegistered) != 0; }

inline constexpr std::uint32_t kNoAlgorithm = 0xFFFFFFFF;

enum class CallState : std::uint32_t { entered, done, failed };

/// One call of one rank: its announcement to the peers and its entry in the flight recorder. `sequence` is written last
/// (release), after it was zeroed (but what a far rank has written into a mirror says by its seal whether it is whole:
/// executor/host/net_record.h); a record of call k lies at calls[k % kCallRing]. Peers read the first line while a
/// call runs; the second is for the flight recorder alone. All fields are atomic, since a dump may read a record that
/// its owner is just writing again: a reader that finds another sequence afterwards drops what it read (a seqlock; the
/// orders are in executor/record.cc). A peer of the call in progress need not look twice: see HostExecutor::open.
struct alignas(kCacheLine) CallRecord {
  std::atomic<std::uint64_t> sequence{0};     // call number, from 1
  std::atomic<std::uint64_t> fingerprint{0};  // of all that must be equal on all ranks, in this call and before
  std::atomic<Handle> input{0};               // of a single send or receive: its tag
  std::atomic<Handle> output{0};
  std::atomic<std::uint64_t> count{0};
  std::atomic<double> factor{1.0};     // premul_sum: this rank's factor
  std::atomic<std::uint64_t> what{0};  // CallWords, packed
  std::atomic<std::uint64_t> seal{0};  // of what goes to a far rank: executor/host/net_record.h
  // Second line.
  alignas(kCacheLine) std::atomic<std::uint64_t> entered{0};  // base/clock.h ticks
  std::atomic<std::uint64_t> ended{0};                        // likewise; 0 while it runs
  std::atomic<CallState> state{CallState::entered};
  std::atomic<std::uint32_t> algorithm{0};  // row of the algorithm table; kNoAlgorithm for none
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> next_of_other_kind{0};  // number of the next call on the other kind of memory (CallsMade);
                                                     // 0: not counted
};
static_assert(sizeof(CallRecord) == 2 * kCacheLine);

/// The small words of a call, packed in CallRecord::what.
struct CallWords {
  std::uint8_t collective = 0;
  std::uint8_t type = 0;
  std::uint8_t op = 0;
  std::uint8_t flags = 0;
  std::int32_t root = 0;
};

enum CallFlags : std::uint8_t {
  kDeterministic = 1,
  kInPlace = 2,   // not part of the fingerprint: ranks may differ
  kSending = 4,   // in records of single messages
  kOnDevice = 8,  // the buffers are device memory, and the host has a part in the call: it goes through the host's
                  // (collectives/staging.h), or the ranks open their GPUs' memory to each other for it
};

/// What a rank that has waited for long tells about itself, so that the others can find out who holds up whom.
struct alignas(kCacheLine) Pulse {
  std::atomic<std::uint64_t> beats{0};     // grows while the rank polls in a wait; stands still when it is stopped
  std::atomic<std::uint32_t> departed{0};  // the rank has destroyed its communicator
};

/// How survivors of a failed communicator agree on a smaller one (collectives/shrink.cc).
inline constexpr int kMostRanks = 1024;

/// The ranks that will not touch this window again, a bit each; every rank sets its own.
struct alignas(kCacheLine) Leavers {
  std::atomic<std::uint64_t> ranks[kMostRanks / 64] = {};

  void add(int rank) { ranks[rank / 64].fetch_or(std::uint64_t{1} << (rank % 64), std::memory_order_release); }
  bool has(int rank) const { return (ranks[rank / 64].load(std::memory_order_acquire) >> (rank % 64) & 1) != 0; }
};

struct alignas(kCacheLine) Regroup {
  std::atomic<std::uint64_t> alive[kMostRanks / 64] = {};  // whom this rank believes alive, a bit each
  std::atomic<std::uint64_t> stage{0};                     // how far it has come with that set
  std::atomic<std::uint64_t> value{0};
};

/// How many collectives a rank has made of either kind, so that its records tell how the two follow each other: ranks
/// that pass host memory and device memory in one call wait for each other in different places, and find it out by this
/// (executor/memory_kind_check.h). Written by the owner only.
struct alignas(kCacheLine) CallsMade {
  static constexpr std::uint64_t kUncounted = ~std::uint64_t{0};
  std::atomic<std::uint64_t> on_host{0};
  std::atomic<std::uint64_t> on_device{0};  // or kUncounted
};

/// How the rank sleeps, if it does. A hint (a sleep is bounded anyway), and on a line of its own: a signaller looks at
/// it after every signal, and must find it in its cache. On the cell itself, which is on its way from the waiter's
/// cache, that look took 150 ns.
enum Sleep : std::uint32_t {
  kAwake = 0,
  kOnCounter = 1,  // on one counter or tag, whose futex wakes it
  kOnDoze = 2,     // on this word, whatever comes: who waits for several things
};
struct alignas(kCacheLine) Doze {
  std::atomic<std::uint32_t> sleeping{kAwake};
};

/// A rank's notice board. Written by its owner only, but for the failure: all ranks that share memory use rank 0's, so
/// that the first failure of any rank is the one that every rank reports (Health in executor/health.h). In the mirror
/// of a far rank's board it is what that rank has told by the network (FarLinks::tell).
struct Board {
  alignas(kCacheLine) std::atomic<std::uint64_t> failure_code{0};
  char failure_text[1016] = {};
  Pulse pulse;
  Doze doze;
  Regroup regroup;
  Leavers leavers;
  CallsMade made;
  alignas(kCacheLine) CallRecord calls[kCallRing];  // collectives, by call number
  CallRecord groups[kCallRing];                     // groups of sends and receives, each rank counting its own
  CallRecord launches[kCallRing];                   // collectives on device memory, which kernels carry out
};

/// One direction of one link: counter and tag share a cache line, so that a waiter that sees the count has the tag too.
/// tag mixes the call's fingerprint and number: a waiter whose own tag differs looks at the sender's record.
struct alignas(kCacheLine) SignalCell {
  std::atomic<std::uint64_t> count{0};
  std::atomic<std::uint64_t> tag{0};
};

/// A signal that brings its data along: for plans in which a rank tells each peer a few bytes, once in a call. The
/// first line has the signal and up to 48 bytes, where a signal and then a slot would move two lines, one after the
/// other. Several per sender, for as many calls: so a rank that only gives (a broadcast's root) can run ahead of the
/// others, and ranks that share a core change places once in that many calls.
///
/// Where the sender is far, what lies there is another thing (executor/host/net_record.h): the first line of its record
/// of the call, and the data behind it, so that one message does for both.
struct alignas(kCacheLine) ExpressCell {
  static constexpr std::size_t kHeader = 16;
  std::atomic<std::uint64_t> tag{0};  // written last; that of the call it belongs to

  /// WindowSizes::express_bytes() of them; they reach beyond this struct.
  std::byte* payload() { return reinterpret_cast<std::byte*>(this) + kHeader; }
};

/// Where the memory of one rank lies in this rank's address space.
///
/// Of a far rank it is a draft, of which only what this rank itself may write is ever used: what it writes there is on
/// its way once FarLinks has been told of it. Its board is a mirror in this rank's memory, where the far rank puts the
/// records of those calls in which the two are neighbours.
struct Window {
  Board* board = nullptr;
  SignalCell* signals = nullptr;   // index with signal_index()
  std::byte* express = nullptr;    // ExpressCells, at express_offset()
  std::byte* scratch = nullptr;    // two halves of sizes().scratch_half
  std::byte* published = nullptr;  // two halves of sizes().published_half
  std::byte* mailboxes = nullptr;  // ranks x sizes().mailbox
};

struct WindowSizes {
  int ranks = 1;
  int lanes = 1;
  std::size_t scratch_half = 0;
  std::size_t published_half = 0;
  std::size_t mailbox = 0;
  std::size_t express_lines = 0;  // of an express cell, beside a far rank's record; 0: the usual
  bool far = false;               // some ranks are on other hosts

  // Express cells: of how many calls, and how large. Usually one takes 512 bytes of a message, or what fits into a line
  // where many ranks would make that too much.
  std::uint64_t express_calls() const { return ranks <= 8 ? 64 : ranks <= 64 ? 32 : 8; }
  std::size_t express_stride() const {
    return ((express_lines != 0 ? express_lines : ranks <= 16 ? 9 : 1) + (far ? 1 : 0)) * kCacheLine;
  }
  std::size_t express_bytes() const { return express_stride() - (far ? kCacheLine : ExpressCell::kHeader); }
  std::size_t express_offset(int sender, std::uint64_t call) const {
    return (static_cast<std::size_t>(sender) * express_calls() + call % express_calls()) * express_stride();
  }
  /// Of a window's cells.
  ExpressCell& express_cell(std::byte* cells, int sender, std::uint64_t call) const {
    return *reinterpret_cast<ExpressCell*>(cells + express_offset(sender, call));
  }

  std::size_t signal_cells() const { return static_cast<std::size_t>(ranks) * lanes * 2; }
  int signal_index(int sender, int lane, int channel) const { return (sender * lanes + lane) * 2 + channel; }
  /// Bytes of one rank's window, and where each part begins in it.
  std::size_t signals_at() const { return sizeof(Board); }
  std::size_t express_at() const { return signals_at() + signal_cells() * sizeof(SignalCell); }
  std::size_t scratch_at() const { return express_at() + express_offset(ranks, 0); }
  std::size_t published_at() const { return scratch_at() + 2 * scratch_half; }
  std::size_t mailboxes_at() const { return published_at() + 2 * published_half; }
  std::size_t bytes() const { return mailboxes_at() + static_cast<std::size_t>(ranks) * mailbox; }
};

/// The window whose memory begins at `base`.
inline Window window_at(std::byte* base, const WindowSizes& sizes) {
  Window window;
  window.board = reinterpret_cast<Board*>(base);
  window.signals = reinterpret_cast<SignalCell*>(base + sizes.signals_at());
  window.express = base + sizes.express_at();
  window.scratch = base + sizes.scratch_at();
  window.published = base + sizes.published_at();
  window.mailboxes = base + sizes.mailboxes_at();
  return window;
}

/// What the links of a transport can do and cost; read by the planner.
struct Capabilities {
  const char* name = "";
  bool load_store = false;    // windows and registered memory of peers are reached by pointer
  bool any_pointer = false;   // so is every other address of a peer (threads of one process)
  bool cross_memory = false;  // read() and write() reach plain memory of a peer
  double alpha_us = 0;        // latency of a signal
  double gb_per_s = 0;        // of a copy between two ranks
};

class FarLinks;  // far_links.h

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const Capabilities& capabilities() const = 0;
  virtual const WindowSizes& sizes() const = 0;
  /// What it takes of this rank's memory.
  virtual std::size_t memory() const { return sizes().bytes(); }
  /// The window of `rank` (own rank included). Valid as long as the transport.
  virtual const Window& window(int rank) const = 0;

  /// Makes all scratch and published slots present in this process, that is, takes its page faults. A hint; called
  /// before large messages go through them for the first time.
  virtual void warm() {}

  /// The links to ranks on other hosts; null where there are none.
  virtual FarLinks* far_links() { return nullptr; }

  /// How peers may reach [address, address + bytes).
  virtual Handle handle_of(const void* address, std::size_t bytes) const = 0;
  /// The pointer behind a peer's handle, or null when it can only be reached by read() and write(). REQUIRES, as these
  /// do: the rank is not far.
  virtual std::byte* reach(int rank, Handle handle) const = 0;

  /// False once the process of `rank` has ended. Cheap enough for every millisecond of a wait.
  virtual bool alive(int rank) const = 0;

  /// Cross-memory access to a peer's plain memory. REQUIRES: capabilities().cross_memory. Errors: system, peer_died.
  virtual Status read(int rank, Handle from, std::size_t offset, void* to, std::size_t bytes) = 0;
  virtual Status write(int rank, const void* from, Handle to, std::size_t offset, std::size_t bytes) = 0;
};

}  // namespace tutti::transport
