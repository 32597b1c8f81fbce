// The window of one rank in the memory of its GPU: what executor/cuda's kernels and the code that allocates and maps it
// agree on. One per rank and communicator; zeroed before any peer may write to it.
//
//   state      the owner's own: number and history of its last call, what it has failed of
//   calls      by sender: the announcements of its last calls. A peer pushes them here, so that a wait polls memory of
//              the waiting GPU; a replayed graph needs no work of the host for them
//   signals    a cell per (sender, lane, channel); they count and are never reset
//   links      the owner's own: how many signals it has given and taken, per (peer, lane, channel)
//   express    by sender and parity of the call: lines that carry data and flag together (kFlaggedLine)
//   scratch    slots that peers write; two halves, used by alternate calls
//   published  slots that peers read; two halves, used by alternate calls
//   p2p        by sender and strip: a few slots for messages (send and recv), with signals and links of their own
//
// Lanes: the walkers (thread blocks) of a kernel that have signals of their own.
// Threads: plain words only; host and device include this, and each side reads and writes them with its own atomics.
// Limits: kMostDeviceRanks ranks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::transport {

inline constexpr std::size_t kDeviceLine = 128;
inline constexpr int kMostDeviceRanks = 64;
/// A rank announces call k + 1 only after its call k, which began after all had announced call k - 1. So two
/// announcements of each peer matter at a time. Two more are kept for the text of a failure.
inline constexpr std::uint64_t kDeviceCallRing = 4;

/// One call of one rank, as its peers see it. `sequence` is written last (release, system scope).
struct DeviceCall {
  std::uint64_t sequence = 0;  // from 1
  std::uint64_t history = 0;   // of all calls up to this one (executor/history.h)
  std::uint64_t input = 0;     // handles
  std::uint64_t output = 0;
  std::uint64_t factor = 0;  // the bits of a double
  std::uint64_t what = 0;    // transport::CallWords, packed
  std::uint64_t count = 0;
  std::uint64_t flags = 0;  // DeviceCallFlags
};
static_assert(sizeof(DeviceCall) == 64);

enum DeviceCallFlags : std::uint64_t {
  kDeviceInPlace = 1,
  kDevicePlain = 2,  // some buffer is out of the peers' reach
};

struct alignas(64) DeviceSignal {
  std::uint64_t count = 0;
  std::uint64_t tag = 0;
};

struct DeviceLink {
  std::uint64_t sent = 0;
  std::uint64_t seen = 0;
};

struct alignas(kDeviceLine) DeviceState {
  std::uint64_t sequence = 0;  // of the last call that ended
  std::uint64_t history = 0;   // up to it
  std::uint64_t exits = 0;     // blocks of the running kernel that have ended
  std::uint64_t failed = 0;    // not 0: no call runs any more
};

/// An express line: two words of 8 bytes, each with 4 bytes of data below and the call's flag above (NCCL's LL). A
/// word is written and read whole, so a reader that sees the flag has the data, without a fence.
inline constexpr std::size_t kFlaggedLine = 16;
inline constexpr std::size_t kDataOfFlaggedLine = 8;

/// A kernel's report to its host on a wait or a call that has failed.
struct DeviceVerdict {
  std::uint64_t state = 0;  // 0: none; 1: complete, written last
  std::uint64_t kind = 0;   // executor::cuda::Failure
  std::uint64_t peer = 0;
  std::uint64_t call = 0;    // the call's number
  std::uint64_t absent = 0;  // ranks that have not entered it, a bit each
  std::uint64_t waited_ns = 0;
  DeviceCall own;  // mismatch: the two calls that differ
  DeviceCall other;
};

/// Words between the host and the kernels of one rank, in pinned host memory that the GPU sees.
struct alignas(kDeviceLine) DeviceHostWords {
  std::uint64_t abort = 0;                         // not 0: end every wait
  std::uint64_t limit_ns = 0;                      // of a wait
  alignas(kDeviceLine) std::uint64_t entered = 0;  // the latest call that has begun, and
  std::uint64_t finished = 0;                      // the latest that has ended
  std::uint64_t entered_ns = 0;                    // when it began, by the GPU's clock
  std::uint64_t p2p = 0;  // of messages by kernels that do not wait: grows when a group begins, and when it ends
  alignas(kDeviceLine) DeviceVerdict verdict;
};

/// The number of strips that share a message, and of slots that each strip has.
inline constexpr int kP2pStrips = 4;
inline constexpr std::uint64_t kP2pSlots = 4;

