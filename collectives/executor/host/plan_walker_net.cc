// Steps of a plan that reach ranks on other hosts.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "collectives/executor/host/passes-inl.h"
#include "collectives/executor/host/plan_walker.h"
#include "collectives/executor/net_record.h"
#include "collectives/reduce/reduce.h"

namespace tutti::executor {

using plan::Space;
using plan::StepKind;
using transport::CallRecord;

Status PlanWalker::signal_over_net(const Prepared& prepared, const PreparedStep& s, int lane) {
  TUTTI_TRY(net_->puts().before_signal(s.peer));
  if (!links_.is_remote(s.peer)) {
    if (prepared.express) {
      signal_express(prepared, s.peer);
    } else {
      signal(s.peer, lane, s.channel);
    }
    return {};
  }
  ++signals_;
  return prepared.express ? net_->signal_express(prepared, s.peer) : net_->signal(s.peer, lane, s.channel);
}

Status PlanWalker::wait_express_remote(int peer) {
  const CallRecord& come = net_record(table_.express_cell(rank_, peer, entry_.sequence()));
  const auto announced = [&] {
    return come.sequence.load(std::memory_order_acquire) == entry_.sequence() && is_complete(come);
  };
  if (!announced()) TUTTI_TRY(waiter_.until(announcing_pending(announced), peer));
  if (come.fingerprint.load(std::memory_order_relaxed) != entry_.history()) {
    TUTTI_TRY(waiter_.check_peer(peer, entry_.sequence()));
  }
  entry_.mark_entered(peer);
  return {};
}

Status PlanWalker::put_remote(const Prepared& prepared, const PreparedStep& s, const CallBuffers& buffers,
                              std::span<const std::size_t> offsets, std::size_t elements, int lane) {
  const PreparedRange& source = prepared.ranges[s.sources];
  const PreparedRange& target = prepared.ranges[s.sources + 1];
  const std::byte* from = (*bases_)[source.base];
  // The planner gives such links no other plans.
  TUTTI_CHECK(s.kind == StepKind::put && s.source_count == 1 && s.destination_count == 1 && from != nullptr &&
              target.range.space == Space::scratch);
  from += offsets[0];
  std::byte* to =
      transport_.window(target.range.rank).scratch + entry_.sequence() % 2 * links_.sizes().scratch_half + offsets[1];
  if (prepared.shape.op != ReduceOp::premul_sum || !source.raw_input) {
    const bool fixed = source.range.space == Space::input && buffers.input != buffers.output;
    return net_->puts().put(target.range.rank, lane, to, from, elements * prepared.element, fixed);
  }
  // Multiplied on the way, a bounce buffer at a time.
  if (bounce_.empty()) bounce_.resize(kBounceBytes);
  const std::array<double, 1> factors{factor_of(source, buffers)};
  const reduce::Spec spec{
      .type = prepared.shape.type, .op = prepared.shape.op, .divide_by = 0.0, .factors = factors.data()};
  const std::size_t most = bounce_.size() / prepared.element;
  for (std::size_t done = 0; done < elements; done += most) {
    const std::size_t count = std::min(most, elements - done);
    const std::size_t begin = done * prepared.element;
    TUTTI_TRY(net_->puts().before_write(bounce_.data(), count * prepared.element));
    void* const bounced[] = {bounce_.data()};
    const void* const sources[] = {from + begin};
    reduce::reduce(spec, bounced, sources, count, false);
    TUTTI_TRY(net_->puts().put(target.range.rank, lane, to + begin, bounce_.data(), count * prepared.element, false));
  }
  return {};
}

Status PlanWalker::move_remote(std::span<const int> peers, std::span<const RemoteMove> moves) {
  TUTTI_ASSIGN(const std::size_t bytes, net_->move(peers, moves));
  const int lanes = links_.sizes().lanes;
  bytes_ += bytes;
  signals_ += peers.size() * static_cast<std::size_t>(lanes);
  for (const int peer : peers) {
    for (int lane = 0; lane < lanes; ++lane) TUTTI_TRY(wait(peer, lane, 0, true).status());
  }
  return net_->puts().finish();
}

// ---- Redirects: a message that is only copied to the output goes there at once (Wire::redirect()), which saves a
// pass.
//
// Such a message comes earlier than its copy would: while this rank still waits, perhaps for another one. This is no
// race. Nothing of this rank touches that part of the output from the wait until the copy
// (PreparedStep::redirects_from). No peer touches it either, since plans that open buffers have no redirects. What an
// earlier step still sends from there is checked for (NetPuts::reads).

namespace {

/// Whether the caller's buffers may have bytes in common.
bool may_be_in_place(const Prepared& prepared, const CallBuffers& buffers) {
  if (buffers.uneven != nullptr) return true;
  const std::size_t stride = std::max(prepared.shape.stride, prepared.shape.count);
  const std::size_t most = stride * prepared.element * static_cast<std::size_t>(prepared.ranks);
  const auto* input = static_cast<const std::byte*>(buffers.input);
  const auto* output = static_cast<const std::byte*>(buffers.output);
  return input < output + most && output < input + most;
}

}  // namespace

Status PlanWalker::redirect_ahead(const Prepared& prepared, const CallBuffers& buffers, int lane, Cursor& cursor) {
  const auto& steps = prepared.lanes[static_cast<std::size_t>(lane)];
  if (cursor.ahead_round < cursor.round || (cursor.ahead_round == cursor.round && cursor.ahead_step < cursor.step)) {
    cursor.ahead_round = cursor.round;
    cursor.ahead_step = cursor.step;
  }
  const BaseTable::Bases& bases = *bases_;
  for (;; ++cursor.ahead_step) {
    if (cursor.ahead_step == steps.size()) {
      ++cursor.ahead_round;
      cursor.ahead_step = 0;
    }
    // The slots of the round after the next may be those of this one.
    if (cursor.ahead_round >= prepared.rounds || cursor.ahead_round > cursor.round + 1) return {};
    const PreparedStep& s = steps[cursor.ahead_step];
    if (s.redirects_from == PreparedStep::kNever || !links_.is_remote(s.sender)) continue;
    const std::uint32_t from = may_be_in_place(prepared, buffers) ? s.redirects_from_in_place : s.redirects_from;
    if (from > (cursor.ahead_round == cursor.round ? cursor.step : 0)) return {};  // not yet
    TUTTI_TRY(each_pass(prepared, s, buffers, cursor.ahead_round,
                        [&](std::span<const std::size_t> offsets, std::size_t elements) -> Status {
                          const PreparedRange* ranges = &prepared.ranges[s.sources];
                          const std::byte* slot = bases[ranges[0].base] + offsets[0];
                          std::byte* to = bases[ranges[1].base] + offsets[1];
                          const std::size_t bytes = elements * prepared.element;
                          if (bytes <= net_->network().info().copied || net_->puts().reads(to, bytes)) return {};
                          net_->network().wire().redirect(slot, bytes, to);
                          redirected_.push_back(slot);
                          return {};
                        }));
  }
}

bool PlanWalker::was_redirected(const void* slot) {
  const auto found = std::find(redirected_.begin(), redirected_.end(), slot);
  if (found == redirected_.end()) return false;
  *found = redirected_.back();
  redirected_.pop_back();
  return net_->network().wire().end_redirect(slot);
}

void PlanWalker::end_redirects() {
  for (const void* slot : redirected_) (void)net_->network().wire().end_redirect(slot);
  redirected_.clear();
}

}  // namespace tutti::executor
