// What every block of a kernel does about a call as a whole: it finds out its number, announces it, waits at the gate,
// and chooses the program. The steps are walker-inl.h's. See reduce-inl.h for what a Block is.
// Errors: a wait ends by mismatch, deadline or abort; the first thread that fails writes DeviceVerdict for the host.
// Threads: all threads of a block call announce(), gate() and choose(), and agree on the outcome.
#pragma once

#include "collectives/executor/cuda/launch.h"
#include "collectives/executor/cuda/reduce-inl.h"
#include "collectives/executor/history.h"

namespace tutti::executor::cuda {

/// Memory that the threads of a block share.
struct Shared {
  struct Opened {
    std::uint64_t input = 0;
    std::uint64_t output = 0;
    double factor = 1.0;
  };
  Pass passes[2];  // in turns: one is filled while slow threads are busy with the other
  Opened opened[transport::kMostDeviceRanks];
};

template <class Block>
class Caller : public Block {
 public:
  /// Waits until `come` returns true; reduce-inl.h calls it.
  template <class Come>
  TUTTI_MEMBER bool await_line(Come&& come, std::uint8_t peer) {
    return until(come, peer);
  }

 protected:
  using State = transport::DeviceState;
  using Call = transport::DeviceCall;

  template <class... Args>
  TUTTI_MEMBER Caller(const LaunchArguments& arguments, Args&&... args)
      : Block(static_cast<Args&&>(args)...), a_(arguments), own_(window(a_.rank)) {}

  // ---- Where things are

  TUTTI_MEMBER std::uint64_t window(int rank) const { return a_.peers[rank].window; }
  TUTTI_MEMBER State* state() const { return reinterpret_cast<State*>(own_); }
  TUTTI_MEMBER Call* call_of(std::uint64_t at, int sender, std::uint64_t call) const {
    return reinterpret_cast<Call*>(at + a_.sizes.call_offset(sender, call));
  }

  // ---- Waiting, and how it fails

  template <class Holds>
  TUTTI_MEMBER bool until(Holds&& holds, int peer) {
    std::uint64_t since = 0;
    for (std::uint32_t turns = 1; !holds(); ++turns) {
      if (turns % Block::kTurnsBetweenLooks == 0 && !may_wait(peer, since)) return false;
    }
    return true;
  }

  /// Now and then in a long wait, which began at `since` (0: not yet looked at the clock).
  TUTTI_SLOW bool may_wait(int peer, std::uint64_t& since) {
    if (this->load(&state()->failed) != 0) return false;
    if (this->load(&a_.host->abort) != 0) return fail(Failure::aborted, peer, call_, 0);
    const std::uint64_t now = this->now_ns();
    if (since == 0) since = now;
    if (now - since > this->load(&a_.host->limit_ns)) return fail(Failure::deadline, peer, call_, now - since);
    this->relax();
    return true;
  }

  TUTTI_SLOW bool fail(Failure kind, int peer, std::uint64_t call, std::uint64_t waited_ns) {
    if (!this->claim(&state()->failed)) return false;  // another thread has reported already
    transport::DeviceVerdict* verdict = &a_.host->verdict;
    this->store(&verdict->kind, static_cast<std::uint64_t>(kind));
    this->store(&verdict->peer, static_cast<std::uint64_t>(peer));
    this->store(&verdict->call, call);
    this->store(&verdict->waited_ns, waited_ns);
    std::uint64_t absent = 0;
    for (int rank = 0; rank < a_.sizes.ranks; ++rank) {
      if (this->load(&call_of(own_, rank, call)->sequence) < call) absent |= std::uint64_t{1} << rank;
    }
    this->store(&verdict->absent, absent);
    // This rank's record of the call in progress may not be written yet: another block announces it.
    if (call == call_) {
      this->store(&verdict->own.sequence, call);
      this->store(&verdict->own.what, c_->announcement.what);
      this->store(&verdict->own.count, c_->announcement.count);
    } else {
      copy_record(&verdict->own, call_of(own_, a_.rank, call));
    }
    copy_record(&verdict->other, call_of(own_, peer, call));
    this->store_release(&verdict->state, 1);
    return false;
  }