/// The first line of a slot: the message that its bytes belong to.
struct P2pHeader {
  std::uint64_t count = 0;  // of the whole message
  std::uint64_t type = 0;
};

/// Offsets of the parts of a window, in bytes.
struct DeviceWindowSizes {
  int ranks = 1;
  int lanes = 1;
  std::size_t scratch_half = 0;
  std::size_t published_half = 0;
  std::size_t express_bytes = 0;  // of data that one cell takes
  std::size_t p2p_bytes = 0;      // of data that one slot for messages takes; a multiple of kDeviceLine

  static constexpr std::size_t up(std::size_t bytes) { return (bytes + kDeviceLine - 1) / kDeviceLine * kDeviceLine; }
  constexpr std::size_t calls_at() const { return sizeof(DeviceState); }
  constexpr std::size_t call_offset(int sender, std::uint64_t call) const {
    return calls_at() +
           (static_cast<std::size_t>(sender) * kDeviceCallRing + call % kDeviceCallRing) * sizeof(DeviceCall);
  }
  constexpr std::size_t link_index(int peer, int lane, int channel) const {
    return static_cast<std::size_t>((peer * lanes + lane) * 2 + channel);
  }
  constexpr std::size_t link_count() const { return link_index(ranks, 0, 0); }
  constexpr std::size_t signals_at() const { return up(call_offset(ranks, 0)); }
  constexpr std::size_t links_at() const { return up(signals_at() + link_count() * sizeof(DeviceSignal)); }
  constexpr std::size_t express_at() const { return up(links_at() + link_count() * sizeof(DeviceLink)); }
  /// A cell has room for what lanes lose by beginning at lines of their own.
  constexpr std::size_t cell_bytes() const {
    return up((express_bytes + static_cast<std::size_t>(lanes) * kDeviceLine) * (kFlaggedLine / kDataOfFlaggedLine));
  }
  constexpr std::size_t cell_offset(int sender, std::uint64_t call) const {
    return express_at() + (static_cast<std::size_t>(sender) * 2 + call % 2) * cell_bytes();
  }
  constexpr std::size_t scratch_at() const { return cell_offset(ranks, 0); }
  constexpr std::size_t published_at() const { return scratch_at() + 2 * up(scratch_half); }
  // Each (peer, strip) has two cells: data from the sender at the receiver, and slots that are free again at the
  // sender.
  constexpr std::size_t p2p_index(int peer, int strip, int channel) const {
    return static_cast<std::size_t>((peer * kP2pStrips + strip) * 2 + channel);
  }
  constexpr std::size_t p2p_signals_at() const { return published_at() + 2 * up(published_half); }
  constexpr std::size_t p2p_links_at() const {
    return p2p_signals_at() + p2p_index(ranks, 0, 0) * sizeof(DeviceSignal);
  }
  constexpr std::size_t p2p_at() const { return up(p2p_links_at() + p2p_index(ranks, 0, 0) * sizeof(DeviceLink)); }
  constexpr std::size_t p2p_slot(int sender, int strip, std::uint64_t number) const {
    return p2p_at() + (static_cast<std::size_t>(sender * kP2pStrips + strip) * kP2pSlots + number % kP2pSlots) *
                          (kDeviceLine + p2p_bytes);
  }
  constexpr std::size_t bytes() const { return p2p_slot(ranks, 0, 0); }
};

/// A handle of a buffer, as DeviceCall has it: an address in its owner's address space, or (top bit set) a region of
/// its owner's and an offset in it. Region 0 is the owner's arena.
inline constexpr std::uint64_t kDeviceRegion = std::uint64_t{1} << 63;
inline constexpr int kDeviceRegionShift = 48;
constexpr std::uint64_t device_handle(std::uint64_t region, std::uint64_t offset) {
  return kDeviceRegion | region << kDeviceRegionShift | offset;
}

/// A rank as another one sees it; an array of these, by rank, lies in the memory of the GPU that looks.
struct DevicePeer {
  std::uint64_t window = 0;   // its window's address here
  std::uint64_t regions = 0;  // array of the addresses of its regions here; 0: not mapped
  std::uint64_t region_count = 0;
  std::uint64_t flags = 0;  // DevicePeerFlags
};

enum DevicePeerFlags : std::uint64_t {
  kSameAddresses = 1,  // its plain addresses are good here: a thread of the same process
  kAliased = 2,        // its memory has another address here than where it lives: needs fence.proxy.alias
};

}  // namespace tutti::transport
