// The caller's mistakes that one rank can see by itself, each as one sentence. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"
#include "collectives/call.h"

namespace tutti {

/// Checks the arguments of a call. `who`: the rank, as named in the sentence. Errors: invalid_argument.
Status validate(const Call& call, int rank, int ranks, const std::string& who);
Status validate(std::span<const Transfer> transfers, int ranks, const std::string& who);

/// Checks that received data lies apart from the group's other buffers. A message to oneself may stay where it is. On a
/// device nothing is checked, as in NCCL: the caller answers for overlaps.
Status check_apart(std::span<const Transfer> transfers, int rank, bool on_device, const std::string& who);

/// Returns whether `call` reads this rank's send buffer, or writes its recv buffer.
bool reads_send(const Call& call, int rank);
bool writes_recv(const Call& call, int rank);

/// Returns the elements in the largest buffer of the call: the vector, or all ranks' blocks together.
std::size_t elements_of(const Call& call, int ranks);

/// Returns `timeout` if a clock can count so far. Errors: invalid_argument.
Result<std::chrono::milliseconds> checked_timeout(std::chrono::milliseconds timeout);

}  // namespace tutti
