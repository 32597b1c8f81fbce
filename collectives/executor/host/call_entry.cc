#include "collectives/executor/host/call_entry.h"

#include <algorithm>
#include <atomic>
#include <bit>

namespace tutti::executor {

using plan::Space;
using transport::CallRecord;
using transport::Handle;

CallEntry::CallEntry(transport::Transport& transport, Waiter& waiter, SignalLinks& links, BaseTable& bases, int rank)
    : transport_(transport),
      waiter_(waiter),
      links_(links),
      bases_(bases),
      rank_(rank),
      ranks_(transport.sizes().ranks),
      board_(transport.window(rank).board),
      peers_(static_cast<std::size_t>(ranks_)) {}

void CallEntry::enter(const Announcement& announcement, const CallBuffers& buffers, bool handles) {
  ++sequence_;
  history_ = history_of(history_, announcement.fingerprint);
  tag_ = tag_of(history_, sequence_);
  waiter_.begin_call(sequence_);
  Handle input = 0;
  Handle output = 0;
  if (handles) {
    input = transport_.handle_of(buffers.input, 1);
    output = transport_.handle_of(buffers.output, 1);
  }
  announce(*board_, sequence_, announcement, history_, input, output, buffers.factor);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // before a look at peers: the other half is in Waiter::part()
}

void CallEntry::leave(bool well) {
  end(board_->calls[sequence_ % transport::kCallRing], well);
  waiter_.begin_call(0);
}

void CallEntry::withdraw() {
  CallRecord& record = board_->calls[sequence_ % transport::kCallRing];
  record.fingerprint.store(~history_, std::memory_order_relaxed);
  record.state.store(transport::CallState::failed, std::memory_order_release);
  waiter_.part(sequence_);
}

Status CallEntry::bound_run_ahead() {
  if (sequence_ < kLookEvery) return {};
  const std::uint64_t needed = sequence_ - kLookEvery;
  waiter_.begin_call(needed);
  Status status;
  for (int peer = 0; peer < ranks_ && status.ok(); ++peer) {
    if (links_.is_remote(peer)) continue;
    if (peers_[static_cast<std::size_t>(peer)].entered < needed) status = see_entered(peer, needed);
  }
  waiter_.begin_call(0);
  return status;
}

// One acquire, of the sequence, makes the whole record visible, and no second look is needed: bound_run_ahead() sees to
// it that the peer does not write it again while this rank is in the call.
Status CallEntry::open(int peer) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  if (p.opened == sequence_) return {};
  TUTTI_TRY(see_entered(peer, sequence_));
  const CallRecord& record = record_of(peer, sequence_);
  p.opened = sequence_;
  p.factor = record.factor.load(std::memory_order_relaxed);
  const Handle input = record.input.load(std::memory_order_relaxed);
  const Handle output = record.output.load(std::memory_order_relaxed);
  if (input != p.input || p.input_pointer == nullptr) {
    p.input = input;
    p.input_pointer = transport_.reach(peer, input);
  }
  if (output != p.output || p.output_pointer == nullptr) {
    p.output = output;
    p.output_pointer = transport_.reach(peer, output);
  }
  BaseTable::Bases& bases = bases_.of_call(false, sequence_);
  bases[base_index(Space::input, ranks_, peer)] = p.input_pointer;
  bases[base_index(Space::output, ranks_, peer)] = p.output_pointer;
  return {};
}

Result<CallEntry::Agreement> CallEntry::agree() {
  Agreement agreement;
  for (int peer = 0; peer < ranks_; ++peer) {
    TUTTI_TRY(open(peer));
    const Peer& p = peers_[static_cast<std::size_t>(peer)];
    for (const Handle handle : {p.input, p.output}) {
      agreement.registered = agreement.registered && (handle == 0 || transport::is_registered(handle));
    }
    const CallRecord& record = record_of(peer, sequence_);
    const auto words = std::bit_cast<transport::CallWords>(record.what.load(std::memory_order_relaxed));
    agreement.in_place = agreement.in_place || (words.flags & transport::kInPlace) != 0;
  }
  return agreement;
}

