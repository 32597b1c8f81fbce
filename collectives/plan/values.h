// What the verifier keeps in a place instead of bytes: which ranks' contributions to which piece of which round and
// call.
// How: a raw value is a number, and a sum is a set of ranks with a bit for each.
// Errors: a Fault says why terms cannot be added up.
// Threads: one at a time.
// Limits: fits(): fewer than 2^30 raw values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti::plan {

/// Names a value. 0: nothing was ever written.
using ValueId = std::int32_t;
inline constexpr ValueId kNothing = 0;

class Values {
 public:
  explicit Values(int ranks) : ranks_(ranks), words_((ranks + 63) / 64) {}

  /// The raw values of one more call: every rank's piece in every round.
  void add_call(int pieces, int rounds) {
    calls_.push_back({raw_end_, pieces, rounds});
    raw_end_ += static_cast<std::int64_t>(ranks_) * pieces * rounds;
  }
  /// True while values fit into a ValueId; sums come after the raw ones.
  bool fits() const { return raw_end_ < (std::int64_t{1} << 30); }

  ValueId raw(int call, int rank, int piece, int round) const {
    const CallRange& range = calls_[call];
    return static_cast<ValueId>(range.first + (static_cast<std::int64_t>(piece) * range.rounds + round) * ranks_ +
                                rank);
  }

  /// The reason why a sum is wrong.
  enum class Fault : std::uint8_t { none, other_piece, twice, divided };
  /// The sum of `terms` (none of them kNothing), or a fault. `last`: then avg divides.
  ValueId sum(const std::vector<ValueId>& terms, bool last, Fault& fault) {
    const std::int64_t origin = origin_of(terms[0]);
    std::vector<std::uint64_t>& set = scratch_;
    set.assign(words_, 0);
    bool in_order = static_cast<int>(terms.size()) == ranks_;
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const ValueId term = terms[i];
      if (origin_of(term) != origin) return fault = Fault::other_piece, kNothing;
      if (!is_raw(term)) {
        const Sum& sum = sums_[term - raw_end_];
        if (sum.divided) return fault = Fault::divided, kNothing;
        in_order = false;
        const std::uint64_t* words = &sets_[static_cast<std::size_t>(term - raw_end_) * words_];
        for (int w = 0; w < words_; ++w) {
          if ((set[w] & words[w]) != 0) return fault = Fault::twice, kNothing;
          set[w] |= words[w];
        }
      } else {
        const int rank = rank_of(term);
        in_order = in_order && rank == static_cast<int>(i);
        const std::uint64_t bit = std::uint64_t{1} << (rank % 64);
        if ((set[rank / 64] & bit) != 0) return fault = Fault::twice, kNothing;
        set[rank / 64] |= bit;
      }
    }
    fault = Fault::none;
    sums_.push_back({origin, last, in_order});
    sets_.insert(sets_.end(), set.begin(), set.end());
    return static_cast<ValueId>(raw_end_ + static_cast<std::int64_t>(sums_.size()) - 1);
  }

  bool is_raw(ValueId value) const { return value < raw_end_; }
  /// Whether `value` holds each rank's piece once and was divided once. One rank's sum is its own input.
  bool is_full_sum(ValueId value, int call, int piece, int round) const {
    if (ranks_ == 1) return value == raw(call, 0, piece, round);
    if (value == kNothing || is_raw(value)) return false;
    const Sum& sum = sums_[value - raw_end_];
    if (!sum.divided || sum.origin != origin_of(raw(call, 0, piece, round))) return false;
    const std::uint64_t* words = &sets_[static_cast<std::size_t>(value - raw_end_) * words_];
    for (int rank = 0; rank < ranks_; ++rank) {
      if ((words[rank / 64] >> (rank % 64) & 1) == 0) return false;
    }
    return true;
  }
  bool in_rank_order(ValueId value) const { return is_raw(value) || sums_[value - raw_end_].in_rank_order; }

 private:
  struct CallRange {
    std::int64_t first;
    int pieces;
    int rounds;
  };
  struct Sum {
    std::int64_t origin;
    bool divided;
    bool in_rank_order;  // one step over the raw values of all ranks, in rank order
  };

  /// Equal for raw values of the same piece, round and call: what may be added up.
  std::int64_t origin_of(ValueId value) const {
    return is_raw(value) ? (value - 1) / ranks_ : sums_[value - raw_end_].origin;
  }
  int rank_of(ValueId value) const { return (value - 1) % ranks_; }

  int ranks_;
  int words_;
  std::int64_t raw_end_ = 1;
  std::vector<CallRange> calls_;
  std::vector<Sum> sums_;
  std::vector<std::uint64_t> sets_;  // words_ per sum
  std::vector<std::uint64_t> scratch_;
};

}  // namespace tutti::plan
