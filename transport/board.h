// A rank's board: what it announces to its peers, its part of the flight recorder, and the first failure.
// Threads: the owner writes its records, and any rank may read them at any moment: all fields of a record are atomic.
// Limits: kMostRanks ranks; the latest kCallRing calls of each kind.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tutti::transport {

inline constexpr std::size_t kCacheLine = 64;
inline constexpr int kCallRing = 256;  // calls that a Board remembers
inline constexpr int kMostRanks = 1024;

/// The place of a user's buffer, as a peer can reach it: a plain address in its owner's address space, or (top bit set)
/// an offset in its owner's registered arena.
using Handle = std::uint64_t;
inline constexpr Handle kRegistered = Handle{1} << 63;
constexpr bool is_registered(Handle handle) { return (handle & kRegistered) != 0; }

inline constexpr std::uint32_t kNoAlgorithm = 0xFFFFFFFF;

enum class CallState : std::uint32_t { entered, done, failed };

/// One call of one rank: its announcement to the peers and its entry in the flight recorder. `sequence` is written last
/// (release), after it was zeroed (but what a remote rank has written into a mirror shows by its checksum whether it is
/// complete: executor/net_record.h); a record of call k lies at calls[k % kCallRing]. Peers read the first line while a
/// call runs; the second is for the flight recorder alone. All fields are atomic, since a dump may read a record that
/// its owner is just writing again: a reader that finds another sequence afterwards drops what it read (a seqlock; the
/// orders are in executor/record.cc). A peer of the call in progress need not look twice: see CallEntry::open.
struct alignas(kCacheLine) CallRecord {
  std::atomic<std::uint64_t> sequence{0};     // call number, from 1
  std::atomic<std::uint64_t> fingerprint{0};  // of all that must be equal on all ranks, in this call and before
  std::atomic<Handle> input{0};               // of a single send or receive: its tag
  std::atomic<Handle> output{0};
  std::atomic<std::uint64_t> count{0};
  std::atomic<double> factor{1.0};         // premul_sum: this rank's factor
  std::atomic<std::uint64_t> what{0};      // CallWords, packed
  std::atomic<std::uint64_t> checksum{0};  // of what goes to a remote rank: executor/net_record.h
  // Second line.
  alignas(kCacheLine) std::atomic<std::uint64_t> entered{0};  // base/clock.h ticks
  std::atomic<std::uint64_t> ended{0};                        // ticks; 0 while it runs
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
  kInPlace = 2,  // not part of the fingerprint: ranks may differ
  kSending = 4,  // in records of single messages
  kOnDevice =
      8,  // the buffers are device memory, and the host has a part in the call: it goes through the host's
          // (collectives/device/multi_host/host_staging.h), or the ranks open their GPUs' memory to each other for it
};

/// Published by a rank that has waited for long, so that the others can find out which rank delays which.
struct alignas(kCacheLine) Pulse {
  std::atomic<std::uint64_t> beats{0};     // grows while the rank polls in a wait; stands still when it is stopped
  std::atomic<std::uint32_t> has_left{0};  // the rank has destroyed its communicator
};

/// The ranks that will not touch this window again, a bit each. Every rank sets its own.
struct alignas(kCacheLine) DetachedRanks {
  std::atomic<std::uint64_t> ranks[kMostRanks / 64] = {};

  void add(int rank) { ranks[rank / 64].fetch_or(std::uint64_t{1} << (rank % 64), std::memory_order_release); }
  bool has(int rank) const { return (ranks[rank / 64].load(std::memory_order_acquire) >> (rank % 64) & 1) != 0; }
};

/// How the survivors of a failed communicator agree on a smaller one (collectives/communicator/survivors.cc).
struct alignas(kCacheLine) SurvivorAgreement {
  std::atomic<std::uint64_t> alive[kMostRanks / 64] = {};  // the ranks that this one believes alive, a bit each
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

/// How the rank sleeps, if it does. A hint (a sleep is bounded anyway), and on a line of its own: a sender looks at it
/// after every signal, and must find it in its cache. On the cell itself, which is on its way from the waiter's
/// cache, that look took 150 ns.
enum Sleep : std::uint32_t {
  kAwake = 0,
  kOnCounter = 1,  // on one counter or tag, whose futex wakes it
  kOnAny = 2,      // on this word, for any of several things
};
struct alignas(kCacheLine) SleepState {
  std::atomic<std::uint32_t> state{kAwake};
};

/// A rank's announcements. Written by its owner only, but for the failure: all ranks that share memory use rank 0's, so
/// that the first failure of any rank is the one that every rank reports (Health in executor/health.h). In the mirror
/// of a remote rank's board it is what that rank has sent (NetLinks::announce_failure).
struct Board {
  alignas(kCacheLine) std::atomic<std::uint64_t> failure_code{0};
  char failure_text[1016] = {};
  Pulse pulse;
  SleepState sleep;
  SurvivorAgreement survivors;
  DetachedRanks detached;
  CallsMade made;
  alignas(kCacheLine) CallRecord calls[kCallRing];  // collectives, by call number
  CallRecord groups[kCallRing];                     // groups of sends and receives, each rank counting its own
  CallRecord launches[kCallRing];                   // collectives on device memory, which kernels run
};

}  // namespace tutti::transport
