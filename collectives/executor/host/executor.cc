#include "collectives/executor/host/executor.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "collectives/executor/host/net_record.h"
#include "collectives/executor/host/passes-inl.h"
#include "collectives/executor/host/trace.h"
#include "collectives/reduce/reduce.h"

namespace tutti::executor {

using plan::Guard;
using plan::is_user;
using plan::Space;
using plan::StepKind;
using transport::Handle;

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

HostExecutor::HostExecutor(transport::Transport& transport, Waiter& waiter, Health& health, int rank)
    : transport_(transport),
      net_(transport.far_links()),
      waiter_(waiter),
      health_(health),
      rank_(rank),
      ranks_(transport.sizes().ranks),
      sizes_(transport.sizes()),
      board_(transport.window(rank).board),
      links_(transport.sizes().signal_cells()),
      peers_(static_cast<std::size_t>(ranks_)) {
  if (net_ != nullptr) net_puts_.emplace(*net_, waiter_);
  for (int peer = 0; peer < ranks_; ++peer) {
    express_cells_.push_back(transport.window(peer).express);
    for (int lane = 0; lane < sizes_.lanes; ++lane) {
      for (int channel = 0; channel < plan::kChannels; ++channel) {
        Link& l = link(peer, lane, channel);
        l.in = &transport.window(rank).signals[sizes_.signal_index(peer, lane, channel)];
        l.out = &transport.window(peer).signals[sizes_.signal_index(rank, lane, channel)];
        l.doze = &transport.window(peer).board->doze;
        l.remote = net_ != nullptr && net_->far(peer);
      }
    }
  }
  express_.resize(sizes_.express_bytes());
  for (std::size_t half = 0; half < 2; ++half) {
    std::vector<std::byte*>& bases = bases_[half];
    bases.resize(static_cast<std::size_t>(kBaseRows * ranks_));
    for (int r = 0; r < ranks_; ++r) {
      if (link(r, 0, 0).remote) continue;  // put_remote() finds its scratch; else it is out of reach
      bases[base_index(Space::scratch, ranks_, r)] = transport.window(r).scratch + half * sizes_.scratch_half;
      bases[base_index(Space::published, ranks_, r)] = transport.window(r).published + half * sizes_.published_half;
    }
  }
  express_bases_.resize(sizes_.express_calls());
  for (std::uint64_t call = 0; call < sizes_.express_calls(); ++call) {
    std::vector<std::byte*>& bases = express_bases_[call];
    bases.resize(static_cast<std::size_t>(kBaseRows * ranks_));
    for (int r = 0; r < ranks_; ++r) {
      const bool remote = link(r, 0, 0).remote;
      const auto payload = [remote](transport::ExpressCell& cell) {
        return remote ? net_payload(cell) : cell.payload();
      };
      std::byte* come = payload(express_cell(rank, r, call));
      bases[base_index(Space::scratch, ranks_, r)] = payload(express_cell(r, rank, call));
      bases[base_index(Space::published, ranks_, r)] = r == rank ? express_.data() : come;
      bases[base_index(kInbox, ranks_, r)] = come;
    }
  }
}

transport::ExpressCell& HostExecutor::express_cell(int receiver, int sender, std::uint64_t call) const {
  return sizes_.express_cell(express_cells_[static_cast<std::size_t>(receiver)], sender, call);
}

std::uint64_t HostExecutor::enter(const Announcement& announcement, const Buffers& buffers, bool handles) {
  ++sequence_;
  history_ = history_of(history_, announcement.fingerprint);
  tag_ = tag_of(history_, sequence_);
  waiter_.begin_call(sequence_);
  ++counters_.calls;
  Handle input = 0;
  Handle output = 0;
  if (handles) {
    input = transport_.handle_of(buffers.input, 1);
    output = transport_.handle_of(buffers.output, 1);
  }
  announce(*board_, sequence_, announcement, history_, input, output, buffers.factor);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // before a look at peers: the other half is in Waiter::part()
  return sequence_;
}

Status HostExecutor::bound_run_ahead() {
  if (sequence_ < kLookEvery) return {};
  const std::uint64_t needed = sequence_ - kLookEvery;
  waiter_.begin_call(needed);
  Status status;
  for (int peer = 0; peer < ranks_ && status.ok(); ++peer) {
    if (link(peer, 0, 0).remote) continue;
    if (peers_[static_cast<std::size_t>(peer)].entered < needed) status = see_entered(peer, needed);
  }
  waiter_.begin_call(0);
  return status;
}

void HostExecutor::leave(bool well) {
  end(board_->calls[sequence_ % transport::kCallRing], well);
  waiter_.begin_call(0);
}

void HostExecutor::withdraw() {
  transport::CallRecord& record = board_->calls[sequence_ % transport::kCallRing];
  record.fingerprint.store(~history_, std::memory_order_relaxed);
  record.state.store(transport::CallState::failed, std::memory_order_release);
  waiter_.part(sequence_);
}

// One acquire, of the sequence, makes the whole record visible, and no second look is needed: bound_run_ahead() sees to
// it that the peer does not write it again while this rank is in the call.
Status HostExecutor::open(int peer) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  if (p.opened == sequence_) return {};
  TUTTI_TRY(see_entered(peer, sequence_));
  const transport::CallRecord& record = transport_.window(peer).board->calls[sequence_ % transport::kCallRing];
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
  std::vector<std::byte*>& bases = bases_[sequence_ % 2];
  bases[base_index(Space::input, ranks_, peer)] = p.input_pointer;
  bases[base_index(Space::output, ranks_, peer)] = p.output_pointer;
  return {};
}

