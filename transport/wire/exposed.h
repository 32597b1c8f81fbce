// The memory of this process that its peers write into, for wires whose key is a number and a size (attached.h). Such
// wires write what comes in themselves.
// Threads: one at a time; write_signal() by any thread.
// Limits: 65536 pieces of memory at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace tutti::transport {

struct Exposed {
  std::uint32_t number = 0;
  std::byte* base = nullptr;  // null: none
  std::size_t bytes = 0;
  void* registration = nullptr;  // the wire's own
};

class ExposedMemory {
 public:
  /// Returns its number. None comes again soon: what a dead peer has sent for memory that is exposed no longer may come
  /// late, and must not find other memory.
  std::uint32_t add(std::byte* base, std::size_t bytes, void* registration = nullptr) {
    auto free = std::find_if(all_.begin(), all_.end(), [](const Exposed& one) { return one.base == nullptr; });
    if (free == all_.end()) {
      TUTTI_CHECK_LT(all_.size(), kPlaces);
      free = all_.insert(free, Exposed{.number = static_cast<std::uint32_t>(all_.size())});
    }
    *free = {free->number, base, bytes, registration};
    return free->number;
  }
  /// Returns what it was; none if it was not exposed.
  Exposed remove(const std::byte* base) {
    for (Exposed& one : all_) {
      if (one.base != base) continue;
      const Exposed removed = one;
      one = {.number = static_cast<std::uint32_t>(one.number + kPlaces)};
      return removed;
    }
    return {};
  }
  /// Returns null if [at, at + bytes) is not exposed.
  std::byte* place(std::uint32_t number, std::uint64_t at, std::uint64_t bytes) const {
    if (number % kPlaces >= all_.size()) return nullptr;
    const Exposed& one = all_[number % kPlaces];
    if (one.base == nullptr || one.number != number || at > one.bytes || bytes > one.bytes - at) return nullptr;
    return one.base + at;
  }
  const std::vector<Exposed>& all() const { return all_; }

 private:
  static constexpr std::size_t kPlaces = std::size_t{1} << 16;  // and as many numbers for each, one after the other
  std::vector<Exposed> all_;
};

/// Two words at a multiple of as many bytes.
inline constexpr std::size_t kSignalBytes = 16;

inline bool is_cell(const std::byte* place) { return reinterpret_cast<std::uintptr_t>(place) % kSignalBytes == 0; }

/// A reader that sees `count` sees `tag`, and what was written before. REQUIRES: is_cell(cell).
inline void write_signal(std::byte* cell, std::uint64_t count, std::uint64_t tag) {
  auto* words = reinterpret_cast<std::uint64_t*>(cell);
  std::atomic_ref(words[1]).store(tag, std::memory_order_relaxed);
  std::atomic_ref(words[0]).store(count, std::memory_order_release);
}

}  // namespace tutti::transport
