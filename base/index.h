// Ranks, hosts and devices are int, as in every interface here; containers want std::size_t.
#pragma once

#include <cstddef>

namespace tutti {

/// Returns `index` as an index of a container. REQUIRES: index >= 0.
constexpr std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace tutti
