// The caller's mistakes that one rank can see by itself, each as one sentence. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"
#include "collectives/call.h"

namespace tutti {

/// `who`: the rank, as named in the sentence.
Status validate(const Call& call, int rank, int ranks, const std::string& who);
Status validate(std::span<const Transfer> transfers, int ranks, const std::string& who);

/// Whether what is received lies apart from the group's other buffers. A message to oneself may stay where it is; so
/// may one on a device, as programs of NCCL have it, where it is the caller's to know what comes of it.
Status check_apart(std::span<const Transfer> transfers, int rank, bool on_device, const std::string& who);

/// Whether this rank's send, or recv, is looked at.
bool reads_send(const Call& call, int rank);
bool writes_recv(const Call& call, int rank);

/// Elements in the largest buffer of the call: the vector, or all ranks' blocks together.
std::size_t elements_of(const Call& call, int ranks);

/// What a caller gives as a deadline, where one can be counted so far. Errors: invalid_argument.
Result<std::chrono::milliseconds> checked_timeout(std::chrono::milliseconds timeout);

}  // namespace tutti
