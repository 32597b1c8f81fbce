// The survivors of a failed communicator form a new one. The old one's signals are in an unknown state and the meeting
// place may be dead, so they use nothing but their boards, which stay mapped whatever happens to their owners: each
// rank writes down whom it believes alive, and they have agreed once everybody in that set has written the same set. A
// rank that dies meanwhile changes the set, and they begin again.

#include <fmt/format.h>

#include <ctime>

#include "base/clock.h"
#include "collectives/alone.h"
#include "collectives/communicator.h"

namespace tutti {

using transport::Regroup;

namespace {

// How far a rank has come. They go on counting in the next shrink of the same communicator, so that nothing left from
// the last one passes for new.
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

Result<std::vector<int>> TuttiCommunicator::agree_on_survivors(std::int64_t deadline_ns) {
  Regroup& own = transport_->window(rank_).board->regroup;
  const std::uint64_t begin = kStages * shrinks_;
  Set written;
  for (;; breathe()) {
    Set alive((static_cast<std::size_t>(size()) + 63) / 64);
    for (int r = 0; r < size(); ++r) {
      const bool departed = transport_->window(r).board->pulse.departed.load(std::memory_order_acquire) != 0;
      if (transport_->alive(r) && !departed) alive[static_cast<std::size_t>(r) / 64] |= std::uint64_t{1} << (r % 64);
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

Result<std::vector<std::uint64_t>> TuttiCommunicator::meet_survivors(const std::vector<int>& survivors,
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
  if (transport_->far_links() != nullptr) {
    return unsupported(own_name_ + " called shrink on a communicator of several hosts; expected one host");
  }
  ++shrinks_;
  const std::int64_t deadline = now_ns() + std::chrono::nanoseconds(options_.timeout).count();
  // From here on the old communicator serves nobody.
  (void)health_.fail(Code::aborted, fmt::format("{} shrinks the communicator", who(rank_)));
  // A rank that dies meanwhile is no survivor: again, without it.
  for (;;) {
    Result<std::shared_ptr<CommunicatorInterface>> child = shrink_once(deadline);
    if (child.ok() || child.status().code() != Code::peer_died) return child;
  }
}

Result<std::shared_ptr<CommunicatorInterface>> TuttiCommunicator::shrink_once(std::int64_t deadline) {
  TUTTI_ASSIGN(const std::vector<int> survivors, agree_on_survivors(deadline));
  if (survivors.size() == 1) {
    return std::shared_ptr<CommunicatorInterface>(std::make_shared<AloneCommunicator>());
  }
  std::vector<int> members;
  int own = 0;
  for (const int r : survivors) {
    if (r == rank_) own = static_cast<int>(members.size());
    members.push_back(members_[static_cast<std::size_t>(r)]);
  }
  const Exchange exchange = [&](const Words& words) {
    return meet_survivors(survivors, kExchanged, words.front(), deadline);  // of one host: one word
  };
  TUTTI_ASSIGN(
      std::shared_ptr<TuttiCommunicator> child,
      create(fabric_, members, own, scope_of_child(shrinks_, -static_cast<int>(members.size())), options_, exchange));
  TUTTI_ASSIGN([[maybe_unused]] const std::vector<std::uint64_t> all, meet_survivors(survivors, kReady, 0, deadline));
  return std::shared_ptr<CommunicatorInterface>(std::move(child));
}

}  // namespace tutti
