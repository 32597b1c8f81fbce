#include "collectives/plan/builder.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"

namespace tutti::plan {
namespace {

constexpr int kRankBits = 24;  // of a link's key: receiver, sender, lane, so that sorted keys go receiver by receiver
constexpr int kLaneBits = 16;
constexpr std::int32_t kPublished = -1;

int receiver_of(std::uint64_t key) { return static_cast<int>(key >> (kRankBits + kLaneBits)); }

int pieces_of(const std::vector<Range>& ranges) {
  int count = 0;
  for (const Range& range : ranges) count += range.count;
  return count;
}

bool sums_anything(const Plan& plan) {
  for (const RankPlan& rank : plan.of_rank) {
    for (const Lane& lane : rank.lanes) {
      for (const Step& step : lane.steps) {
        if (step.kind == StepKind::reduce) return true;
      }
    }
  }
  return false;
}

}  // namespace

Builder::Builder(Collective collective, std::string algorithm, int ranks, int pieces, int root) {
  TUTTI_CHECK_LT(0, ranks);
  TUTTI_CHECK_LT(0, pieces);
  TUTTI_CHECK_LT(root, ranks);
  plan_.collective = collective;
  plan_.algorithm = std::move(algorithm);
  plan_.ranks = ranks;
  plan_.pieces = pieces;
  plan_.root = root;
  plan_.of_rank.assign(ranks, RankPlan{{Lane{}}});
}

RankBuilder Builder::rank(int r) {
  TUTTI_CHECK_LE(0, r);
  TUTTI_CHECK_LT(r, plan_.ranks);
  return RankBuilder(*this, r);
}

std::uint64_t Builder::key(int from, int to, int lane) {
  return (static_cast<std::uint64_t>(to) << (kRankBits + kLaneBits)) | (static_cast<std::uint64_t>(from) << kLaneBits) |
         static_cast<std::uint64_t>(lane);
}

Range Builder::slots_of(int from, int to, int lane, std::int32_t number, int count) {
  const auto first = static_cast<std::int32_t>(messages_.size());
  for (int offset = 0; offset < count; ++offset) messages_.push_back({key(from, to, lane), number, offset});
  return {Space::scratch, to, first, count};
}

void Builder::check_ends() const {
  for (const auto& [key, link] : links_) {
    // Each line compares what the sender wrote with what the receiver wrote. The first says: as many messages, each of
    // as many pieces. The third: the m-th credit that is waited for is the m-th that is given.
    TUTTI_CHECK(link.sent == link.received);
    TUTTI_CHECK(link.data_signals == link.data_waits);
    TUTTI_CHECK(link.credit_waits == link.credit_signals);
  }
}

void Builder::number_slots() {
  std::vector<std::uint64_t> keys;
  keys.reserve(links_.size());
  for (const auto& entry : links_) keys.push_back(entry.first);
  std::sort(keys.begin(), keys.end());

  std::unordered_map<std::uint64_t, std::vector<std::int32_t>> first_slots;
  std::vector<std::int32_t> used(plan_.ranks, 0);
  for (const std::uint64_t key : keys) {
    std::int32_t& next = used[receiver_of(key)];
    std::vector<std::int32_t>& slots = first_slots[key];
    for (const std::int32_t count : links_[key].sent) {
      slots.push_back(next);
      next += count;
    }
  }
  plan_.slots = *std::max_element(used.begin(), used.end());

  const auto place = [&](Range& range) {
    if (range.space == Space::published) plan_.published = std::max(plan_.published, range.first + range.count);
    if (range.space != Space::scratch) return;
    const Message& message = messages_[range.first];
    range.first = first_slots[message.link][message.number] + message.offset;
  };
  for (RankPlan& rank : plan_.of_rank) {
    for (Lane& lane : rank.lanes) {
      for (Step& step : lane.steps) {
        for (Range& range : step.sources) place(range);
        for (Range& range : step.destinations) place(range);
      }
    }
  }
}

Plan Builder::finish() {
  check_ends();
  number_slots();
  std::size_t lanes = 1;
  for (const RankPlan& rank : plan_.of_rank) lanes = std::max(lanes, rank.lanes.size());
  for (RankPlan& rank : plan_.of_rank) rank.lanes.resize(lanes);
  if (!sums_anything(plan_)) in_rank_order();
  return std::move(plan_);
}

void RankBuilder::lane(int l) {
  TUTTI_CHECK_LE(0, l);
  std::vector<Lane>& lanes = builder_->plan_.of_rank[rank_].lanes;
  if (lanes.size() <= static_cast<std::size_t>(l)) lanes.resize(l + 1);
  lane_ = l;
}

Step& RankBuilder::add(Step step) {
  std::vector<Step>& steps = builder_->plan_.of_rank[rank_].lanes[lane_].steps;
  steps.push_back(std::move(step));
  return steps.back();
}

void RankBuilder::copy(std::vector<Range> dsts, Range src) {
  add({.kind = StepKind::copy, .sources = {src}, .destinations = std::move(dsts)});
}

void RankBuilder::reduce(std::vector<Range> dsts, std::vector<Range> srcs) {
  add({.kind = StepKind::reduce, .sources = std::move(srcs), .destinations = std::move(dsts)});
}

void RankBuilder::reduce_last(std::vector<Range> dsts, std::vector<Range> srcs) {
  add({.kind = StepKind::reduce, .last = true, .sources = std::move(srcs), .destinations = std::move(dsts)});
}

void RankBuilder::send(int peer, const std::vector<Range>& srcs) {
  TUTTI_CHECK(peer != rank_);
  Builder::Link& link = builder_->link(rank_, peer, lane_);
  const auto number = static_cast<std::int32_t>(link.sent.size());
  const int count = pieces_of(srcs);
  link.sent.push_back(count);
  link.credit_waits.push_back(number);
  link.data_signals.push_back(true);
  Range slot = builder_->slots_of(rank_, peer, lane_, number, count);
  add({.kind = StepKind::wait, .guard = Guard::from_third_round, .channel = Channel::credit, .peer = peer});
  for (const Range& src : srcs) {
    slot.count = src.count;
    add({.kind = StepKind::put, .peer = peer, .sources = {src}, .destinations = {slot}});
    slot.first += src.count;
  }
  add({.kind = StepKind::signal, .peer = peer});
}

Range RankBuilder::take(int peer, int count) {
  TUTTI_CHECK(peer != rank_);
  Builder::Link& link = builder_->link(peer, rank_, lane_);
  const auto number = static_cast<std::int32_t>(link.received.size());
  link.received.push_back(count);
  link.data_waits.push_back(true);
  add({.kind = StepKind::wait, .peer = peer});
  return builder_->slots_of(peer, rank_, lane_, number, count);
}

void RankBuilder::release(int peer) {
  Builder::Link& link = builder_->link(peer, rank_, lane_);
  const bool of_message = link.released < static_cast<std::int32_t>(link.received.size());
  link.credit_signals.push_back(of_message ? link.released++ : kPublished);
  add({.kind = StepKind::signal, .guard = Guard::until_third_to_last, .channel = Channel::credit, .peer = peer});
}

void RankBuilder::reclaim(int reader) {
  builder_->link(rank_, reader, lane_).credit_waits.push_back(kPublished);
  add({.kind = StepKind::wait, .guard = Guard::from_third_round, .channel = Channel::credit, .peer = reader});
}

void RankBuilder::recv(int peer, const std::vector<Range>& dsts) {
  Range slot = take(peer, pieces_of(dsts));
  for (const Range& dst : dsts) {
    slot.count = dst.count;
    copy(dst, slot);
    slot.first += dst.count;
  }
  release(peer);
}

void RankBuilder::recv_reduce(int peer, Range dst, Range own, bool last) {
  const Range slot = take(peer, dst.count);
  reduce({dst}, {slot, own});
  builder_->plan_.of_rank[rank_].lanes[lane_].steps.back().last = last;
  release(peer);
}

void RankBuilder::recv_reduce_send(int from, Range own, int to) {
  const Range slot = take(from, own.count);
  reduce({slot}, {slot, own});
  send(to, slot);
  release(from);
}

void RankBuilder::recv_copy_send(int from, Range dst, int to) {
  recv(from, dst);
  send(to, dst);
}

void RankBuilder::open(int peer) {
  TUTTI_CHECK(peer != rank_);
  add({.kind = StepKind::open, .peer = peer});
}

void RankBuilder::signal(int peer) {
  TUTTI_CHECK(peer != rank_);
  builder_->link(rank_, peer, lane_).data_signals.push_back(false);
  add({.kind = StepKind::signal, .peer = peer});
}

void RankBuilder::wait(int peer) {
  TUTTI_CHECK(peer != rank_);
  builder_->link(peer, rank_, lane_).data_waits.push_back(false);
  add({.kind = StepKind::wait, .peer = peer});
}

}  // namespace tutti::plan