bool CallEntry::has_entered(int peer, std::uint64_t call) const {
  return record_of(peer, call).sequence.load(std::memory_order_acquire) >= call;
}

Status CallEntry::compare(int peer, std::uint64_t call) {
  const auto history = [&](int rank) { return record_of(rank, call).fingerprint.load(std::memory_order_relaxed); };
  if (history(peer) != history(rank_)) TUTTI_TRY(waiter_.check_peer(peer, call));
  peers_[static_cast<std::size_t>(peer)].entered = call;
  return {};
}

Status CallEntry::see_entered(int peer, std::uint64_t call) {
  if (!has_entered(peer, call)) TUTTI_TRY(waiter_.until([&] { return has_entered(peer, call); }, peer));
  return compare(peer, call);
}

std::uint64_t CallEntry::announced_by(int peer, std::uint64_t needed) const {
  const std::uint64_t oldest = sequence_ > kLookBack ? sequence_ - kLookBack : 0;
  for (std::uint64_t call = sequence_; call > 0 && call >= needed && call > oldest; --call) {
    if (waiter_.has_announced(peer, call)) return call;
  }
  return needed > 0 && waiter_.has_announced(peer, needed) ? needed : 0;
}

Status CallEntry::see_entered_remote(int peer, std::uint64_t needed) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  if (p.entered >= needed) return {};
  std::uint64_t call = 0;
  const auto announced = [&] { return (call = announced_by(peer, needed)) != 0; };
  if (!announced()) TUTTI_TRY(waiter_.until(announced, peer));
  // The peer may be so far ahead, or the call so long ago, that there is nothing left to compare.
  if (record_of(peer, call).sequence.load(std::memory_order_acquire) == call &&
      record_of(rank_, call).sequence.load() == call) {
    return compare(peer, call);
  }
  p.entered = std::max(p.entered, call);
  return {};
}

// The plan says which rank puts into a slot; a rank in another call may go by another plan. But it has announced its
// call before it put anything.
Status CallEntry::check_scratch_writers() {
  for (int peer = 0; peer < ranks_; ++peer) {
    const Peer& p = peers_[static_cast<std::size_t>(peer)];
    if (links_.is_remote(peer)) {  // its records have gaps
      if (p.entered >= sequence_ || !waiter_.has_announced(peer, sequence_)) continue;
      const auto& record = record_of(peer, sequence_);
      if (record.sequence.load(std::memory_order_acquire) == sequence_) TUTTI_TRY(compare(peer, sequence_));
      continue;
    }
    while (peer != rank_ && p.entered < sequence_ && has_entered(peer, p.entered + 1)) {
      TUTTI_TRY(compare(peer, p.entered + 1));
    }
  }
  return {};
}

Status CallEntry::gate(const Prepared& prepared) {
  const auto pass = [&](const std::vector<int>& peers, std::uint64_t needed, std::uint64_t better,
                        std::uint64_t needed_of_remote) -> Status {
    for (const int peer : peers) {
      if (links_.is_remote(peer)) {
        TUTTI_TRY(see_entered_remote(peer, needed_of_remote));
      } else if (peers_[static_cast<std::size_t>(peer)].entered < needed) {
        TUTTI_TRY(see_entered(peer, better));
      }
    }
    return {};
  };
  if (prepared.express) {
    // A rank that must wait does so until half of the cells are free: one look for several calls, and one change of
    // places where two ranks share a core.
    const std::uint64_t behind = bases_.express_calls() - 1;
    if (sequence_ <= behind) return {};
    return pass(prepared.peers, sequence_ - behind, sequence_ - behind / 2, sequence_ - behind);
  }
  Half& half = halves_[sequence_ % 2];
  const std::uint64_t previous = sequence_ - 1;
  TUTTI_TRY(pass(prepared.peers, previous, previous, previous));
  if (half.prepared != prepared.id) {
    TUTTI_TRY(pass(half.peers, previous, previous, half.call + 1));
    half.prepared = prepared.id;
    half.peers = prepared.peers;
  }
  half.call = sequence_;
  return {};
}

}  // namespace tutti::executor
