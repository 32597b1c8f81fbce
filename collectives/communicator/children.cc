#include "collectives/communicator/children.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "collectives/calls/rank_names.h"
#include "collectives/communicator/communicator.h"
#include "collectives/communicator/self_communicator.h"

namespace tutti {

namespace {

using Made = Result<std::shared_ptr<CommunicatorInterface>>;

/// Whom a child has.
struct Group {
  std::vector<int> ranks;        // of the parent, by rank of the child
  std::vector<int> world_ranks;  // of these ranks
  int own = 0;                   // this rank's rank in the child

  void add(const CommContext& parent, int rank) {
    if (rank == parent.rank) own = static_cast<int>(ranks.size());
    ranks.push_back(rank);
    world_ranks.push_back(parent.world_ranks[static_cast<std::size_t>(rank)]);
  }
};

Group group_of(const CommContext& parent, const Words& colors_and_keys, int color) {
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int r = 0; r < parent.size(); ++r) {
    const std::uint64_t word = colors_and_keys[static_cast<std::size_t>(r)];
    if (color >= 0 && static_cast<int>(word >> 32) == color)
      members.emplace_back(static_cast<int>(word & 0xFFFFFFFF), r);
  }
  std::sort(members.begin(), members.end());
  Group group;
  for (const auto& [key, rank] : members) group.add(parent, rank);
  return group;
}

/// Returns the options of a child. One with the ranks of its parent, in their order, is a copy, and keeps its name.
Options options_of(const CommContext& parent, const Group& group, const std::string& name) {
  Options options = parent.options;
  const bool copy = group.world_ranks == parent.world_ranks;
  if (!name.empty() || !copy) options.name = name;
  return options;
}

/// Returns the communicator of this rank alone.
Made alone(const CommContext& parent, const std::string& name) {
  const int world_rank = parent.world_ranks[static_cast<std::size_t>(parent.rank)];
  Options options = parent.options;
  options.name = name;
  options.job_ranks = {job_rank_of(parent.options, world_rank)};
  return std::shared_ptr<CommunicatorInterface>(
      std::make_shared<SelfCommunicator>(options, parent.job->describe(world_rank)));
}

}  // namespace

Made Children::split(int color, int key, const std::string& name) {
  TUTTI_TRY(check_group_name(name, context_.name));
  const std::uint64_t number = ++splits_;
  const std::uint64_t mine =
      (static_cast<std::uint64_t>(static_cast<std::uint32_t>(color)) << 32) | static_cast<std::uint32_t>(key);
  TUTTI_ASSIGN(const Words all, gather_.gather(Words{mine}));
  const Group group = group_of(context_, all, color);
  const Exchange exchange = [&](const Words& words) -> Result<Words> {
    TUTTI_ASSIGN(const Words values, gather_.gather(words));
    Words chosen;
    for (const int r : group.ranks) {
      const auto first = values.begin() + r * static_cast<std::ptrdiff_t>(words.size());
      chosen.insert(chosen.end(), first, first + static_cast<std::ptrdiff_t>(words.size()));
    }
    return chosen;
  };
  Made child = std::shared_ptr<CommunicatorInterface>();
  if (group.ranks.size() < 2) {
    // It shares memory with no rank, but the others' exchange needs it.
    TUTTI_ASSIGN([[maybe_unused]] const Words values, gather_.gather(context_.job->nothing()));
    if (color >= 0) child = alone(context_, name);
  } else {
    auto made =
        TuttiCommunicator::create(context_.job, group.world_ranks, group.own, context_.child_comm_id(number, color),
                                  options_of(context_, group, name), exchange);
    child = made.ok() ? Made(made.take()) : Made(made.status());
  }
  // A barrier: no rank goes on before all have each other's memory.
  TUTTI_TRY(gather_.barrier());
  return child;
}

Made Children::shrink() {
  TUTTI_TRY(context_.usable());
  context_.queue.wait_idle();
  ++shrinks_;
  const std::int64_t deadline = now_ns() + std::chrono::nanoseconds(context_.options.timeout).count();
  // From here on the old communicator serves no call.
  (void)context_.health.fail(Code::aborted, fmt::format("{} shrinks the communicator", context_.name));
  const std::unique_ptr<Survivors> survivors = Survivors::of(context_, shrinks_, deadline);
  // A rank that dies meanwhile is no survivor: again, without it.
  for (int attempt = 0;; ++attempt) {
    Made child = shrink_once(*survivors, attempt);
    if (child.ok() || child.status().code() != Code::peer_died) return child;
  }
}

Made Children::shrink_once(Survivors& survivors, int attempt) {
  TUTTI_ASSIGN(const std::vector<int> ranks, survivors.agree(attempt));
  if (ranks.size() == 1) return alone(context_, context_.options.name);
  Group group;
  for (const int r : ranks) group.add(context_, r);
  const Exchange exchange = [&](const Words& words) {
    return survivors.exchange(ranks, attempt, Survivors::Stage::exchanged, words);
  };
  TUTTI_ASSIGN(std::shared_ptr<TuttiCommunicator> child,
               TuttiCommunicator::create(context_.job, group.world_ranks, group.own,
                                         context_.child_comm_id(shrinks_, -static_cast<int>(ranks.size())),
                                         context_.options, exchange));
  TUTTI_ASSIGN([[maybe_unused]] const Words all, survivors.exchange(ranks, attempt, Survivors::Stage::ready, Words{0}));
  return std::shared_ptr<CommunicatorInterface>(std::move(child));
}

}  // namespace tutti
