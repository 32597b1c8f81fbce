#include "collectives/calls/rank_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace tutti {

namespace {

/// Returns whether these are the job's ranks, in their order.
bool are_the_jobs(const JobContext& job, std::span<const int> world_ranks) {
  if (world_ranks.size() != job.host_of_member().size()) return false;
  return std::is_sorted(world_ranks.begin(), world_ranks.end());  // each rank is there once
}

}  // namespace

std::string rank_name(const JobContext& job, std::span<const int> world_ranks, const Options& options, int rank) {
  const int world_rank = world_ranks[static_cast<std::size_t>(rank)];
  const std::string where = job.describe(world_rank);
  const bool group = !options.name.empty() || !options.job_ranks.empty() || !are_the_jobs(job, world_ranks);
  if (!group) return fmt::format("rank {} ({})", rank, where);
  return rank_name_in_group(rank, options.name, job_rank_of(options, world_rank), where);
}

std::string rank_name_in_group(int rank, const std::string& group, int job_rank, const std::string& where) {
  return fmt::format("rank {} of {} (job rank {}{}{})", rank,
                     group.empty() ? "a group" : fmt::format("group '{}'", group), job_rank, where.empty() ? "" : ", ",
                     where);
}

int job_rank_of(const Options& options, int world_rank) {
  return options.job_ranks.empty() ? world_rank : options.job_ranks[static_cast<std::size_t>(world_rank)];
}

Status check_group_name(const std::string& name, const std::string& who) {
  const bool printable = std::all_of(name.begin(), name.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (printable && name.size() <= kMostGroupName) return {};
  return invalid_argument(fmt::format("{} gave a group a name of {} bytes{}; expected at most {}, printable ASCII", who,
                                      name.size(), printable ? "" : ", which are not all printable", kMostGroupName));
}

Status check_group(const Options& options, int rank, int size) {
  const std::string who = fmt::format("rank {}", rank);
  TUTTI_TRY(check_group_name(options.name, who));
  if (options.job_ranks.empty()) return {};
  std::vector<int> sorted = options.job_ranks;
  std::sort(sorted.begin(), sorted.end());
  const bool distinct = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  if (sorted.size() == static_cast<std::size_t>(size) && sorted.front() >= 0 && distinct) return {};
  return invalid_argument(
      fmt::format("{} gave {} job_ranks; expected one for each of the {} ranks, from 0 on and no "
                  "number twice",
                  who, sorted.size(), size));
}

}  // namespace tutti
