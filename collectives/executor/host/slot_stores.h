// Whether stores into shared slots go past the caches: a choice that each rank makes for itself, again and again.
//
// Slots are written by one core and read by another. While the two share a cache, what is stored into it is read from
// there. On virtual machines there are times, of seconds, when they do not; then each line costs a message between
// the cores, and a store past the caches costs a sixth of that (perf/findings.md, "Plain memory"). It costs the reader
// a trip to memory, about as long as the store itself: so it pays where the other takes more than twice its time.
//
// So now and then a part of what is copied is stored one way and as much the other way, right after each other, and two
// such trials that agree decide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti::executor {

/// One per rank and communicator; one thread at a time.
class SlotStores {
 public:
  /// Fewer bytes than these are not worth two looks at the clock.
  static constexpr std::size_t kLeastBytes = std::size_t{16} << 10;
  /// The bytes stored each way in a trial. Of fewer, stores past the caches are only begun when they return.
  static constexpr std::size_t kTrialBytes = std::size_t{64} << 10;
  /// The bytes between trials: if the other way takes ten times as long, trials take a twelfth of the time.
  static constexpr std::size_t kBetweenTrials = std::size_t{8} << 20;

  /// `bytes` to every destination (one may be `from`, which is then left alone).
  void copy(std::span<void* const> to, const void* from, std::size_t bytes);

  /// Returns the better way, as far as is known.
  bool past_caches() const { return past_caches_; }

  struct Part {
    std::size_t bytes;
    bool past_caches;
    bool timed;
  };
  /// How the next bytes of a copy are to be stored of which `left` are left.
  Part next(std::size_t left);
  /// Records that a timed part took so long.
  void took(const Part& part, std::int64_t ns);

 private:
  struct Way {
    std::size_t bytes = 0;
    std::int64_t ns = 0;
  };
  Way tried_[2];                                           // in this trial: through the caches, past them
  std::size_t copied_ = kBetweenTrials - 4 * kLeastBytes;  // since the last trial; the first copies find the pages
  int against_ = 0;                                        // trials in a row that were for the other way
  bool past_caches_ = false;
};

}  // namespace tutti::executor
