// Pauses between two looks at a condition that no event reports.
//   for (Backoff backoff(50us); !is_idle(); backoff.sleep()) { ... }            // always 50 us
//   for (Backoff backoff(1ms, 50ms); !enter(); backoff.sleep()) { ... }         // 1, 2, 4 ... 50, 50 ms
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace tutti {

/// The length of the next pause. It reads no clock and allocates nothing.
/// Threads: one at a time.
class Backoff {
 public:
  using Duration = std::chrono::nanoseconds;

  /// All pauses have the same length.
  constexpr explicit Backoff(Duration length) : Backoff(length, length) {}
  /// The pauses double from `shortest` to `longest`.
  constexpr Backoff(Duration shortest, Duration longest) : shortest_(shortest), longest_(longest), next_(shortest) {}

  /// Returns the length of the pause that is due. The next one is twice as long, but at most `longest`.
  constexpr Duration next() {
    const Duration due = next_;
    next_ = std::min(2 * next_, longest_);
    return due;
  }
  /// Sleeps for next().
  void sleep() { std::this_thread::sleep_for(next()); }
  /// Begins again with the shortest pause, because something has happened.
  constexpr void reset() { next_ = shortest_; }

 private:
  Duration shortest_;
  Duration longest_;
  Duration next_;
};

/// Returns how long a thread that has `waited` may sleep. It is 0 (yield the core) before `yields_for`, and then a
/// sixteenth of the wait, but at most `longest`: so the thread notices the end of its wait that much too late at most.
constexpr Backoff::Duration proportional_pause(Backoff::Duration waited, Backoff::Duration yields_for,
                                               Backoff::Duration longest) {
  return waited < yields_for ? Backoff::Duration::zero() : std::min(waited / 16, longest);
}

/// Yields the core for a `pause` of 0, else sleeps that long.
inline void yield_or_sleep(Backoff::Duration pause) {
  if (pause == Backoff::Duration::zero()) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace tutti
