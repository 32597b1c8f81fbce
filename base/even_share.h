// Splits `total` elements into `parts` contiguous shares whose sizes differ by at most one; the first ones are larger.
//   even_share(10, 4, 0) = [0,3)
//   even_share(10, 4, 1) = [3,6)
//   even_share(10, 4, 3) = [8,10)
//   even_share(2, 3, 2)  = [2,2)   (a share may be empty)
#pragma once

#include <cstddef>

namespace tutti {

struct Share {
  std::size_t offset = 0;
  std::size_t size = 0;
};

/// REQUIRES: 0 <= part < parts.
constexpr Share even_share(std::size_t total, std::size_t parts, std::size_t part) {
  if (parts == 1) return {0, total};
  const std::size_t base = total / parts;
  const std::size_t extra = total % parts;
  return {part * base + (part < extra ? part : extra), base + (part < extra ? 1 : 0)};
}

/// Returns the size of the largest share.
constexpr std::size_t largest_share(std::size_t total, std::size_t parts) { return (total + parts - 1) / parts; }

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace tutti