Result<HostExecutor::Agreement> HostExecutor::agree() {
  Agreement agreement;
  for (int peer = 0; peer < ranks_; ++peer) {
    TUTTI_TRY(open(peer));
    const Peer& p = peers_[static_cast<std::size_t>(peer)];
    for (const Handle handle : {p.input, p.output}) {
      agreement.registered = agreement.registered && (handle == 0 || transport::is_registered(handle));
    }
    const transport::CallRecord& record = transport_.window(peer).board->calls[sequence_ % transport::kCallRing];
    const auto words = std::bit_cast<transport::CallWords>(record.what.load(std::memory_order_relaxed));
    agreement.in_place = agreement.in_place || (words.flags & transport::kInPlace) != 0;
  }
  return agreement;
}

bool HostExecutor::has_entered(int peer, std::uint64_t call) const {
  const transport::CallRecord& record = transport_.window(peer).board->calls[call % transport::kCallRing];
  return record.sequence.load(std::memory_order_acquire) >= call;
}

Status HostExecutor::compare(int peer, std::uint64_t call) {
  const auto history = [&](int rank) {
    return transport_.window(rank).board->calls[call % transport::kCallRing].fingerprint.load(
        std::memory_order_relaxed);
  };
  if (history(peer) != history(rank_)) TUTTI_TRY(waiter_.check_peer(peer, call));
  peers_[static_cast<std::size_t>(peer)].entered = call;
  return {};
}

Status HostExecutor::see_entered(int peer, std::uint64_t call) {
  if (!has_entered(peer, call)) TUTTI_TRY(waiter_.until([&] { return has_entered(peer, call); }, peer));
  return compare(peer, call);
}

