// The all_gather of a few words, by which ranks agree while something is set up that they share.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"

namespace tutti::transport {

using Words = std::vector<std::uint64_t>;

/// Returns the words of all ranks, one rank's behind the other's, in rank order. Each rank gives the same number of
/// words. A collective call, and a barrier: what a rank wrote before it is seen by all after it.
using Exchange = std::function<Result<Words>(const Words& mine)>;

}  // namespace tutti::transport
