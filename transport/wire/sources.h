// Large puts whose source is being read, for wires that number them themselves. A ticket is index and generation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "transport/wire/wire.h"

namespace tutti::transport {

struct Source {
  std::uint32_t index = 0;
  std::uint32_t generation = 1;  // grows when it is completed; never 0, which in place 0 would be no ticket
  int rank = 0;                  // the receiver
  std::size_t left = 0;          // pieces that are held back or under way

  Ticket ticket() const { return std::uint64_t{index} << 32 | generation; }
};

/// Not thread-safe.
class Sources {
 public:
  /// Returns a source that stays where it is until it is completed.
  Source& open(int rank, std::size_t pieces) {
    if (free_.empty()) {
      free_.push_back(&all_.emplace_back());
      all_.back().index = static_cast<std::uint32_t>(all_.size() - 1);
    }
    Source& source = *free_.back();
    free_.pop_back();
    source.rank = rank;
    source.left = pieces;
    return source;
  }
  /// Takes note that one of its pieces is read no more.
  void complete(Source& source) {
    if (--source.left > 0) return;
    if (++source.generation == 0) ++source.generation;
    free_.push_back(&source);
  }
  /// Returns null if it is completed.
  Source* find(Ticket ticket) {
    if (ticket == 0) return nullptr;
    Source& source = all_[ticket >> 32];
    return source.generation == static_cast<std::uint32_t>(ticket) ? &source : nullptr;
  }

 private:
  std::deque<Source> all_;
  std::vector<Source*> free_;
};

}  // namespace tutti::transport
