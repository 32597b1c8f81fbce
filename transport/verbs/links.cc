#ifdef TUTTI_HAS_VERBS
#include "transport/verbs/links.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/cpu.h"
#include "transport/verbs/address.h"

namespace tutti::transport::verbs {

namespace {

constexpr std::int64_t kProbeEvery = 500'000'000;
constexpr std::int64_t kLastWords = 3'000'000'000;  // what is under way when the wire goes gets so long

}  // namespace

std::vector<int> Links::share(int rails) {
  std::vector<int> links_by_rail(static_cast<std::size_t>(rails));
  peers_.resize(static_cast<std::size_t>(job_.size()));
  for (int m = 0; m < job_.size(); ++m) {
    if (!job_.linked(m)) continue;
    // The peer may have fewer, which connect() will tell.
    topology::RailShare& own = peer(m).own;
    own = shares_.between(job_.rank, rails, m, rails);
    own.count = std::min(own.count, std::max(job_.lanes, 1));
    for (int k = 0; k < own.count; ++k) ++links_by_rail[static_cast<std::size_t>(own.of_lane(k))];
  }
  return links_by_rail;
}

Status Links::make(Memory& memory) {
  for (int m = 0; m < job_.size(); ++m) {
    if (!job_.linked(m)) continue;
    Peer& peer = this->peer(m);
    for (int k = 0; k < peer.own.count; ++k) {
      const auto r = static_cast<std::size_t>(peer.own.of_lane(k));
      TUTTI_ASSIGN(
          std::unique_ptr<Link> link,
          Link::make(*rails_.all[r], links_.size(), job_.names[static_cast<std::size_t>(m)], memory.bounce_buffers(r)));
      link_by_pair_[std::uint64_t{r} << 32 | link->queue_pair()] = link.get();
      peer.links.push_back(link.get());
      links_.push_back(std::move(link));
    }
  }
  return {};
}

std::string Links::address() const {
  Address own;
  own.lanes = static_cast<std::size_t>(std::max(job_.lanes, 1));
  for (const std::unique_ptr<Rail>& rail : rails_.all) own.rails.push_back(rail->end());
  for (const Peer& peer : peers_) {
    for (std::size_t k = 0; k < own.lanes; ++k) {
      own.pairs.push_back(k < peer.links.size() ? peer.links[k]->queue_pair() : 0);
    }
  }
  return text_of(own);
}

Status Links::connect(int m, const std::string& text) {
  const std::string& who = job_.names[static_cast<std::size_t>(m)];
  const int lanes = std::max(job_.lanes, 1);
  TUTTI_ASSIGN(const Address address, address_of(text, job_.size(), static_cast<std::size_t>(lanes), who));
  Peer& peer = this->peer(m);
  const int here = static_cast<int>(rails_.all.size());
  const int there = static_cast<int>(address.rails.size());
  peer.own = shares_.between(job_.rank, here, m, there);
  peer.theirs = shares_.between(m, there, job_.rank, here);
  peer.own.count = peer.theirs.count = std::min(peer.own.count, lanes);
  peer.links.resize(static_cast<std::size_t>(peer.own.count));
  for (std::size_t k = 0; k < peer.links.size(); ++k) {
    const auto rail = static_cast<std::size_t>(peer.theirs.of_lane(static_cast<int>(k)));
    TUTTI_TRY(peer.links[k]->connect(address.rails[rail], address.pair(job_.rank, k)));
  }
  return {};
}

void Links::finish() {
  send_all();
  std::vector<bool> probed(links_.size());
  const auto is_done = [&](const std::unique_ptr<Link>& link) {
    if (!link->connected() || link->idle()) return true;
    const std::size_t l = link->place();
    if (!probed[l]) probed[l] = link->broken().ok() && link->probe();  // its completion stands for all before it
    return false;
  };
  for (const std::int64_t begin = now_ns(); !std::all_of(links_.begin(), links_.end(), is_done);) {
    if (!poll()) cpu_relax();
    if (now_ns() - begin > kLastWords) break;
  }
}

Result<Link*> Links::to(int rank, int lane) {
  const Peer& peer = this->peer(rank);
  if (!peer.broken.ok()) return peer.broken;
  if (peer.links.empty()) {
    return invalid_argument(
        fmt::format("verbs: {} is on this host, and not linked", job_.names[static_cast<std::size_t>(rank)]));
  }
  return peer.links[static_cast<std::size_t>(lane) % peer.links.size()];
}

Status Links::after_write(int rank, const Link& link) {
  if (link.backlogged()) {  // perhaps for bounce buffers, which others hold back
    is_waiting_ = true;
    send_all();
  }
  if (!link.broken().ok()) spread_breaks();
  return this->peer(rank).broken;
}

bool Links::poll() {
  bool any = false;
  for (const std::size_t r : rails_.used) {
    const int completed = rails_.all[r]->poll([&](const ibv_wc& completion) {
      const auto found = link_by_pair_.find(std::uint64_t{r} << 32 | completion.qp_num);
      if (found == link_by_pair_.end()) return;
      found->second->take(completion);
      any_break_ |= !found->second->broken().ok();
    });
    any |= completed > 0;
    if (completed < 0) break_rail(r);
  }
  if (any_break_) spread_breaks();
  if (is_waiting_) any |= advance();
  if (any) backoff_.reset();
  return any;
}

void Links::break_rail(std::size_t rail) {
  for (const auto& [pair, link] : link_by_pair_) {
    if (pair >> 32 == rail) link->break_off(Code::system, "ibv_poll_cq failed");
  }
  any_break_ = true;
}

/// Bounce buffers that one link gives back may be what another one waits for.
bool Links::advance() {
  bool any = false;
  is_waiting_ = false;
  for (const std::unique_ptr<Link>& link : links_) {
    if (!link->waits()) continue;
    any |= link->advance();
    any_break_ |= !link->broken().ok();
    is_waiting_ |= link->waits();
  }
  if (any_break_) spread_breaks();
  return any;
}

/// A rank whose link has broken on one rail is not to be reached by the others either: order and completeness of what
/// it gets are gone.
void Links::spread_breaks() {
  any_break_ = false;
  for (Peer& peer : peers_) {
    if (!peer.broken.ok()) continue;
    for (const Link* link : peer.links) {
      if (!link->broken().ok()) peer.broken = link->broken();
    }
    if (peer.broken.ok()) continue;
    for (Link* link : peer.links) link->break_off(peer.broken.code(), "another rail to the same peer is broken");
    is_waiting_ = true;
  }
}

void Links::send_all() {
  for (const std::unique_ptr<Link>& link : links_) {
    link->send();
    any_break_ |= !link->broken().ok();
  }
  if (any_break_) spread_breaks();
}

void Links::probe_silent_links() {
  const std::int64_t now = now_ns();
  if (now - probed_ns_ < kProbeEvery) return;
  probed_ns_ = now;
  for (const Peer& peer : peers_) {
    if (!peer.broken.ok()) continue;
    // What is to be sent serves as well; what is under way and asked for no completion is told by the probe.
    for (Link* link : peer.links) {
      (void)link->probe();
      any_break_ |= !link->broken().ok();
    }
  }
  if (any_break_) spread_breaks();
}

}  // namespace tutti::transport::verbs
#endif
