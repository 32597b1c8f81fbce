// Sends and receives on device memory (on host memory: executor/p2p/). A group of them is one list, run by one
// kernel (run_p2p), or by several that do not wait. Messages of a pair of ranks come in the order in which they were
// sent; there are no tags.
//
//   const std::vector<std::byte> list = make_p2p_list(transfers...);   // its only pointers are those of the buffers
//
// How: a message is cut into strips, and each strip into chunks that fit into a slot of the receiver's window. Each
//   strip of a pair has kP2pSlots slots, which go round; the receiver gives them back one by one. The first line of a
//   slot says which message it belongs to, so that a receiver which expects another one finds out. What one strip moves
//   to or from one peer is a unit: its messages follow each other. A block has several units and serves whichever can
//   go on. So any number of blocks will do, and no order among peers can deadlock.
// Limits: kMostUnits units for each block; a message has at most kP2pStrips strips.
// Threads: pure; any. Host and device include this.
#pragma once

#include <cstdint>

#include "base/even_share.h"
#include "transport/device_window.h"

#if !defined(__CUDACC__)
#include <cstddef>
#include <span>
#include <vector>

#include "collectives/call.h"
#endif

namespace tutti::executor::cuda {

struct P2pMessage {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;
  std::uint64_t type = 0;
};

/// All that goes to a peer, or comes from it.
struct P2pTask {
  std::int32_t peer = 0;
  std::int32_t sending = 0;
  std::uint32_t first = 0;  // message
  std::uint32_t messages = 0;
};

/// The head of the block; tasks and messages begin at so many bytes from it.
struct P2pList {
  std::uint32_t bytes = 0;
  std::int32_t tasks = 0;
  std::int32_t strips = 1;  // the most that any of its messages has
  std::int32_t most = 1;    // that any message may have, the same on all ranks
  std::uint32_t tasks_at = 0;
  std::uint32_t messages_at = 0;
};

struct P2pArguments {
  const P2pList* p2p = nullptr;
  const transport::DevicePeer* peers = nullptr;
  transport::DeviceHostWords* host = nullptr;
  transport::DeviceWindowSizes sizes;
  std::int32_t rank = 0;
  // Where kernels must not wait: one chunk of each unit, of those that send or those that receive.
  std::int32_t one_round = 0;
  std::int32_t sending = 0;
  std::uint64_t round = 0;
  std::uint64_t mark = 0;  // not 0: for DeviceHostWords::p2p
};

/// The most units that a block can have.
inline constexpr int kMostUnits = 64;

constexpr int p2p_strips(std::uint64_t bytes, int most) {
  const std::uint64_t wanted = bytes / (std::uint64_t{64} << 10) + 1;
  return wanted < static_cast<std::uint64_t>(most) ? static_cast<int>(wanted) : most;
}

/// A strip's part of a message, and how many chunks it goes in: one at least, so that even an empty message comes.
struct P2pPart {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t chunks = 0;
};
constexpr P2pPart p2p_part(std::uint64_t bytes, int strip, int most_strips, std::uint64_t slot) {
  const int strips = p2p_strips(bytes, most_strips);
  if (strip >= strips) return {};
  const std::uint64_t units = (bytes + 15) / 16;
  const Share share = even_share(units, static_cast<std::size_t>(strips), static_cast<std::size_t>(strip));
  const std::uint64_t begin = share.offset * 16;
  const std::uint64_t end = (share.offset + share.size) * 16;
  const std::uint64_t part = begin >= bytes ? 0 : (end > bytes ? bytes : end) - begin;
  const std::uint64_t chunks = (part + slot - 1) / slot;
  return {begin, part, chunks == 0 ? 1 : chunks};
}

#if !defined(__CUDACC__)

/// The list of a group, messages of a pair in the order of the group.
std::vector<std::byte> make_p2p_list(std::span<const Transfer> transfers, int most_strips);

/// How many chunks each unit of a task has, by strip.
std::vector<std::uint64_t> chunks_of(const P2pList& p2p, const P2pTask& task, std::uint64_t slot);

#endif

}  // namespace tutti::executor::cuda
