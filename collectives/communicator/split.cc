// A communicator of some of the ranks of another: who belongs to it, and what its ranks tell each other meanwhile, goes
// through the one that it is split from.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "collectives/communicator/self_communicator.h"

namespace tutti {

Call TuttiCommunicator::gathering(std::span<const std::uint64_t> mine, Words& all) const {
  all.resize(mine.size() * static_cast<std::size_t>(size()));
  Call call;
  call.collective = Collective::all_gather;
  call.send = mine.data();
  call.recv = all.data();
  call.count = mine.size();
  call.type = DataType::u64;
  return call;
}

Result<Words> TuttiCommunicator::gather_as(const executor::CallIdentity& identity,
                                           std::span<const std::uint64_t> mine) {
  if (health_.failed()) return failed(health_.status());
  Words all;
  const Call call = gathering(mine, all);
  TUTTI_TRY(bound_run_ahead());
  TUTTI_ASSIGN(const Ready* ready, this->ready(call));
  executor::Announcement announcement = ready->announcement;
  announcement.identity = identity;
  announcement.fingerprint = identity.fingerprint();
  TUTTI_TRY(carry_out(*ready, call, announcement));
  return all;
}

Result<Words> TuttiCommunicator::gather_words(const Words& mine) {
  TUTTI_TRY(usable());
  wait_for_queue();
  waiter_.set_background(false);
  Words all;
  TUTTI_TRY(execute(gathering(mine, all)));
  return all;
}

Result<std::shared_ptr<CommunicatorInterface>> TuttiCommunicator::split(int color, int key) {
  const std::uint64_t number = ++splits_;
  const std::uint64_t mine =
      (static_cast<std::uint64_t>(static_cast<std::uint32_t>(color)) << 32) | static_cast<std::uint32_t>(key);
  TUTTI_ASSIGN(const Words all, gather_words({mine}));
  std::vector<std::pair<int, int>> group;  // key, rank
  for (int r = 0; r < size(); ++r) {
    const std::uint64_t word = all[static_cast<std::size_t>(r)];
    if (color >= 0 && static_cast<int>(word >> 32) == color) group.emplace_back(static_cast<int>(word & 0xFFFFFFFF), r);
  }
  std::sort(group.begin(), group.end());
  std::vector<int> ranks;
  std::vector<int> members;
  int own = 0;
  for (const auto& [k, r] : group) {
    if (r == rank_) own = static_cast<int>(ranks.size());
    ranks.push_back(r);
    members.push_back(members_[static_cast<std::size_t>(r)]);
  }
  const Exchange exchange = [&](const Words& words) -> Result<Words> {
    TUTTI_ASSIGN(const Words values, gather_words(words));
    Words chosen;
    for (const int r : ranks) {
      const auto first = values.begin() + r * static_cast<std::ptrdiff_t>(words.size());
      chosen.insert(chosen.end(), first, first + static_cast<std::ptrdiff_t>(words.size()));
    }
    return chosen;
  };
  Result<std::shared_ptr<CommunicatorInterface>> child = std::shared_ptr<CommunicatorInterface>();
  if (ranks.size() < 2) {
    // Nobody to share memory with, but the others' exchange needs this rank.
    TUTTI_ASSIGN([[maybe_unused]] const Words values, gather_words(job_->nothing()));
    if (color >= 0) child = std::shared_ptr<CommunicatorInterface>(std::make_shared<SelfCommunicator>(options_));
  } else {
    auto made = create(job_, members, own, scope_of_child(number, color), options_, exchange);
    if (made.ok()) {
      child = std::shared_ptr<CommunicatorInterface>(made.take());
    } else {
      child = made.status();
    }
  }
  // Nobody goes on before all have each other's memory.
  Call barrier;
  TUTTI_TRY(run(barrier));
  return child;
}

}  // namespace tutti
