// Ctrl-C while C++ waits: Python runs its signal handlers only when its main thread asks.
//
//   wait_with_signals(changed, lock, deadline, [&] { return done; });
//
// Threads: any; those that are not Python's main thread wait without asking. REQUIRES: the caller may or may not hold
//   the GIL; nothing is asked after Python has begun to end.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>

namespace tutti_torch {

using Clock = std::chrono::steady_clock;

/// Which thread is Python's main one. To be called once, with the GIL, when the module is imported: a wait that asked
/// for it could wait for the GIL while another thread holds the GIL and waits for the answer.
void find_main_thread();

/// Runs the handlers of signals that have come. Throws what one of them raised, KeyboardInterrupt as a rule.
void check_signals();

/// Runs them in Tutti's waits on this thread (tutti::Options::interrupted). Returns true if a handler raised. What it
/// raised is kept for take_interrupt(), as Tutti's call then fails.
bool interrupted();
/// Null: none on this thread since the last call.
std::exception_ptr take_interrupt();

/// Whether this thread is in an `except` or `finally` on the way of an exception.
bool handling_exception();

/// How long a wait may be before the next check_signals().
inline constexpr std::chrono::milliseconds kSignalSlice{50};

/// Until `done` or `deadline`; false when it is not done by then. Throws as check_signals(), which runs unlocked.
template <class Done>
bool wait_with_signals(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Clock::time_point deadline,
                       Done&& done) {
  while (!done()) {
    const Clock::time_point now = Clock::now();
    if (now >= deadline) return false;
    if (changed.wait_for(lock, std::min<Clock::duration>(kSignalSlice, deadline - now), done)) return true;
    lock.unlock();
    check_signals();
    lock.lock();
  }
  return true;
}

}  // namespace tutti_torch