// A slot is put into by the rank that the plan says; a rank in another call may go by another plan. But it has told of
// its call before it put anything.
Status HostExecutor::check_scratch_writers() {
  for (int peer = 0; peer < ranks_; ++peer) {
    const Peer& p = peers_[static_cast<std::size_t>(peer)];
    if (link(peer, 0, 0).remote) {  // its records have gaps
      if (p.entered >= sequence_ || !waiter_.has_announced(peer, sequence_)) continue;
      const auto& record = board_of(peer).calls[sequence_ % transport::kCallRing];
      if (record.sequence.load(std::memory_order_acquire) == sequence_) TUTTI_TRY(compare(peer, sequence_));
      continue;
    }
    while (peer != rank_ && p.entered < sequence_ && has_entered(peer, p.entered + 1)) {
      TUTTI_TRY(compare(peer, p.entered + 1));
    }
  }
  return {};
}

Status HostExecutor::gate(const Prepared& prepared) {
  const auto pass = [&](const std::vector<int>& peers, std::uint64_t needed, std::uint64_t better,
                        std::uint64_t needed_of_remote) -> Status {
    for (const int peer : peers) {
      if (link(peer, 0, 0).remote) {
        TUTTI_TRY(see_entered_remote(peer, needed_of_remote));
      } else if (peers_[static_cast<std::size_t>(peer)].entered < needed) {
        TUTTI_TRY(see_entered(peer, better));
      }
    }
    return {};
  };
  if (prepared.express) {
    // Whoever must wait, waits until half of the cells are free: one look for several calls, and one change of places
    // where the two share a core.
    const std::uint64_t behind = express_bases_.size() - 1;
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

void HostExecutor::place(const Prepared& prepared) {
  const auto turn = [](std::size_t& next, std::size_t bytes, std::size_t half) -> std::size_t {
    if (bytes < kRotateFromBytes) return 0;
    if (next + bytes > half) next = 0;
    next += bytes;
    return next - bytes;
  };
  if (!warm_ && std::max(prepared.scratch.total(), prepared.published.total()) >= kRotateFromBytes) {
    transport_.warm();
    warm_ = true;
  }
  Half& half = halves_[sequence_ % 2];
  origins_[static_cast<int>(Space::scratch)] = turn(half.next_scratch, prepared.scratch.total(), sizes_.scratch_half);
  origins_[static_cast<int>(Space::published)] =
      turn(half.next_published, prepared.published.total(), sizes_.published_half);
}

std::vector<std::byte*>& HostExecutor::bases_of(const Prepared& prepared) {
  return prepared.express ? express_bases_[sequence_ % express_bases_.size()] : bases_[sequence_ % 2];
}

Status HostExecutor::run(const Prepared& prepared, const Buffers& buffers) {
  const Status status = run_steps(prepared, buffers);
  end_landings();  // there are some after a failure
  return status;
}

Status HostExecutor::run_steps(const Prepared& prepared, const Buffers& buffers) {
  if (net_ != nullptr) TUTTI_TRY(announce_remote(prepared.peers, prepared.signalled));
  const bool again = std::exchange(last_prepared_, prepared.id) == prepared.id;
  TUTTI_TRY(gate(prepared));
  place(prepared);
  std::vector<std::byte*>& bases = bases_of(prepared);
  bases[base_index(Space::input, ranks_, rank_)] = static_cast<std::byte*>(const_cast<void*>(buffers.input));
  bases[base_index(Space::output, ranks_, rank_)] = static_cast<std::byte*>(buffers.output);
  if (net_ == nullptr) {
    TUTTI_TRY(walk_lanes(prepared, buffers));
  } else {
    // That this rank is in an express call a peer need not hear in a message of its own: it goes with the next signal,
    // or with the word of some later call, before the peer has used up the cells. In another call it goes with what is
    // sent to that peer, where the call is like the last one: then nobody waits at the gate for it.
    unannounced_ = prepared.express ? unannounced_ + 1 : 0;
    const bool stays_unannounced = prepared.express && unannounced_ % (express_bases_.size() / 2) != 0;
    waiter_.hold_back(stays_unannounced || (again && !prepared.express));
    TUTTI_TRY(walk_lanes(prepared, buffers));
    waiter_.hold_back(false);
    TUTTI_TRY(net_puts_->finish(!stays_unannounced));
  }
  return prepared.scratch.count > 0 && ranks_ > 2 ? check_scratch_writers() : Status();
}

Status HostExecutor::walk_lanes(const Prepared& prepared, const Buffers& buffers) {
  if (prepared.lanes.size() == 1) {
    Cursor cursor;
    TUTTI_ASSIGN([[maybe_unused]] const Progress progress, walk(prepared, buffers, 0, cursor, true));
    return {};
  }
  // Several lanes on one thread take turns; a lane that must wait lets the others go on.
  std::vector<Cursor> cursors(prepared.lanes.size());
  std::vector<bool> done(prepared.lanes.size());
  for (std::size_t left = prepared.lanes.size(); left > 0;) {
    std::uint64_t moved = 0;
    const auto turn = [&](bool* failed, Status* status) {
      for (std::size_t lane = 0; lane < cursors.size(); ++lane) {
        if (done[lane]) continue;
        const Cursor before = cursors[lane];
        const Result<Progress> progress = walk(prepared, buffers, static_cast<int>(lane), cursors[lane], false);
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
      turn(&failed, &status);
      return failed || moved > 0;
    };
    TUTTI_TRY(waiter_.until(any, prepared.peers.empty() ? rank_ : prepared.peers.front()));
    if (failed) return status;
  }
  return {};
}

Result<HostExecutor::Progress> HostExecutor::walk(const Prepared& prepared, const Buffers& buffers, int lane,
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
            TUTTI_TRY(net_puts_->before_signal(s.peer));
            if (net_->far(s.peer)) {
              TUTTI_TRY(prepared.express ? signal_express_remote(prepared, s.peer)
                                         : signal_remote(s.peer, lane, s.channel));
              break;
            }
          }
          if (prepared.express) {
            signal_express(prepared, s.peer);
          } else {
            signal(s.peer, lane, s.channel);
          }
          break;
        case StepKind::wait: {
          if (prepared.express) {
            TUTTI_TRY(link(s.peer, 0, 0).remote ? wait_express_remote(s.peer) : wait_express(s.peer));
            break;
          }
          if (net_ != nullptr) TUTTI_TRY(land_ahead(prepared, buffers, lane, cursor));
          TUTTI_ASSIGN(const bool came, wait(s.peer, lane, s.channel, may_block));
          if (!came) return Progress::blocked;
          break;
        }
        case StepKind::open: TUTTI_TRY(open(s.peer)); break;
        case StepKind::put:
        case StepKind::copy:
        case StepKind::reduce: TUTTI_TRY(step(prepared, s, buffers, cursor.round, lane)); break;
      }
      if (trace_ != nullptr) trace_->step(s.kind, s.peer, cursor.round, lane, began, ticks());
    }
  }
  return Progress::done;
}

