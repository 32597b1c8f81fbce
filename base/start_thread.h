// Starts a thread, which the kernel may refuse.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/status.h"

namespace tutti {

/// `what`: the thread's name in the error, such as "the bootstrap thread". Errors: system (refused by the kernel).
template <class Body>
Result<std::thread> start_thread(const std::string& what, Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    return system_error("cannot start " + what +
                            " (threads and processes; ulimit -u, pids.max; or memory for its stack; ulimit -v, -d)",
                        error.code().value());
  }
}

}  // namespace tutti
