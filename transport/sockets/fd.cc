#include "transport/sockets/fd.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstddef>

namespace tutti::sockets {
namespace {

/// The guarded descriptors, by number. Descriptors beyond are not guarded: a process with so many has other ways to
/// die.
std::array<std::atomic<bool>, 1 << 16> guarded;

void close_guarded_in_child() {
  for (std::size_t fd = 0; fd < guarded.size(); ++fd) {
    if (guarded[fd].exchange(false, std::memory_order_relaxed)) ::close(static_cast<int>(fd));
  }
}

}  // namespace

void ParentOnlyFd::guard(bool on) {
  static const int installed = ::pthread_atfork(nullptr, nullptr, close_guarded_in_child);
  const auto number = static_cast<std::size_t>(fd_.get());
  if (installed == 0 && fd_ && number < guarded.size()) guarded[number].store(on, std::memory_order_relaxed);
}

}  // namespace tutti::sockets
