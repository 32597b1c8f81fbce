#include "collectives/executor/host/plan_walker.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <utility>

#include "collectives/executor/host/passes-inl.h"
#include "collectives/executor/host/trace.h"
#include "collectives/reduce/reduce.h"

namespace tutti::executor {

using plan::Guard;
using plan::is_user;
using plan::Space;
using plan::StepKind;

namespace {

// What fits into a core's store buffer is better written where it was written before.
constexpr std::size_t kRotateFromBytes = 8192;

bool passes(Guard guard, int round, int rounds) {
  switch (guard) {
    case Guard::always: return true;
    case Guard::from_third_round: return round >= 2;
    case Guard::until_third_to_last: return round + 2 < rounds;
  }
  return true;
}

}  // namespace

PlanWalker::PlanWalker(transport::Transport& transport, Waiter& waiter, Health& health, CallEntry& entry,
                       SignalLinks& links, BaseTable& bases, NetSteps* net, int rank)
    : transport_(transport),
      waiter_(waiter),
      health_(health),
      entry_(entry),
      links_(links),
      table_(bases),
      net_(net),
      rank_(rank),
      ranks_(transport.sizes().ranks) {}

Status PlanWalker::run(const Prepared& prepared, const CallBuffers& buffers) {
  if (net_ != nullptr) TUTTI_TRY(net_->announce(prepared.peers, prepared.express_data.signalled));
  TUTTI_TRY(entry_.gate(prepared));
  const bool flush = net_ != nullptr && net_->begin(prepared);
  const Status status = walk(prepared, buffers);
  if (net_ != nullptr) end_redirects();
  TUTTI_TRY(status);
  if (net_ != nullptr) TUTTI_TRY(net_->finish(flush));
  return prepared.scratch.count > 0 && ranks_ > 2 ? entry_.check_scratch_writers() : Status();
}

Status PlanWalker::walk(const Prepared& prepared, const CallBuffers& buffers) {
  place(prepared);
  bases_ = &table_.of_call(prepared.express, entry_.sequence());
  (*bases_)[base_index(Space::input, ranks_, rank_)] = static_cast<std::byte*>(const_cast<void*>(buffers.input));
  (*bases_)[base_index(Space::output, ranks_, rank_)] = static_cast<std::byte*>(buffers.output);
  return walk_lanes(prepared, buffers);
}

void PlanWalker::place(const Prepared& prepared) {
  const auto rotate = [](std::size_t& next, std::size_t bytes, std::size_t half) -> std::size_t {
    if (bytes < kRotateFromBytes) return 0;
    if (next + bytes > half) next = 0;
    next += bytes;
    return next - bytes;
  };
  if (!warm_ && std::max(prepared.scratch.total(), prepared.published.total()) >= kRotateFromBytes) {
    transport_.warm();
    warm_ = true;
  }
  Rotation& next = rotation_[entry_.sequence() % 2];
  const transport::WindowSizes& sizes = links_.sizes();
  origins_[static_cast<int>(Space::scratch)] = rotate(next.scratch, prepared.scratch.total(), sizes.scratch_half);
  origins_[static_cast<int>(Space::published)] =
      rotate(next.published, prepared.published.total(), sizes.published_half);
}

Status PlanWalker::walk_lanes(const Prepared& prepared, const CallBuffers& buffers) {
  if (prepared.lanes.size() == 1) {
    Cursor cursor;
    TUTTI_ASSIGN([[maybe_unused]] const Progress progress, walk_lane(prepared, buffers, 0, cursor, true));
    return {};
  }
  // Several lanes on one thread take turns; a lane that must wait lets the others go on.
  std::vector<Cursor> cursors(prepared.lanes.size());
  std::vector<bool> done(prepared.lanes.size());
  for (std::size_t left = prepared.lanes.size(); left > 0;) {
    std::uint64_t moved = 0;
    const auto walk_all = [&](bool* failed, Status* status) {
      for (std::size_t lane = 0; lane < cursors.size(); ++lane) {
        if (done[lane]) continue;
        const Cursor before = cursors[lane];
        const Result<Progress> progress = walk_lane(prepared, buffers, static_cast<int>(lane), cursors[lane], false);
        if (!progress.ok()) {
          *failed = true;
          *status = progress.status();
          return;
        }
        if (progress.value() == Progress::done) {
          done[lane] = true;
          --left;
        }
        if (progress.value() == Progress::done || cursors[lane].step != before.step ||
            cursors[lane].round != before.round) {
          ++moved;
        }
      }
    };
    bool failed = false;
    Status status;
    const auto any = [&] {
      moved = 0;
      walk_all(&failed, &status);
      return failed || moved > 0;
    };
    TUTTI_TRY(waiter_.until(any, prepared.peers.empty() ? rank_ : prepared.peers.front()));
    if (failed) return status;
  }
  return {};
}

Result<PlanWalker::Progress> PlanWalker::walk_lane(const Prepared& prepared, const CallBuffers& buffers, int lane,
                                                   Cursor& cursor, bool may_block) {
  const std::vector<PreparedStep>& steps = prepared.lanes[static_cast<std::size_t>(lane)];
  for (; cursor.round < prepared.rounds; ++cursor.round, cursor.step = 0) {
    for (; cursor.step < steps.size(); ++cursor.step) {
      const PreparedStep& s = steps[cursor.step];
      if (s.guard != Guard::always && !passes(s.guard, cursor.round, prepared.rounds)) continue;
      const std::uint64_t began = trace_ == nullptr ? 0 : ticks();
      switch (s.kind) {
        case StepKind::signal:
          if (net_ != nullptr) {
            TUTTI_TRY(signal_over_net(prepared, s, lane));
          } else if (prepared.express) {
            signal_express(prepared, s.peer);
          } else {
            signal(s.peer, lane, s.channel);
          }
          break;
        case StepKind::wait: {
          if (prepared.express) {
            TUTTI_TRY(links_.is_remote(s.peer) ? wait_express_remote(s.peer) : wait_express(s.peer));
            break;
          }
          if (net_ != nullptr) TUTTI_TRY(redirect_ahead(prepared, buffers, lane, cursor));
          TUTTI_ASSIGN(const bool came, wait(s.peer, lane, s.channel, may_block));
          if (!came) return Progress::blocked;
          break;
        }
        case StepKind::open: TUTTI_TRY(entry_.open(s.peer)); break;
        case StepKind::put:
        case StepKind::copy:
        case StepKind::reduce: TUTTI_TRY(step(prepared, s, buffers, cursor.round, lane)); break;
      }
      if (trace_ != nullptr) trace_->step(s.kind, s.peer, cursor.round, lane, began, ticks());
    }
  }
  return Progress::done;
}

void PlanWalker::signal(int peer, int lane, int channel) {
  SignalLink& l = links_.at(peer, lane, channel);
  l.out->tag.store(entry_.tag(), std::memory_order_relaxed);
  l.out->count.store(++l.sent, std::memory_order_release);
  ++signals_;
  // No fence before this load: a sleeper that it misses wakes up by itself within a millisecond.
  if (l.sleep->state.load(std::memory_order_relaxed) != 0) wake(l.out->count);
}

Result<bool> PlanWalker::wait(int peer, int lane, int channel, bool may_block) {
  SignalLink& l = links_.at(peer, lane, channel);
  const std::uint64_t wanted = l.seen + 1;
  const auto came = [&] { return l.in->count.load(std::memory_order_acquire) >= wanted; };
  if (!came()) {
    if (!may_block) return false;
    TUTTI_TRY(waiter_.until(came, peer, &l.in->count));
  }
  l.seen = wanted;
  if (l.in->tag.load(std::memory_order_relaxed) != entry_.tag()) {
    TUTTI_TRY(waiter_.check_peer(peer, entry_.sequence()));
  }
  entry_.mark_entered(peer);
  return true;
}

// The gate protects the cell as it does scratch: the receiver is done with the call whose data lay here.
void PlanWalker::signal_express(const Prepared& prepared, int peer) {
  const std::size_t bytes = prepared.express_data.published;
  transport::ExpressCell& cell = table_.express_cell(peer, rank_, entry_.sequence());
  constexpr std::size_t kFirstLine = transport::kCacheLine - transport::ExpressCell::kHeader;
  if (bytes <= kFirstLine) {
    // The whole line moves anyhow, and a length that the compiler knows costs no call.
    if (bytes > 0) std::memcpy(cell.payload(), table_.published(), kFirstLine);
  } else {
    std::memcpy(cell.payload(), table_.published(), bytes);
  }
  cell.tag.store(entry_.tag(), std::memory_order_release);
  ++signals_;
  if (links_.first(peer).sleep->state.load(std::memory_order_relaxed) != 0) wake(cell.tag);
}

// No other tag passes, so a rank in another call is never mistaken for one in this; the long wait finds it out.
Status PlanWalker::wait_express(int peer) {
  transport::ExpressCell& cell = table_.express_cell(rank_, peer, entry_.sequence());
  const std::uint64_t tag = entry_.tag();
  const auto came = [&cell, tag] { return cell.tag.load(std::memory_order_acquire) == tag; };
  if (!came()) TUTTI_TRY(waiter_.until(announcing_pending(came), peer, &cell.tag));
  entry_.mark_entered(peer);
  return {};
}

double PlanWalker::factor_of(const PreparedRange& range, const CallBuffers& buffers) const {
  if (!range.raw_input) return 1.0;
  return range.in_peer_memory ? entry_.factor_of(range.range.rank) : buffers.factor;
}

Share PlanWalker::share_of(const Prepared& prepared, const plan::Range& range, int i, const CallBuffers& buffers) {
  if (buffers.uneven != nullptr) return buffers.uneven->share_of(range, i);
  const int piece = range.first + i;
  return {prepared.piece_begin(prepared.placement_of(range.space), piece), prepared.piece_elements(piece)};
}

// All pieces of a plan have the same number of elements wherever they lie. Those of an all_to_allv do not: there each
// step touches some caller's buffer, which shows the number.
std::size_t PlanWalker::elements_of(const Prepared& prepared, const PreparedStep& s, int i,
                                    const CallBuffers& buffers) {
  if (buffers.uneven == nullptr) return prepared.piece_elements(s.piece + i);
  const PreparedRange* range = &prepared.ranges[s.sources];
  while (!is_user(range->range.space)) ++range;
  return buffers.uneven->share_of(range->range, i).size;
}

Status PlanWalker::step(const Prepared& prepared, const PreparedStep& s, const CallBuffers& buffers, int round,
                        int lane) {
  return each_pass(prepared, s, buffers, round, [&](std::span<const std::size_t> offsets, std::size_t elements) {
    return pass(prepared, s, buffers, offsets, elements, lane);
  });
}

Status PlanWalker::pass(const Prepared& prepared, const PreparedStep& s, const CallBuffers& buffers,
                        std::span<const std::size_t> offsets, std::size_t elements, int lane) {
  const BaseTable::Bases& bases = *bases_;
  const PreparedRange* all = &prepared.ranges[s.sources];
  const std::size_t sources = s.source_count;
  Scratchpad<const void*> from(sources);
  Scratchpad<void*> to(s.destination_count);
  std::size_t in_peers = 0;
  bool out_of_reach = false;
  bool to_user = false;
  bool to_slots = false;
  for (std::size_t i = 0; i < sources; ++i) {
    std::byte* base = bases[all[i].base];
    in_peers += all[i].in_peer_memory ? 1 : 0;
    out_of_reach |= base == nullptr;
    from[i] = base == nullptr ? nullptr : base + offsets[i];
  }
  for (std::size_t i = 0; i < s.destination_count; ++i) {
    const PreparedRange& range = all[sources + i];
    std::byte* base = bases[range.base];
    in_peers += range.in_peer_memory ? 1 : 0;
    out_of_reach |= base == nullptr;
    to_user |= range.range.space == Space::output;
    to_slots |= !is_user(range.range.space);
    to[i] = base == nullptr ? nullptr : base + offsets[sources + i];
  }
  bytes_ += in_peers * elements * prepared.element;
  if (net_ != nullptr) {
    if (s.redirects_from != PreparedStep::kNever && was_redirected(from[0])) return {};
    if (out_of_reach) return put_remote(prepared, s, buffers, offsets, elements, lane);
    for (std::size_t i = 0; i < s.destination_count; ++i) {
      TUTTI_TRY(net_->puts().before_write(to[i], elements * prepared.element));
    }
  }
  if (out_of_reach) return pass_cma(prepared, s, buffers, offsets, elements);

  const std::size_t bytes = elements * prepared.element;
  bool streaming = to_user && (buffers.uneven != nullptr ? buffers.uneven->streaming : prepared.streaming);
  const bool premultiply = prepared.shape.op == ReduceOp::premul_sum;
  if (s.kind != StepKind::reduce && !premultiply) {
    if (to_slots && !streaming) {
      slot_stores_.copy(to.span(), from[0], bytes);
    } else {
      reduce::copy(to.span(), from[0], bytes, streaming);
    }
    return {};
  }
  streaming = streaming || (to_slots && bytes >= SlotStores::kLeastBytes && slot_stores_.past_caches());
  Scratchpad<double> factors(premultiply ? sources : 0);
  if (premultiply) {
    for (std::size_t i = 0; i < sources; ++i) factors[i] = factor_of(all[i], buffers);
  }
  const reduce::Spec spec{.type = prepared.shape.type,
                          .op = prepared.shape.op,
                          .divide_by = s.last && prepared.shape.op == ReduceOp::avg ? prepared.ranks : 0.0,
                          .factors = premultiply ? factors.data() : nullptr};
  reduce::reduce(spec, to.span(), from.span(), elements, streaming);
  return {};
}

}  // namespace tutti::executor
