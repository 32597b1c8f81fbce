#include "collectives/communicator/survivors.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <utility>

#include "base/backoff.h"
#include "base/clock.h"

namespace tutti {

using transport::SurvivorAgreement;

namespace {

// On boards the stages go on counting in the next shrink of the same communicator, so that nothing left from the last
// one passes for new.
constexpr std::uint64_t kStages = 4;
constexpr std::chrono::microseconds kPause{200};

using Set = std::vector<std::uint64_t>;

bool contains(const Set& set, int rank) { return (set[static_cast<std::size_t>(rank) / 64] >> (rank % 64) & 1) != 0; }

// The stage goes back first: a rank that finds the new set must not take the old stage, and the old value, for new
// ones.
void write(SurvivorAgreement& own, const Set& set, std::uint64_t begin) {
  own.stage.store(begin, std::memory_order_relaxed);
  for (std::size_t i = 0; i < set.size(); ++i) own.alive[i].store(set[i], std::memory_order_release);
  own.stage.store(begin + static_cast<std::uint64_t>(Survivors::Stage::agreed), std::memory_order_release);
}

bool same_set(const SurvivorAgreement& a, const SurvivorAgreement& b) {
  for (int i = 0; i < transport::kMostRanks / 64; ++i) {
    if (a.alive[i].load(std::memory_order_acquire) != b.alive[i].load(std::memory_order_relaxed)) return false;
  }
  return true;
}

Status died(const CommContext& context, int rank) {
  return Status(Code::peer_died, fmt::format("{} died while the others shrank", context.name_of(rank)));
}

/// All ranks are on one host.
class BoardSurvivors final : public Survivors {
 public:
  using Survivors::Survivors;

  Result<std::vector<int>> agree(int /*attempt*/) override {
    SurvivorAgreement& own = board_of(context_.rank);
    const std::uint64_t agreed = stage_of(Stage::agreed);
    Set written;
    for (Backoff backoff(kPause);; backoff.sleep()) {
      const Set alive = alive_now();
      if (alive != written) {
        write(own, alive, kStages * shrinks_);
        written = alive;
      }
      std::vector<int> survivors;
      int missing = -1;
      for (int r = 0; r < context_.size(); ++r) {
        if (!contains(alive, r)) continue;
        survivors.push_back(r);
        const SurvivorAgreement& theirs = board_of(r);
        if (!same_set(theirs, own) || theirs.stage.load(std::memory_order_acquire) < agreed) missing = r;
      }
      if (missing < 0) return survivors;
      if (now_ns() > deadline_ns_) {
        return Status(Code::timeout, fmt::format("{} called shrink, but {}, which is alive, has not within {:.1f} s",
                                                 context_.name, context_.name_of(missing),
                                                 std::chrono::duration<double>(context_.options.timeout).count()));
      }
    }
  }

  // A board has room for the first word only. What else a rank gives lies between hosts, and there is one host.
  Result<Words> exchange(const std::vector<int>& survivors, int /*attempt*/, Stage stage, const Words& mine) override {
    SurvivorAgreement& own = board_of(context_.rank);
    if (stage == Stage::exchanged) own.value.store(mine.front(), std::memory_order_relaxed);
    own.stage.store(stage_of(stage), std::memory_order_release);
    Words all;
    for (const int r : survivors) {
      TUTTI_TRY(await(r, stage_of(stage)));
      all.push_back(board_of(r).value.load(std::memory_order_relaxed));
      all.resize(all.size() + mine.size() - 1);
    }
    return all;
  }

 private:
  std::uint64_t stage_of(Stage stage) const { return kStages * shrinks_ + static_cast<std::uint64_t>(stage); }
  SurvivorAgreement& board_of(int rank) const { return context_.transport->window(rank).board->survivors; }

  Set alive_now() const {
    Set alive((static_cast<std::size_t>(context_.size()) + 63) / 64);
    for (int r = 0; r < context_.size(); ++r) {
      if (!context_.transport->alive(r) || has_left(r)) continue;
      alive[static_cast<std::size_t>(r) / 64] |= std::uint64_t{1} << (r % 64);
    }
    return alive;
  }

  Status await(int rank, std::uint64_t stage) const {
    const SurvivorAgreement& theirs = board_of(rank);
    for (Backoff backoff(kPause); theirs.stage.load(std::memory_order_acquire) < stage; backoff.sleep()) {
      // What a dead rank has reached changes no more, so that all who look now see the same. And a rank that has seen
      // that has begun again, and waits for those that have not.
      const bool dead = !context_.transport->alive(rank) && theirs.stage.load(std::memory_order_acquire) < stage;
      if (dead || !same_set(theirs, board_of(context_.rank))) return died(context_, rank);
      if (now_ns() > deadline_ns_) {
        return Status(Code::timeout, fmt::format("{} did not finish shrink", context_.name_of(rank)));
      }
    }
    return {};
  }
};

/// Ranks are on several hosts.
class ServerSurvivors final : public Survivors {
 public:
  using Survivors::Survivors;

  Result<std::vector<int>> agree(int attempt) override {
    TUTTI_ASSIGN(const std::vector<Words> all, exchange_by_rank(attempt, Stage::agreed, {1}));
    std::vector<int> survivors;
    for (int r = 0; r < context_.size(); ++r) {
      if (!all[static_cast<std::size_t>(r)].empty()) survivors.push_back(r);
    }
    return survivors;
  }

  Result<Words> exchange(const std::vector<int>& survivors, int attempt, Stage stage, const Words& mine) override {
    TUTTI_ASSIGN(const std::vector<Words> words, exchange_by_rank(attempt, stage, mine));
    Words all;
    for (const int r : survivors) {
      const Words& of_rank = words[static_cast<std::size_t>(r)];
      if (of_rank.empty()) return died(context_, r);
      all.insert(all.end(), of_rank.begin(), of_rank.end());
    }
    return all;
  }

 private:
  /// Returns the words by rank; none of the ranks that are gone.
  Result<std::vector<Words>> exchange_by_rank(int attempt, Stage stage, const Words& mine) {
    const std::uint64_t id =
        context_.child_comm_id(shrinks_, static_cast<int>(kStages) * attempt + static_cast<int>(stage));
    const auto gone = [this] {
      (void)context_.links->progress();  // remote ranks say so by the network, or by the bootstrap server
      std::vector<bool> left;
      for (int r = 0; r < context_.size(); ++r) left.push_back(r != context_.rank && has_left(r));
      return left;
    };
    const auto limit = std::chrono::nanoseconds(std::max<std::int64_t>(deadline_ns_ - now_ns(), 0));
    const auto name_of = [this](int r) { return context_.name_of(r); };
    Result<std::vector<Words>> all = context_.job->exchange_with_survivors(
        id, context_.world_ranks, name_of, gone, mine, std::chrono::ceil<std::chrono::milliseconds>(limit));
    if (all.ok()) return all;
    return Status(all.status().code(), fmt::format("{} called shrink, but {}", context_.name, all.status().message()));
  }
};

}  // namespace

std::unique_ptr<Survivors> Survivors::of(CommContext& context, std::uint64_t shrinks, std::int64_t deadline_ns) {
  if (context.multi_host()) return std::make_unique<ServerSurvivors>(context, shrinks, deadline_ns);
  return std::make_unique<BoardSurvivors>(context, shrinks, deadline_ns);
}

}  // namespace tutti
