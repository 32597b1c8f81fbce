// What is read from a call and the communicator's options alone. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "collectives/call.h"
#include "collectives/executor/record.h"
#include "transport/board.h"
#include "tutti/tutti.hpp"

namespace tutti {

inline bool is_deterministic(const Call& call, const Options& options) {
  return call.deterministic || options.deterministic;
}

/// Returns the algorithms that the call asks for, or else the communicator; may be empty.
inline std::string_view requested_algorithm(const Call& call, const Options& options) {
  return call.algorithm.empty() ? std::string_view(options.algorithm) : call.algorithm;
}

inline transport::CallWords words_of(const Call& call, const Options& options) {
  return {.collective = static_cast<std::uint8_t>(call.collective),
          .type = static_cast<std::uint8_t>(call.type),
          .op = static_cast<std::uint8_t>(call.op),
          .flags = static_cast<std::uint8_t>(is_deterministic(call, options) ? transport::kDeterministic : 0),
          .root = call.root};
}

/// Returns what must be equal on all ranks.
executor::CallIdentity identity_of(const Call& call, const Options& options);
/// Returns the same for a call on device memory. `fragment_elements`: the most elements of a fragment; 0 where the call
/// is not cut. Ranks that cut it differently are found so.
executor::CallIdentity identity_on_device(const Call& call, const Options& options, std::size_t fragment_elements);

/// Returns whether send and recv of `rank` are the same memory. `stride`: from a block to the next one, in elements.
bool is_in_place(const Call& call, int rank, std::size_t stride);
inline bool is_in_place(const Call& call, int rank) { return is_in_place(call, rank, call.count); }

}  // namespace tutti
