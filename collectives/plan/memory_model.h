// The memory of all ranks during one call, as the verifier sees it: a value per place, and which rank touched it when.
// How: places lie in one array: those of the users' buffers by round, those of slots in two sets for alternate rounds.
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/plan/layout.h"
#include "collectives/plan/plan.h"
#include "collectives/plan/values.h"

namespace tutti::plan {

using Clock = std::uint32_t;

/// A moment of one thread (a lane of a rank).
struct Moment {
  std::int32_t thread = -1;
  Clock clock = 0;
};

struct Place {
  ValueId value = kNothing;
  Moment writer;
  Moment reader;              // the latest reader since the last write
  std::int32_t readers = -1;  // more of them: an index into CallMemory::more_readers
  std::uint32_t stamp = 0;    // of the step that read it last, and as which of its pieces
  std::int32_t stamp_piece = 0;
};

class CallMemory {
 public:
  CallMemory(const Plan& plan, int rounds, bool in_place)
      : plan_(plan), rounds_(rounds), parities_(rounds > 1 ? 2 : 1) {
    const std::size_t n = plan.ranks;
    const std::size_t pieces = plan.pieces;
    user_.assign(n * 2 * pieces, -1);
    std::int64_t next = 0;
    for (const Space space : {Space::input, Space::output}) {
      for (int rank = 0; rank < plan.ranks; ++rank) {
        for (int piece = 0; piece < plan.pieces; ++piece) {
          if (!holds(plan, space, rank, piece)) continue;
          const bool shared = in_place && space == Space::output && user_[user_index(Space::input, rank, piece)] >= 0;
          user_[user_index(space, rank, piece)] = shared ? user_[user_index(Space::input, rank, piece)] : next;
          if (!shared) next += rounds;
        }
      }
    }
    slots_at_ = next;
    published_at_ = slots_at_ + static_cast<std::int64_t>(n) * parities_ * plan.slots;
    places_.resize(published_at_ + static_cast<std::int64_t>(n) * parities_ * plan.published);
  }

  void put_raw_inputs(const Values& values, int call) {
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      for (int piece = 0; piece < plan_.pieces; ++piece) {
        if (!has(Space::input, rank, piece)) continue;
        for (int round = 0; round < rounds_; ++round) {
          at({Space::input, rank, piece, 1}, 0, round).value = values.raw(call, rank, piece, round);
        }
      }
    }
  }

  bool has(Space space, int rank, int piece) const { return user_[user_index(space, rank, piece)] >= 0; }

  /// REQUIRES: check_shape() was content.
  Place& at(const Range& range, int offset, int round) {
    const std::int64_t i = range.first + offset;
    switch (range.space) {
      case Space::input:
      case Space::output: return places_[user_[user_index(range.space, range.rank, static_cast<int>(i))] + round];
      case Space::scratch:
        return places_[slots_at_ +
                       (static_cast<std::int64_t>(range.rank) * parities_ + round % parities_) * plan_.slots + i];
      case Space::published: break;
    }
    return places_[published_at_ +
                   (static_cast<std::int64_t>(range.rank) * parities_ + round % parities_) * plan_.published + i];
  }

  std::vector<std::vector<Moment>> more_readers;

 private:
  std::size_t user_index(Space space, int rank, int piece) const {
    return (static_cast<std::size_t>(space == Space::output) * plan_.ranks + rank) * plan_.pieces + piece;
  }

  const Plan& plan_;
  int rounds_;
  int parities_;
  std::vector<std::int64_t> user_;  // the first place of each piece, or -1 where the rank does not have it
  std::int64_t slots_at_ = 0;
  std::int64_t published_at_ = 0;
  std::vector<Place> places_;
};

}  // namespace tutti::plan
