// The survivors of a failed communicator form a new one. The old one's signals are in an unknown state.
//
// On one host the meeting place may be dead, so they use nothing but their boards, which stay mapped whatever happens
// to their owners: each rank writes down whom it believes alive, and they have agreed once everybody in that set has
// written the same set. A rank that dies meanwhile changes the set, and they begin again.
//
// Of several hosts nobody sees all boards. There they meet at the meeting place, which hears of every death and tells
// all who have come the same (Bootstrap::regroup). A rank that dies meanwhile is missing at the next stage, and they
// begin again.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "collectives/communicator/communicator.h"
#include "collectives/communicator/self_communicator.h"

namespace tutti {

using transport::Regroup;

namespace {

// How far a rank has come. On boards they go on counting in the next shrink of the same communicator, so that nothing
// left from the last one passes for new.
constexpr std::uint64_t kAgreed = 1;
constexpr std::uint64_t kExchanged = 2;
constexpr std::uint64_t kReady = 3;
constexpr std::uint64_t kStages = 4;

using Set = std::vector<std::uint64_t>;

bool contains(const Set& set, int rank) { return (set[static_cast<std::size_t>(rank) / 64] >> (rank % 64) & 1) != 0; }

void breathe() {
  const timespec pause{0, 200'000};
  nanosleep(&pause, nullptr);
}

// The stage goes back first: whoever finds the new set must not take the old stage, and the old value, for new ones.
void write(Regroup& regroup, const Set& set, std::uint64_t begin) {
  regroup.stage.store(begin, std::memory_order_relaxed);
  for (std::size_t i = 0; i < set.size(); ++i) regroup.alive[i].store(set[i], std::memory_order_release);
  regroup.stage.store(begin + kAgreed, std::memory_order_release);
}

bool same_set(const Regroup& a, const Regroup& b) {
  for (int i = 0; i < transport::kMostRanks / 64; ++i) {
    if (a.alive[i].load(std::memory_order_acquire) != b.alive[i].load(std::memory_order_relaxed)) return false;
  }
  return true;
}

}  // namespace

Result<std::vector<int>> TuttiCommunicator::agree_on_survivors(int attempt, std::int64_t deadline_ns) {
  if (!far_) return agree_on_boards(deadline_ns);
  TUTTI_ASSIGN(const std::vector<Words> all, regroup(attempt, kAgreed, {1}, deadline_ns));
  std::vector<int> survivors;
  for (int r = 0; r < size(); ++r) {
    if (!all[static_cast<std::size_t>(r)].empty()) survivors.push_back(r);
  }
  return survivors;
}

Result<std::vector<Words>> TuttiCommunicator::regroup(int attempt, std::uint64_t stage, const Words& mine,
                                                      std::int64_t deadline_ns) {
  const std::uint64_t name = scope_of_child(shrinks_, static_cast<int>(kStages) * attempt + static_cast<int>(stage));
  const auto gone = [this] {
    (void)transport_->far_links()->progress();  // far ranks say so by the network, or the meeting place
    std::vector<bool> departed;
    for (int r = 0; r < size(); ++r) departed.push_back(r != rank_ && has_departed(r));
    return departed;
  };
  const auto left = std::chrono::nanoseconds(std::max<std::int64_t>(deadline_ns - now_ns(), 0));
  Result<std::vector<Words>> all =
      job_->regroup(name, members_, gone, mine, std::chrono::ceil<std::chrono::milliseconds>(left));
  if (all.ok()) return all;
  return Status(all.status().code(), fmt::format("{} called shrink, but {}", own_name_, all.status().message()));
}

Result<std::vector<int>> TuttiCommunicator::agree_on_boards(std::int64_t deadline_ns) {
  Regroup& own = transport_->window(rank_).board->regroup;
  const std::uint64_t begin = kStages * shrinks_;
  Set written;
  for (;; breathe()) {
    Set alive((static_cast<std::size_t>(size()) + 63) / 64);
    for (int r = 0; r < size(); ++r) {
      if (transport_->alive(r) && !has_departed(r))
        alive[static_cast<std::size_t>(r) / 64] |= std::uint64_t{1} << (r % 64);
    }
    if (alive != written) {
      write(own, alive, begin);
      written = alive;
    }
    std::vector<int> survivors;
    int missing = -1;
    for (int r = 0; r < size(); ++r) {
      if (!contains(alive, r)) continue;
      survivors.push_back(r);
      const Regroup& theirs = transport_->window(r).board->regroup;
      if (!same_set(theirs, own) || theirs.stage.load(std::memory_order_acquire) < begin + kAgreed) missing = r;
    }
    if (missing < 0) return survivors;
    if (now_ns() > deadline_ns) {
      return Status(Code::timeout,
                    fmt::format("{} called shrink, but {}, which is alive, has not within {:.1f} s", who(rank_),
                                who(missing), std::chrono::duration<double>(options_.timeout).count()));
    }
  }
}

Result<Words> TuttiCommunicator::meet_survivors(const std::vector<int>& survivors, int attempt, std::uint64_t stage,
                                                const Words& mine, std::int64_t deadline_ns) {
  Words all;
  if (!far_) {
    TUTTI_ASSIGN(const std::vector<std::uint64_t> values, meet_on_boards(survivors, stage, mine.front(), deadline_ns));
    for (const std::uint64_t value : values) {
      all.push_back(value);
      all.resize(all.size() + mine.size() - 1);  // what lies between hosts is of none here
    }
    return all;
  }
  TUTTI_ASSIGN(const std::vector<Words> words, regroup(attempt, stage, mine, deadline_ns));
  for (const int r : survivors) {
    const Words& of_rank = words[static_cast<std::size_t>(r)];
    if (of_rank.empty()) return Status(Code::peer_died, fmt::format("{} died while the others shrank", who(r)));
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  }
  return all;
}

Result<std::vector<std::uint64_t>> TuttiCommunicator::meet_on_boards(const std::vector<int>& survivors,
                                                                     std::uint64_t stage, std::uint64_t value,
                                                                     std::int64_t deadline_ns) {
  Regroup& own = transport_->window(rank_).board->regroup;
  if (stage == kExchanged) own.value.store(value, std::memory_order_relaxed);
  stage += kStages * shrinks_;
  own.stage.store(stage, std::memory_order_release);
  std::vector<std::uint64_t> values;
  for (const int r : survivors) {
    const Regroup& theirs = transport_->window(r).board->regroup;
    for (; theirs.stage.load(std::memory_order_acquire) < stage; breathe()) {
      // What a dead rank has reached changes no more, so that all who look now see the same. And whoever has seen that
      // has begun again, and waits for those who have not.
      const bool dead = !transport_->alive(r) && theirs.stage.load(std::memory_order_acquire) < stage;
      if (dead || !same_set(theirs, own)) {
        return Status(Code::peer_died, fmt::format("{} died while the others shrank", who(r)));
      }
      if (now_ns() > deadline_ns) return Status(Code::timeout, fmt::format("{} did not finish shrink", who(r)));
    }
    values.push_back(theirs.value.load(std::memory_order_relaxed));
  }
  return values;
}

Result<std::shared_ptr<CommunicatorInterface>> TuttiCommunicator::shrink() {
  TUTTI_TRY(usable());
  queue_.wait_idle();
  ++shrinks_;
  const std::int64_t deadline = now_ns() + std::chrono::nanoseconds(options_.timeout).count();
  // From here on the old communicator serves nobody.
  (void)health_.fail(Code::aborted, fmt::format("{} shrinks the communicator", who(rank_)));
  // A rank that dies meanwhile is no survivor: again, without it.
  for (int attempt = 0;; ++attempt) {
    Result<std::shared_ptr<CommunicatorInterface>> child = shrink_once(attempt, deadline);
    if (child.ok() || child.status().code() != Code::peer_died) return child;
  }
}

Result<std::shared_ptr<CommunicatorInterface>> TuttiCommunicator::shrink_once(int attempt, std::int64_t deadline) {
  TUTTI_ASSIGN(const std::vector<int> survivors, agree_on_survivors(attempt, deadline));
  if (survivors.size() == 1) {
    return std::shared_ptr<CommunicatorInterface>(std::make_shared<SelfCommunicator>(options_));
  }
  std::vector<int> members;
  int own = 0;
  for (const int r : survivors) {
    if (r == rank_) own = static_cast<int>(members.size());
    members.push_back(members_[static_cast<std::size_t>(r)]);
  }
  const Exchange exchange = [&](const Words& words) {
    return meet_survivors(survivors, attempt, kExchanged, words, deadline);
  };
  TUTTI_ASSIGN(
      std::shared_ptr<TuttiCommunicator> child,
      create(job_, members, own, scope_of_child(shrinks_, -static_cast<int>(members.size())), options_, exchange));
  TUTTI_ASSIGN([[maybe_unused]] const Words all, meet_survivors(survivors, attempt, kReady, {0}, deadline));
  return std::shared_ptr<CommunicatorInterface>(std::move(child));
}

}  // namespace tutti
