// What the ranks of a communicator tell each other about their device memory: a block of host memory per rank that all
// of them map. Zeroed before anybody looks. Each rank writes its own block only, but for `leavers`.
//
// A rank's notes say which allocations it opens to its peers (regions) and which it takes back; peers carry them out in
// their order, each at its next call, and say how far they are. So nobody waits for anybody: as long as somebody has
// not come to know a region, its owner does not name it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/cuda_ipc/exportable.h"
#include "transport/device_window.h"

namespace tutti::transport {

inline constexpr int kRegions = 512;  // of one rank at a time
inline constexpr std::uint64_t kNoteRing = 64;

enum class NoteKind : std::uint32_t { none, open, close };

struct Note {
  NoteKind kind = NoteKind::none;
  std::uint32_t region = 0;
  std::uint64_t base = 0;  // in the owner's address space
  Export how;
};

/// What a rank says of itself, once.
struct Card {
  std::int64_t pid = 0;
  std::uint64_t process = 0;  // a random number: pids are used again
  unsigned char gpu[16] = {};
  std::int32_t device = 0;   // the GPU's ordinal in that process
  std::int32_t code = 0;     // tutti::Code, when it cannot go on; why[] says it
  std::uint64_t window = 0;  // in the owner's address space
  Export how;
  char socket[64] = {};  // where it takes descriptors
  unsigned char token[16] = {};
  char why[512] = {};
};

struct Notes {
  Card card;
  std::atomic<std::uint64_t> leavers{0};    // the ranks that will not touch this rank's window again, a bit each
  std::atomic<std::uint64_t> announced{0};  // notes so far; note n lies at ring[n % kNoteRing]
  std::atomic<std::uint64_t> carried_out[kMostDeviceRanks] = {};             // of each peer's notes
  std::atomic<std::uint64_t> refused[kMostDeviceRanks][kRegions / 64] = {};  // peers' regions that cannot be had here
  Note ring[kNoteRing];
};

}  // namespace tutti::transport
