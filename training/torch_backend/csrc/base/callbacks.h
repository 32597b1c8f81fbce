// Threads that complete futures, and so run what users have hung on them.
//
// A callback may be anything: it may take the GIL, and it may wait for another future. So it must not hold up the
// thread that moves data, nor the callbacks behind it: when all threads are inside a callback, one more is made.
// Threads: they are made when needed and wait for the next callback; a forked child begins with none.
#pragma once

#include <chrono>
#include <functional>

namespace tutti_torch {

/// Returns at once. Any thread.
void run_callback(std::function<void()> callback);

/// Until none is under way or waiting, at most `limit`. To be called without the GIL.
void wait_for_callbacks(std::chrono::milliseconds limit);

}  // namespace tutti_torch
