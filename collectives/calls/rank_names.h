// How errors name a rank. Who reads the log of a job with several groups must find the process:
//
//   rank 1 (host alpha, pid 4711)                               in the job's own communicator
//   rank 1 of group 'tp' (job rank 3, host alpha, pid 4711)     in one with a name
//   rank 1 of a group (job rank 3, host alpha, pid 4711)        in one without
//
// Group: a communicator that has a name, or other ranks than the job, or the same in another order. A copy of the job's
//   communicator without a name is none: its numbers are the job's.
// Names: each rank uses the one that it was given. They are neither sent nor compared.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"
#include "collectives/job/job_context.h"
#include "tutti/tutti.hpp"

namespace tutti {

/// Bytes of a group's name: a failure's text has 1015, and may name several ranks.
inline constexpr std::size_t kMostGroupName = 64;

/// Returns the name of rank `rank` in a communicator of `world_ranks` (by rank). `options`: the communicator's.
std::string rank_name(const JobContext& job, std::span<const int> world_ranks, const Options& options, int rank);
/// Returns the name of a rank of a group. `group`: its name, or empty; `where`: "host alpha, pid 4711", or empty.
std::string rank_name_in_group(int rank, const std::string& group, int job_rank, const std::string& where);
/// Returns the job's rank of a rank of the communicator that `options` have made, or a descendant's.
int job_rank_of(const Options& options, int world_rank);

/// Checks the name of a group: at most kMostGroupName printable ASCII characters. `who`: for the sentence.
/// Errors: invalid_argument.
Status check_group_name(const std::string& name, const std::string& who);
/// Checks the name and the job's ranks in the options of a new communicator. Errors: invalid_argument.
Status check_group(const Options& options, int rank, int size);

}  // namespace tutti
