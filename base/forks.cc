#include "base/forks.h"

#include <pthread.h>

#include <atomic>

namespace tutti {

namespace {

std::atomic<std::uint64_t> generation{0};

}  // namespace

std::uint64_t forks() {
  static const bool watching = [] {
    pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
    return true;
  }();
  (void)watching;
  return generation.load(std::memory_order_relaxed);
}

}  // namespace tutti
