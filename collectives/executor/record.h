// Writing and reading the records of calls on a Board: what the peers compare, and what the flight recorder shows.
// How: a record is a seqlock (transport/board.h). snapshot() drops what it read if the sequence has changed meanwhile.
// Threads: only the board's owner writes. snapshot() may be called by any thread, of any rank, at any moment.
// Limits: a board keeps the latest kCallRing records of calls, of groups and of launches.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "collectives/call.h"
#include "collectives/executor/history.h"
#include "transport/transport.h"
#include "tutti/types.hpp"

namespace tutti::executor {

/// How often a rank looks whether all others are in sight (CallEntry::bound_run_ahead); how far back a call may lie
/// in which they still are, or in which they were the first to differ. The few calls more are for check_peer().
inline constexpr std::uint64_t kLookEvery = 64;
inline constexpr std::uint64_t kLookBack = 2 * kLookEvery + 8;
static_assert(kLookBack < transport::kCallRing);

/// In place of the peer, for a group of several messages.
inline constexpr int kManyPeers = -2;
static_assert(kManyPeers != kAnySource);

/// A record as it was at one moment; sequence 0 when there was none, or it was being written.
struct CallSnapshot {
  std::uint64_t sequence = 0;
  Collective collective = Collective::barrier;
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;
  bool deterministic = false;
  bool on_device = false;   // device memory, in a call of the host's (transport::kOnDevice)
  bool sending = false;     // of a single message: a send, else a receive
  int root = 0;             // of a group of sends and receives: the peer, kAnySource, or kManyPeers
  int tag = 0;              // of a single message
  std::uint64_t count = 0;  // of such a group: how many messages; of an all_to_allv: 0 where its counts are told
  std::uint64_t bytes = 0;
  std::uint64_t next_of_other_kind =
      0;  // the number of the rank's next call on the other kind of memory; 0: not counted
  std::uint32_t algorithm = transport::kNoAlgorithm;
  transport::CallState state = transport::CallState::entered;
  std::uint64_t entered = 0;  // ticks
  std::uint64_t ended = 0;    // ticks; 0 while it runs

  /// "all_reduce(128 x f32, sum)", "all_reduce(128 x f32, sum, device memory)", "broadcast(4 x u8, root 2)",
  /// "barrier()", "open_device()", "send(8 x f32, tag 3) to rank 1", "4 sends and receives".
  std::string text() const;
};

CallSnapshot snapshot(const transport::CallRecord& record);

/// The fields of a record's fingerprint: they must be equal on all ranks.
struct CallIdentity {
  transport::CallWords words;
  std::uint64_t count = 0;
  std::uint64_t algorithm_request = 0;  // hash of a forced algorithm's name; 0: none

  std::uint64_t fingerprint() const;
};

/// A rank's announcement that it enters a call; made once for each kind of call.
struct Announcement {
  CallIdentity identity;
  std::uint64_t fingerprint = 0;  // identity's
  std::uint32_t algorithm = transport::kNoAlgorithm;
  std::uint64_t bytes = 0;
};

/// Writes the record of call `sequence`, so that peers see it whole. `history`: up to and with this call.
void announce(transport::Board& board, std::uint64_t sequence, const Announcement& announcement, std::uint64_t history,
              transport::Handle input, transport::Handle output, double factor);

/// Writes the record of group `number` of sends and receives: for the flight recorder alone, peers do not compare it.
void announce_group(transport::Board& board, std::uint64_t number, std::span<const Transfer> transfers);

/// Writes the record of the `number`-th call on device memory, before it is put into its stream; that it is there, so
/// that it counts (CallsMade); and that it has ended, for the flight recorder.
void announce_launch(transport::Board& board, std::uint64_t number, const Announcement& announcement);
void count_launch(transport::Board& board, std::uint64_t number);
void end_launch(transport::Board& board, std::uint64_t number);

/// From now on the order of this rank's calls on host memory and on device memory is unknown: a graph repeats some of
/// them, or two threads make them.
void stop_counting(transport::Board& board);

/// The call of this record has ended.
void end(transport::CallRecord& record, bool well);
/// Ends the record of a group that others may have overtaken; does nothing when the record was used again.
void end_group(transport::Board& board, std::uint64_t number, bool well);

}  // namespace tutti::executor
