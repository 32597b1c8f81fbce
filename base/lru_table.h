// A small table of what was used last, found by a hash. Each hash has a set of a few places; where all are taken, the
// value that was not found for longest makes room.
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>

namespace tutti {

template <class Value>
class LruTable {
 public:
  static constexpr std::size_t kPlaces = 4;  // of a set

  /// Returns the value with this hash that matches; null: there is none. Valid until the next insert().
  template <class Matches>
  const Value* find(std::uint64_t hash, const Matches& matches) {
    Set& set = set_of(hash);
    const auto found =
        std::find_if(set.begin(), set.end(), [&](const auto& value) { return value != nullptr && matches(*value); });
    if (found == set.end()) return nullptr;
    if (found != set.begin()) std::rotate(set.begin(), found, std::next(found));
    return set.front().get();
  }
  /// Keeps a value that was not found.
  const Value* insert(std::uint64_t hash, std::unique_ptr<const Value> value) {
    Set& set = set_of(hash);
    std::rotate(set.begin(), std::prev(set.end()), set.end());
    set.front() = std::move(value);
    return set.front().get();
  }
  template <class Visit>
  void each(const Visit& visit) const {
    for (const Set& set : sets_) {
      for (const auto& value : set) {
        if (value != nullptr) visit(*value);
      }
    }
  }

 private:
  static constexpr int kSetBits = 6;
  using Set = std::array<std::unique_ptr<const Value>, kPlaces>;
  Set& set_of(std::uint64_t hash) { return sets_[hash >> (64 - kSetBits)]; }

  std::array<Set, 1 << kSetBits> sets_;
};

}  // namespace tutti
