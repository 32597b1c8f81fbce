#include "collectives/calls/count_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "collectives/calls/call_identity.h"
#include "collectives/executor/memory_kind_check.h"

namespace tutti {

using executor::PeerCounts;

Status CountExchange::run(const Call& call, std::uint64_t memory) {
  const auto n = static_cast<std::size_t>(context_.size());
  const std::size_t largest = std::max(*std::max_element(call.send_counts, call.send_counts + n),
                                       *std::max_element(call.recv_counts, call.recv_counts + n));
  own_.resize(n);
  theirs_.resize(n);
  for (std::size_t r = 0; r < n; ++r) own_[r] = {call.send_counts[r], call.send_offsets[r], largest | memory};
  Call counts;
  counts.collective = Collective::all_to_all;
  counts.send = own_.data();
  counts.recv = theirs_.data();
  counts.count = sizeof(PeerCounts) / sizeof(std::uint64_t);
  counts.type = DataType::u64;
  TUTTI_ASSIGN(const PreparedCall* const prepared, host_.prepared(counts));
  executor::Announcement announcement = prepared->announcement;
  announcement.identity = identity_of(call, context_.options);
  announcement.fingerprint = announcement.identity.fingerprint();
  TUTTI_TRY(host_.run(*prepared, counts, announcement));
  return compare(call);
}

Status CountExchange::compare(const Call& call) {
  for (int peer = 0; peer < context_.size(); ++peer) {
    const std::uint64_t count = theirs_[static_cast<std::size_t>(peer)].count;
    if (count == call.recv_counts[peer]) continue;
    return context_.fail(context_.health.fail(
        Code::mismatch, fmt::format("{} sends {} x {} to {}, which receives {} x {} in all_to_allv as its call {}",
                                    context_.name_of(peer), count, name_of(call.type), context_.name,
                                    call.recv_counts[peer], name_of(call.type), host_.executor().entry.sequence())));
  }
  return {};
}

std::size_t CountExchange::largest_piece() const {
  std::size_t largest = 0;
  for (const PeerCounts& counts : theirs_) largest = std::max<std::size_t>(largest, counts.largest_piece());
  return largest;
}

bool CountExchange::any_in(std::uint64_t memory) const {
  return std::any_of(theirs_.begin(), theirs_.end(),
                     [memory](const PeerCounts& counts) { return (counts.largest & memory) != 0; });
}

executor::UnevenPieces CountExchange::pieces_of(const Call& call) const {
  const auto n = static_cast<std::size_t>(context_.size());
  return {.rank = context_.rank,
          .send_counts = {call.send_counts, n},
          .send_offsets = {call.send_offsets, n},
          .recv_counts = {call.recv_counts, n},
          .recv_offsets = {call.recv_offsets, n},
          .peer_counts = theirs_};
}

Status CountExchange::mixed_memories() {
  const auto first_in = [this](std::uint64_t memory) {
    const auto has = [memory](const PeerCounts& counts) { return (counts.largest & memory) != 0; };
    return static_cast<int>(std::find_if(theirs_.begin(), theirs_.end(), has) - theirs_.begin());
  };
  const executor::CallSnapshot call = host_.last_record();
  const std::string text =
      executor::mixed_text([this](int rank) { return context_.name_of(rank); }, first_in(PeerCounts::kOnHost), call,
                           first_in(PeerCounts::kOnDevice), call);
  return context_.fail(context_.health.fail(Code::mismatch, text));
}

}  // namespace tutti
