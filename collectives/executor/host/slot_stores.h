// Whether stores into shared slots go past the caches: a choice that each rank makes for itself, again and again.
//
// Slots are written by one core and read by another. While the two share a cache, what is stored into it is read from
// there. On virtual machines there are times, of seconds, when they do not; then each line costs a message between
// the cores, and a store past the caches costs a sixth of that (perf/README.md, "Plain memory"). It costs the reader a
// trip to memory, about as long as the store itself: so it pays where the other takes more than twice its time.
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
  /// One copy in so many is made the other way, to see what that takes by now.
  static constexpr std::uint32_t kTrialEvery = 128;

  /// `bytes` to every destination (one may be `from`, which is then left alone).
  void copy(std::span<void* const> to, const void* from, std::size_t bytes);

  /// What is better as far as is known.
  bool past_caches() const { return past_caches_; }
  /// How the next copy is to be made, so that took() learns of both ways.
  bool next() { return past_caches_ != (++copies_ % kTrialEvery == kFirstTrial); }
  /// That it took so long, per byte or whatever unit, always the same.
  void took(bool past_caches, double time);

 private:
  static constexpr std::uint32_t kFirstTrial = 8;  // the first copies find the pages
  double times_[2] = {0, 0};                       // through the caches, past them; 0: not known
  std::uint32_t copies_ = 0;
  bool past_caches_ = false;
};

}  // namespace tutti::executor
