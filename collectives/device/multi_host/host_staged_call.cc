#include "collectives/device/multi_host/host_staged_call.h"

#include <algorithm>

#include "base/even_share.h"
#include "collectives/calls/validate.h"
#include "collectives/plan/layout.h"
#include "transport/transport.h"

namespace tutti {

namespace {

std::byte* at(const void* buffer, std::size_t offset) {
  return static_cast<std::byte*>(const_cast<void*>(buffer)) + offset;
}

}  // namespace

HostStagedCall::HostStagedCall(const Call& call, int rank, int ranks, std::size_t slot_bytes)
    : copy_(call, ranks), rank_(rank), ranks_(static_cast<std::size_t>(ranks)), element_(size_of(call.type)) {
  const std::size_t bytes = slot_bytes / std::max(blocks(true), blocks(false));
  part_ = std::max(bytes / transport::kCacheLine * transport::kCacheLine / element_, std::size_t{1});
}

std::size_t HostStagedCall::blocks(bool input) const {
  const plan::Placements placements = plan::placements_of(copy_.call().collective);
  return (input ? placements.input : placements.output) == plan::Placement::blocks ? ranks_ : 1;
}

std::size_t HostStagedCall::fragments() const {
  const Call call = whole();
  if (!uneven()) return fragments_for(call.count);
  return fragments_for(std::max(*std::max_element(call.send_counts, call.send_counts + ranks_),
                                *std::max_element(call.recv_counts, call.recv_counts + ranks_)));
}

HostStaging::Fragment HostStagedCall::copies(std::size_t fragment, std::byte* input, std::byte* output) const {
  const Call call = whole();
  HostStaging::Fragment made;
  // `n` blocks, each in the slot behind the one before it. One copy where they lie so in the buffer, too.
  const auto add = [&](std::vector<HostStaging::Piece>& to, const void* buffer, std::byte* slot, std::size_t n) {
    const std::size_t size = size_in(fragment, call.count);
    const bool at_once = size == call.count;
    for (std::size_t b = 0; b < (at_once ? 1 : n); ++b) {
      to.push_back({at(buffer, (b * call.count + fragment * part_) * element_), slot + b * size * element_,
                    (at_once ? n : 1) * size * element_});
    }
  };
  const auto add_uneven = [&](std::vector<HostStaging::Piece>& to, const void* buffer, std::byte* slot,
                              const std::size_t* counts, const std::size_t* offsets) {
    for (std::size_t r = 0; r < ranks_; ++r) {
      const std::size_t size = size_in(fragment, counts[r]);
      if (size == 0) continue;
      to.push_back(
          {at(buffer, (offsets[r] + fragment * part_) * element_), slot + r * part_ * element_, size * element_});
    }
  };
  if (uneven()) {
    add_uneven(made.in, call.send, input, call.send_counts, call.send_offsets);
    add_uneven(made.out, call.recv, output, call.recv_counts, call.recv_offsets);
    return made;
  }
  if (reads_send(call, rank_)) add(made.in, call.send, input, blocks(true));
  if (writes_recv(call, rank_)) add(made.out, call.recv, output, blocks(false));
  return made;
}

Call HostStagedCall::call(std::size_t fragment, const std::byte* input, std::byte* output) const {
  Call call = whole();
  call.send = reads_send(call, rank_) ? input : nullptr;
  call.recv = writes_recv(call, rank_) ? output : nullptr;
  call.count = size_in(fragment, call.count);
  return call;
}

HostStagedCall::Pieces HostStagedCall::pieces(std::size_t fragment, std::span<const executor::PeerCounts> told) const {
  const Call call = whole();
  Pieces pieces;
  for (std::size_t r = 0; r < ranks_; ++r) {
    pieces.send_counts.push_back(size_in(fragment, call.send_counts[r]));
    pieces.recv_counts.push_back(size_in(fragment, call.recv_counts[r]));
    pieces.offsets.push_back(r * part_);
    executor::PeerCounts counts = told[r];
    counts.count = size_in(fragment, counts.count);
    counts.offset = static_cast<std::size_t>(rank_) * part_;
    pieces.told.push_back(counts);
  }
  return pieces;
}

}  // namespace tutti
