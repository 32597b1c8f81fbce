// How large a communicator's windows are, and what else memory_limit and the caches decide. Pure, but for
// streaming_above(), which looks at this host once.
#pragma once

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "collectives/job/job_context.h"
#include "transport/transport.h"
#include "tutti/tutti.hpp"

namespace tutti {

/// Returns the sizes of a window. `most_remote`: see most_remote_ranks(). Errors: memory_limit.
Result<transport::WindowSizes> window_sizes(int ranks, const Options& options, int most_remote);

/// Returns the number of remote ranks of the rank that has most of them; the same on all ranks.
int most_remote_ranks(const JobContext& job, const std::vector<int>& world_ranks);

/// Returns the bytes of a buffer above which stores pass the caches by: an input and an output of each rank of the host
/// fit into half of its last cache, side by side (measured: perf/findings.md).
std::size_t streaming_above(int ranks_of_host);

/// Returns the bytes that memory_limit leaves for messages which come before they are received.
std::size_t limit_of_messages(const transport::Transport& transport, const Options& options);

}  // namespace tutti