void HostExecutor::signal(int peer, int lane, int channel) {
  Link& l = link(peer, lane, channel);
  l.out->tag.store(tag_, std::memory_order_relaxed);
  l.out->count.store(++l.sent, std::memory_order_release);
  ++counters_.signals;
  // No fence before this load: a sleeper that it misses wakes up by itself within a millisecond.
  if (l.doze->sleeping.load(std::memory_order_relaxed) != 0) wake(l.out->count);
}

Result<bool> HostExecutor::wait(int peer, int lane, int channel, bool may_block) {
  Link& l = link(peer, lane, channel);
  const std::uint64_t wanted = l.seen + 1;
  const auto came = [&] { return l.in->count.load(std::memory_order_acquire) >= wanted; };
  if (!came()) {
    if (!may_block) return false;
    TUTTI_TRY(waiter_.until(came, peer, &l.in->count));
  }
  l.seen = wanted;
  if (l.in->tag.load(std::memory_order_relaxed) != tag_) {
    TUTTI_TRY(waiter_.check_peer(peer, sequence_));
  }
  peers_[static_cast<std::size_t>(peer)].entered = sequence_;
  return true;
}

// The gate protects the cell as it does scratch: the receiver is done with the call whose data lay here.
void HostExecutor::signal_express(const Prepared& prepared, int peer) {
  const std::size_t bytes = prepared.express_bytes;
  transport::ExpressCell& cell = express_cell(peer, rank_, sequence_);
  constexpr std::size_t kFirstLine = transport::kCacheLine - transport::ExpressCell::kHeader;
  if (bytes <= kFirstLine) {
    // The whole line moves anyhow, and a length that the compiler knows costs no call.
    if (bytes > 0) std::memcpy(cell.payload(), express_.data(), kFirstLine);
  } else {
    std::memcpy(cell.payload(), express_.data(), bytes);
  }
  cell.tag.store(tag_, std::memory_order_release);
  ++counters_.signals;
  if (link(peer, 0, 0).doze->sleeping.load(std::memory_order_relaxed) != 0) wake(cell.tag);
}

