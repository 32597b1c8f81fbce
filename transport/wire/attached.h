// The memory of peers that a wire has attached, for wires whose key is a number and a size ("7 4096").
// Errors: invalid_argument, when a key cannot be read or names another size.
// Threads: one at a time.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "transport/wire/wire.h"

namespace tutti::transport {

struct Attached {
  int rank = -1;             // -1: detached
  std::uint32_t number = 0;  // among what the rank exposes
  std::size_t bytes = 0;
};

inline std::string print_key(std::size_t number, std::size_t bytes) { return fmt::format("{} {}", number, bytes); }

class AttachedMemory {
 public:
  /// `wire` and `who`: for errors. Errors: invalid_argument.
  Result<Region> add(const char* wire, const std::string& who, int rank, std::string_view key, std::size_t bytes) {
    Attached one{rank, 0, 0};
    const char* end = key.data() + key.size();
    const auto number = std::from_chars(key.data(), end, one.number);
    const auto size = std::from_chars(std::min(number.ptr + 1, end), end, one.bytes);
    if (number.ec != std::errc() || size.ec != std::errc() || size.ptr != end) {
      return invalid_argument(fmt::format("{}: what {} has sent is no key of exposed memory", wire, who));
    }
    if (one.bytes != bytes) {
      return invalid_argument(fmt::format("{}: {} exposes {} bytes; {} were expected", wire, who, one.bytes, bytes));
    }
    auto free = std::find_if(all_.begin() + 1, all_.end(), [](const Attached& a) { return a.rank < 0; });
    if (free == all_.end()) free = all_.insert(free, Attached());
    *free = one;
    return static_cast<Region>(free - all_.begin());
  }
  void remove(Region region) { all_[region].rank = -1; }
  /// REQUIRES: it is `rank`'s, and has `end` bytes.
  const Attached& of(int rank, Region region, std::size_t end) const {
    const Attached& one = all_[region];
    TUTTI_CHECK_EQ(one.rank, rank);
    TUTTI_CHECK_LE(end, one.bytes);
    return one;
  }

 private:
  std::vector<Attached> all_ = std::vector<Attached>(1);  // region 0 is none
};

}  // namespace tutti::transport
