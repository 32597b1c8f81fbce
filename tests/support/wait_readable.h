// A wait for a descriptor that signals do not make longer or shorter.
#pragma once

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace tutti::testing {

/// Whether something can be read from it, or it has ended, within `limit`.
inline bool wait_readable(int descriptor, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd item{descriptor, POLLIN, 0};
    const int ready = ::poll(&item, 1, std::max(0, static_cast<int>(left.count())));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

}  // namespace tutti::testing