// No other tag passes, so a rank in another call is never mistaken for one in this; the long wait finds it out.
Status HostExecutor::wait_express(int peer) {
  transport::ExpressCell& cell = express_cell(rank_, peer, sequence_);
  const auto came = [&] { return cell.tag.load(std::memory_order_acquire) == tag_; };
  if (!came()) TUTTI_TRY(waiter_.until(announcing_pending(came), peer, &cell.tag));
  peers_[static_cast<std::size_t>(peer)].entered = sequence_;
  return {};
}

double HostExecutor::factor_of(const PreparedRange& range, const Buffers& buffers) const {
  if (!range.raw_input) return 1.0;
  return range.in_peer_memory ? peers_[static_cast<std::size_t>(range.range.rank)].factor : buffers.factor;
}

Handle HostExecutor::handle_of(const plan::Range& range) const {
  const Peer& p = peers_[static_cast<std::size_t>(range.rank)];
  return range.space == Space::input ? p.input : p.output;
}

Share HostExecutor::share_of(const Prepared& prepared, const plan::Range& range, int i, const Buffers& buffers) {
  if (buffers.uneven != nullptr) return buffers.uneven->share_of(range, i);
  const int piece = range.first + i;
  return {prepared.piece_begin(prepared.placement_of(range.space), piece), prepared.piece_elements(piece)};
}

// All pieces of a plan have as many elements wherever they lie, but those of an all_to_allv, where each step touches
// some caller's buffer, and that tells.
std::size_t HostExecutor::elements_of(const Prepared& prepared, const PreparedStep& s, int i, const Buffers& buffers) {
  if (buffers.uneven == nullptr) return prepared.piece_elements(s.piece + i);
  const PreparedRange* range = &prepared.ranges[s.sources];
  while (!is_user(range->range.space)) ++range;
  return buffers.uneven->share_of(range->range, i).size;
}

Status HostExecutor::step(const Prepared& prepared, const PreparedStep& s, const Buffers& buffers, int round,
                          int lane) {
  return each_pass(prepared, s, buffers, round, [&](std::span<const std::size_t> offsets, std::size_t elements) {
    return pass(prepared, s, buffers, offsets, elements, lane);
  });
}

Status HostExecutor::pass(const Prepared& prepared, const PreparedStep& s, const Buffers& buffers,
                          std::span<const std::size_t> offsets, std::size_t elements, int lane) {
  const std::vector<std::byte*>& bases = bases_of(prepared);
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
  counters_.bytes += in_peers * elements * prepared.element;
  if (net_ != nullptr) {
    if (s.lands_from != PreparedStep::kNever && has_landed(from[0])) return {};
    if (out_of_reach) return put_remote(prepared, s, buffers, offsets, elements, lane);
    for (std::size_t i = 0; i < s.destination_count; ++i) {
      TUTTI_TRY(net_puts_->before_write(to[i], elements * prepared.element));
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