  TUTTI_MEMBER void copy_record(Call* to, const Call* from) {
    auto* words = reinterpret_cast<std::uint64_t*>(to);
    const auto* values = reinterpret_cast<const std::uint64_t*>(from);
    for (std::size_t i = 0; i < sizeof(Call) / sizeof(std::uint64_t); ++i)
      this->store(words + i, this->load(values + i));
  }

  TUTTI_MEMBER bool aliased(int peer) const { return (a_.peers[peer].flags & transport::kAliased) != 0; }

  /// Waits until `peer` has entered `call`, the present one or the one before. Fails if its calls until then differ.
  TUTTI_SLOW bool see_entered(int peer, std::uint64_t call) {
    const Call* theirs = call_of(own_, peer, call);
    if (!until([&] { return this->load_acquire(&theirs->sequence) >= call; }, peer)) return false;
    if (aliased(peer)) this->fence_alias();
    if (this->load(&theirs->history) == (call == call_ ? history_ : previous_history_)) return true;
    return fail(Failure::mismatch, peer, call, 0);
  }

  // ---- The call's beginning and end

  TUTTI_MEMBER void announce() {
    if ((call_ % kCleanEvery == 1 || call_ % kCleanEvery == 2) && call_ > 2) {
      // No peer writes to the cells of the other parity before this rank has entered the present call.
      clean(call_ + 1);
    }
    if (this->thread() == 0) {
      this->store(&a_.host->entered_ns, this->now_ns());
      this->store(&a_.host->entered, call_);
    }
    for (int peer = static_cast<int>(this->thread()); peer < a_.sizes.ranks;
         peer += static_cast<int>(this->threads())) {
      Call* record = call_of(window(peer), a_.rank, call_);
      this->store(&record->history, history_);
      this->store(&record->input, c_->announcement.input);
      this->store(&record->output, c_->announcement.output);
      this->store(&record->factor, c_->announcement.factor);
      this->store(&record->what, c_->announcement.what);
      this->store(&record->count, c_->announcement.count);
      this->store(&record->flags, c_->announcement.flags);
      if (aliased(peer)) this->fence_alias();
      this->store_release(&record->sequence, call_);
    }
  }

  TUTTI_SLOW void clean(std::uint64_t parity) {
    const std::uint64_t words = a_.sizes.cell_bytes() / sizeof(std::uint64_t);
    for (int sender = 0; sender < a_.sizes.ranks; ++sender) {
      auto* cell = reinterpret_cast<std::uint64_t*>(own_ + a_.sizes.cell_offset(sender, parity));
      for (std::uint64_t i = this->thread(); i < words; i += this->threads()) this->store(cell + i, 0);
    }
    this->sync();  // the announcement is behind all of it
  }

  TUTTI_MEMBER bool gate() {
    bool well = true;
    for (int peer = static_cast<int>(this->thread()); call_ > 1 && peer < a_.sizes.ranks;
         peer += static_cast<int>(this->threads())) {
      well = well && see_entered(peer, call_ - 1);
    }
    return !this->any(!well);
  }

  TUTTI_MEMBER const Program* choose() {
    if (c_->if_plain == nullptr && c_->if_in_place == nullptr) return c_->first;
    bool well = true;
    std::uint64_t flags = 0;
    for (int peer = static_cast<int>(this->thread()); peer < a_.sizes.ranks;
         peer += static_cast<int>(this->threads())) {
      well = well && see_entered(peer, call_);
      if (well) flags |= this->load(&call_of(own_, peer, call_)->flags);
    }
    if (this->any(!well)) return nullptr;
    const bool in_place = this->any((flags & transport::kDeviceInPlace) != 0);
    const bool plain = this->any((flags & transport::kDevicePlain) != 0);
    if (in_place && c_->if_in_place != nullptr) return c_->if_in_place;
    return plain && c_->if_plain != nullptr ? c_->if_plain : c_->first;
  }

  const LaunchArguments& a_;
  const LaunchCall* c_ = nullptr;  // the call in progress
  const std::uint64_t own_;        // this rank's window
  std::uint64_t call_ = 0;
  std::uint64_t history_ = 0;
  std::uint64_t previous_history_ = 0;
};

}  // namespace tutti::executor::cuda
