// How algorithms for powers of two serve any number of ranks: with p the largest power of two up to n, the first n - p
// even ranks are "guests" of their right neighbours, which take part for both; p ranks participate.
#pragma once

#include <algorithm>
#include <bit>

namespace tutti::algorithms {

struct Folded {
  explicit Folded(int ranks)
      : participants(static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)))), guests(ranks - participants) {}

  int participants;
  int guests;

  /// The number of a rank among the participants, or -1 for a guest.
  int participant(int rank) const {
    if (rank >= 2 * guests) return rank - guests;
    return rank % 2 == 0 ? -1 : rank / 2;
  }
  int rank_of(int participant) const { return participant < guests ? 2 * participant + 1 : participant + guests; }
  /// Whether rank - 1 is a guest of `rank`.
  bool has_guest(int rank) const { return rank < 2 * guests && rank % 2 == 1; }
  /// The lowest rank that `participant` stands for; for participants, the end.
  int first_piece(int participant) const { return participant + std::min(participant, guests); }
};

}  // namespace tutti::algorithms
