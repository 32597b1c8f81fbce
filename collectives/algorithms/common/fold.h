// How algorithms for powers of two serve any number of ranks. With p the largest power of two up to n, the first n - p
// even ranks are folded into their right neighbours, which take part for both: p ranks participate.
#pragma once

#include <algorithm>
#include <bit>

namespace tutti::algorithms {

struct Folded {
  explicit Folded(int ranks)
      : participants(static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)))), folded(ranks - participants) {}

  int participants;
  int folded;  // ranks that do not take part

  /// The number of a rank among the participants, or -1 for a folded rank.
  int participant(int rank) const {
    if (rank >= 2 * folded) return rank - folded;
    return rank % 2 == 0 ? -1 : rank / 2;
  }
  int rank_of(int participant) const { return participant < folded ? 2 * participant + 1 : participant + folded; }
  /// Whether rank - 1 is folded into `rank`.
  bool serves_folded_rank(int rank) const { return rank < 2 * folded && rank % 2 == 1; }
  /// The lowest rank that `participant` stands for; for participants, the end.
  int first_piece(int participant) const { return participant + std::min(participant, folded); }
};

}  // namespace tutti::algorithms
