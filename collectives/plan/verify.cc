#include "collectives/plan/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/check.h"
#include "collectives/plan/memory_model.h"

namespace tutti::plan {
namespace {

using Clocks = std::vector<Clock>;

bool runs_in(Guard guard, int round, int rounds) {
  if (guard == Guard::from_third_round) return round >= 2;
  if (guard == Guard::until_third_to_last) return round + 2 < rounds;
  return true;
}

/// One call: its plan, the memory it works on, and when each rank entered and left it.
struct CallState {
  CallState(const Plan& p, const VerifyOptions& options) : plan(&p), memory(p, options.rounds, options.in_place) {}

  const Plan* plan;
  CallMemory memory;
  std::vector<std::vector<int>> peers;  // peers_of each rank; only for sequences
  std::vector<Clocks> entered;          // by rank; empty: not yet
  std::vector<Clock> entry;             // by rank: its own clock when it entered
  std::vector<Clocks> left;             // by rank
  std::vector<Clocks> last_touch[2];    // of a rank's slots and published slots: by thread; only for sequences
};

enum class Phase : std::uint8_t { gate, run, leave };

/// A lane of a rank. The first lane of a rank also takes the rank from call to call.
struct Thread {
  int rank = 0;
  int lane = 0;
  int call = 0;
  int round = 0;
  std::size_t step = 0;
  bool running = false;
  Clocks clocks;
  std::shared_ptr<const Clocks> sent;  // the clocks as of the last signal, while only this thread's has ticked since
  std::vector<bool> opened;            // by rank, in this call
};

/// `into` has seen all that `other` had seen.
void join(Thread& into, const Clocks& other) {
  for (std::size_t i = 0; i < other.size(); ++i) into.clocks[i] = std::max(into.clocks[i], other[i]);
  into.sent = nullptr;
}

/// A pending signal with the sender's clocks. A rank that signals many others in a row sends them the same clocks, but
/// for its own, so those are kept once: a thousand ranks that all signal each other would need gigabytes else.
struct Signal {
  std::shared_ptr<const Clocks> clocks;
  int sender = 0;
  Clock own = 0;
};

/// One sender, receiver, lane and kind of signal. Few signals are ever pending, and there are very many links.
struct Link {
  std::vector<Signal> pending;  // the oldest first
};

class Walk {
 public:
  Walk(const std::vector<const Plan*>& plans, const VerifyOptions& options)
      : options_(options), ranks_(plans[0]->ranks), values_(plans[0]->ranks) {
    for (const Plan* plan : plans) {
      lanes_ = std::max(lanes_, static_cast<int>(plan->of_rank[0].lanes.size()));
      values_.add_call(plan->pieces, options.rounds);
    }
    for (std::size_t call = 0; call < plans.size(); ++call) add_call(*plans[call], plans.size() > 1);
    threads_.resize(static_cast<std::size_t>(ranks_) * lanes_);
    for (std::size_t t = 0; t < threads_.size(); ++t) {
      threads_[t].rank = static_cast<int>(t) / lanes_;
      threads_[t].lane = static_cast<int>(t) % lanes_;
      threads_[t].clocks.assign(threads_.size(), 0);
      threads_[t].clocks[t] = 1;
    }
    at_.resize(ranks_);
  }

  Status run() {
    if (!values_.fits()) return invalid_argument("the plan is too large to verify");
    for (int rank = 0; rank < ranks_; ++rank) enter(rank);
    // Every pass lets each thread go as far as it can; a pass in which no thread moved is the end or a hang.
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t t = 0; t < threads_.size(); ++t) {
        TUTTI_TRY(run_thread(static_cast<int>(t), moved));
      }
      for (int rank = 0; rank < ranks_; ++rank) moved = advance_rank(rank) || moved;
    }
    TUTTI_TRY(check_no_hang());
    for (std::size_t call = 0; call < calls_.size(); ++call) {
      TUTTI_TRY(check_results(static_cast<int>(call)));
      TUTTI_TRY(check_after_call(static_cast<int>(call)));
    }
    return {};
  }

 private:
  /// The state of a rank: its call, and whether it waits at the gate, runs, or is done with all calls.
  struct RankState {
    int call = 0;
    Phase phase = Phase::gate;
  };

  void add_call(const Plan& plan, bool sequence) {
    calls_.push_back(std::make_unique<CallState>(plan, options_));
    CallState& call = *calls_.back();
    call.memory.put_raw_inputs(values_, static_cast<int>(calls_.size()) - 1);
    call.entered.resize(ranks_);
    call.entry.resize(ranks_);
    call.left.resize(ranks_);
    if (!sequence) return;
    for (int rank = 0; rank < ranks_; ++rank) call.peers.push_back(peers_of(plan, rank));
    for (auto& touches : call.last_touch) touches.assign(ranks_, Clocks(static_cast<std::size_t>(ranks_) * lanes_, 0));
  }

  int thread_of(int rank, int lane = 0) const { return rank * lanes_ + lane; }

  // ---- from call to call ----

  void enter(int rank) {
    CallState& call = *calls_[at_[rank].call];
    Thread& first = threads_[thread_of(rank)];
    call.entered[rank] = first.clocks;
    call.entry[rank] = first.clocks[thread_of(rank)];
    ++first.clocks[thread_of(rank)];
    at_[rank].phase = Phase::gate;
  }

  bool gate_is_open(int rank) {
    const int k = at_[rank].call;
    if (k == 0) return true;
    const std::vector<Clocks>& entered = calls_[k - 1]->entered;
    std::vector<int> peers = calls_[k]->peers[rank];
    if (k >= 2) peers.insert(peers.end(), calls_[k - 2]->peers[rank].begin(), calls_[k - 2]->peers[rank].end());
    if (std::any_of(peers.begin(), peers.end(), [&](int peer) { return entered[peer].empty(); })) return false;
    for (const int peer : peers) join(threads_[thread_of(rank)], entered[peer]);
    return true;
  }

  /// Past the gate into the call, or out of it and into the next. True when something changed.
  bool advance_rank(int rank) {
    RankState& at = at_[rank];
    Thread& first = threads_[thread_of(rank)];
    if (at.phase == Phase::gate) {
      if (!gate_is_open(rank)) return false;
      at.phase = Phase::run;
      for (int lane = 0; lane < lanes_; ++lane) {
        Thread& thread = threads_[thread_of(rank, lane)];
        if (lane > 0) join(thread, first.clocks);
        thread.call = at.call;
        thread.round = 0;
        thread.step = 0;
        thread.opened.assign(ranks_, false);
        thread.running = lane < static_cast<int>(calls_[at.call]->plan->of_rank[rank].lanes.size());
      }
      ++first.clocks[thread_of(rank)];  // what the first lane does from here on, the others have not seen
      return true;
    }
    if (at.phase == Phase::leave) return false;
    for (int lane = 0; lane < lanes_; ++lane) {
      if (threads_[thread_of(rank, lane)].running) return false;
    }
    for (int lane = 1; lane < lanes_; ++lane) {
      join(first, threads_[thread_of(rank, lane)].clocks);
      ++threads_[thread_of(rank, lane)].clocks[thread_of(rank, lane)];
    }
    calls_[at.call]->left[rank] = first.clocks;
    if (at.call + 1 == static_cast<int>(calls_.size())) {
      at.phase = Phase::leave;
    } else {
      ++at.call;
      enter(rank);
    }
    return true;
  }

  // ---- one thread ----

  Status run_thread(int t, bool& moved) {
    Thread& thread = threads_[t];
    while (thread.running) {
      const std::vector<Step>& steps = calls_[thread.call]->plan->of_rank[thread.rank].lanes[thread.lane].steps;
      if (thread.step == steps.size()) {
        thread.step = 0;
        if (++thread.round == options_.rounds) thread.running = false;
        moved = true;
        continue;
      }
      const Step& step = steps[thread.step];
      bool can_go = true;
      if (runs_in(step.guard, thread.round, options_.rounds)) TUTTI_TRY(run_step(t, step, can_go));
      if (!can_go) break;
      moved = true;
      ++thread.step;
    }
    return {};
  }

  Status run_step(int t, const Step& step, bool& can_go) {
    Thread& thread = threads_[t];
    switch (step.kind) {
      case StepKind::open: {
        const Clocks& entered = calls_[thread.call]->entered[step.peer];
        can_go = !entered.empty();
        if (!can_go) break;
        if (!thread.opened[step.peer]) join(thread, entered);
        thread.opened[step.peer] = true;
        break;
      }
      case StepKind::signal:
        if (!thread.sent) thread.sent = std::make_shared<const Clocks>(thread.clocks);
        link(thread.rank, step.peer, thread.lane, step.channel).pending.push_back({thread.sent, t, thread.clocks[t]});
        ++thread.clocks[t];
        break;
      case StepKind::wait: {
        Link& from = link(step.peer, thread.rank, thread.lane, step.channel);
        can_go = !from.pending.empty();
        if (!can_go) break;
        const Signal& signal = from.pending.front();
        join(thread, *signal.clocks);
        thread.clocks[signal.sender] = std::max(thread.clocks[signal.sender], signal.own);
        from.pending.erase(from.pending.begin());
        break;
      }
      case StepKind::put:
      case StepKind::copy:
      case StepKind::reduce: return move_data(t, step);
    }
    return {};
  }

  Link& link(int from, int to, int lane, Channel channel) {
    const std::uint64_t key = ((static_cast<std::uint64_t>(from) * ranks_ + to) * lanes_ + lane) * kChannels +
                              static_cast<std::uint64_t>(channel);
    return links_[key];
  }

  // ---- memory ----

  Status move_data(int t, const Step& step) {
    Thread& thread = threads_[t];
    CallMemory& memory = calls_[thread.call]->memory;
    for (const Range& range : step.sources) TUTTI_TRY(check_reach(t, range));
    for (const Range& range : step.destinations) TUTTI_TRY(check_reach(t, range));
    const int count = step.sources[0].count;
    ++stamp_;
    for (int k = 0; k < count; ++k) {
      for (const Range& range : step.sources) {
        Place& place = memory.at(range, k, thread.round);
        place.stamp = stamp_;
        place.stamp_piece = k;
        TUTTI_TRY(note_read(t, range, k, place));
      }
    }
    for (int k = 0; k < count; ++k) {
      ValueId value = kNothing;
      TUTTI_TRY(result_of(t, step, k, value));
      for (const Range& range : step.destinations) {
        Place& place = memory.at(range, k, thread.round);
        if (place.stamp == stamp_ && place.stamp_piece != k) {
          return bad(t, fmt::format("{} overlaps another piece of the same step", name_of(range, k)));
        }
        place.stamp = stamp_;
        place.stamp_piece = k;
        // Copying a place onto itself (in place) writes nothing.
        const bool onto_itself = step.kind == StepKind::copy && &place == &memory.at(step.sources[0], k, thread.round);
        if (!onto_itself) TUTTI_TRY(note_write(t, range, k, place));
        place.value = value;
      }
    }
    return {};
  }

  Status result_of(int t, const Step& step, int k, ValueId& value) {
    Thread& thread = threads_[t];
    CallMemory& memory = calls_[thread.call]->memory;
    if (step.kind != StepKind::reduce) {
      value = memory.at(step.sources[0], k, thread.round).value;
      return {};
    }
    terms_.clear();
    for (const Range& range : step.sources) terms_.push_back(memory.at(range, k, thread.round).value);
    Values::Fault fault{};
    value = values_.sum(terms_, step.last, fault);
    switch (fault) {
      case Values::Fault::none: return {};
      case Values::Fault::other_piece: return bad(t, "adds up different pieces");
      case Values::Fault::twice: return bad(t, "adds a rank's contribution twice");
      case Values::Fault::divided: return bad(t, "adds to a sum that has been marked as the last one");
    }
    return {};
  }

  /// A peer's buffers exist only once it has entered the call. In a sequence, another call's use of the same scratch
  /// must be over.
  Status check_reach(int t, const Range& range) {
    Thread& thread = threads_[t];
    if (is_user(range.space)) {
      if (range.rank == thread.rank || thread.opened[range.rank]) return {};
      return bad(t, fmt::format("touches {} before it has opened rank {}", name_of(range, 0), range.rank));
    }
    if (calls_.size() == 1) return {};
    const int part = range.space == Space::published ? 1 : 0;
    Clock& own_touch = calls_[thread.call]->last_touch[part][range.rank][t];
    const bool is_first = own_touch == 0;
    own_touch = thread.clocks[t];
    for (std::size_t other = thread.call % 2; other < calls_.size(); other += 2) {
      if (static_cast<int>(other) == thread.call) continue;
      // For earlier calls one look is enough, since none of their threads may come later: that is what the other branch
      // sees.
      if (static_cast<int>(other) < thread.call && !is_first) continue;
      const Clocks& touched = calls_[other]->last_touch[part][range.rank];
      for (std::size_t u = 0; u < touched.size(); ++u) {
        const bool ordered = static_cast<int>(other) < thread.call ? touched[u] <= thread.clocks[u] : touched[u] == 0;
        if (ordered) continue;
        return bad(t, fmt::format("touches {} of call {} while rank {} still uses the same half of scratch in call {}",
                                  name_of(range, 0), thread.call, threads_[u].rank, other));
      }
    }
    return {};
  }

  bool is_before(const Moment& moment, const Thread& thread) const {
    return moment.thread < 0 || moment.clock <= thread.clocks[moment.thread];
  }

  Status note_read(int t, const Range& range, int k, Place& place) {
    Thread& thread = threads_[t];
    if (place.value == kNothing) return bad(t, fmt::format("reads {}, which no step has written", name_of(range, k)));
    if (!is_before(place.writer, thread)) return race(t, range, k, "reads", place.writer, "writes");
    const Moment now{t, thread.clocks[t]};
    if (place.reader.thread < 0 || place.reader.thread == t) {
      place.reader = now;
      return {};
    }
    std::vector<std::vector<Moment>>& more = calls_[thread.call]->memory.more_readers;
    if (place.readers < 0) {
      place.readers = static_cast<std::int32_t>(more.size());
      more.emplace_back();
    }
    std::vector<Moment>& readers = more[place.readers];
    const auto mine = std::find_if(readers.begin(), readers.end(), [&](const Moment& m) { return m.thread == t; });
    if (mine != readers.end()) {
      *mine = now;
    } else {
      readers.push_back(now);
    }
    return {};
  }

  Status note_write(int t, const Range& range, int k, Place& place) {
    Thread& thread = threads_[t];
    if (!is_before(place.writer, thread)) return race(t, range, k, "writes", place.writer, "writes");
    if (!is_before(place.reader, thread)) return race(t, range, k, "writes", place.reader, "reads");
    if (place.readers >= 0) {
      std::vector<Moment>& readers = calls_[thread.call]->memory.more_readers[place.readers];
      for (const Moment& reader : readers) {
        if (!is_before(reader, thread)) return race(t, range, k, "writes", reader, "reads");
      }
      readers.clear();
    }
    place.reader = {};
    place.writer = {t, thread.clocks[t]};
    return {};
  }

  // ---- at the end ----

  Status check_no_hang() const {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (at_[rank].phase == Phase::leave) continue;
      for (int lane = 0; lane < lanes_; ++lane) {
        const Thread& thread = threads_[thread_of(rank, lane)];
        if (!thread.running) continue;
        const Step& step = calls_[thread.call]->plan->of_rank[rank].lanes[lane].steps[thread.step];
        return invalid_argument(fmt::format("{}: waits for rank {} for ever", where(thread), step.peer));
      }
      return invalid_argument(fmt::format("rank {} waits at the gate of call {} for ever", rank, at_[rank].call));
    }
    return {};
  }

  bool is_right(const Plan& plan, int call, int rank, int piece, int round, ValueId value) const {
    switch (plan.collective) {
      case Collective::all_reduce:
      case Collective::reduce:
      case Collective::reduce_scatter:
        return values_.is_full_sum(value, call, piece, round) && (!plan.rank_order || values_.in_rank_order(value));
      case Collective::all_gather:
      case Collective::gather: return value == values_.raw(call, block_of(plan, piece), piece, round);
      case Collective::broadcast:
      case Collective::scatter: return value == values_.raw(call, plan.root, piece, round);
      case Collective::all_to_all:
      case Collective::all_to_allv: {
        const int from = block_of(plan, piece);
        return value == values_.raw(call, from, piece - from + rank, round);
      }
      case Collective::barrier:
      case Collective::send_recv: break;
    }
    return true;
  }

  Status check_results(int k) {
    CallState& call = *calls_[k];
    for (int rank = 0; rank < ranks_; ++rank) {
      for (int piece = 0; piece < call.plan->pieces; ++piece) {
        if (!call.memory.has(Space::output, rank, piece)) continue;
        for (int round = 0; round < options_.rounds; ++round) {
          const ValueId value = call.memory.at({Space::output, rank, piece, 1}, 0, round).value;
          if (is_right(*call.plan, k, rank, piece, round, value)) continue;
          return invalid_argument(fmt::format("rank {}: piece {} of its output is not right after round {}{}", rank,
                                              piece, round, value == kNothing ? " (no step wrote it)" : ""));
        }
      }
      if (call.plan->collective != Collective::barrier) continue;
      for (int other = 0; other < ranks_; ++other) {
        if (call.left[rank][thread_of(other)] >= call.entry[other]) continue;
        return invalid_argument(
            fmt::format("rank {} leaves the barrier before rank {} is sure to have entered it", rank, other));
      }
    }
    return {};
  }

  /// The caller may do what it likes with its buffers once its rank has left.
  Status check_after_call(int k) {
    CallState& call = *calls_[k];
    for (int rank = 0; rank < ranks_; ++rank) {
      Thread after;
      after.clocks = call.left[rank];
      for (const Space space : {Space::input, Space::output}) {
        for (int piece = 0; piece < call.plan->pieces; ++piece) {
          if (!call.memory.has(space, rank, piece)) continue;
          for (int round = 0; round < options_.rounds; ++round) {
            const Place& place = call.memory.at({space, rank, piece, 1}, 0, round);
            const Moment* late = is_before(place.writer, after) ? nullptr : &place.writer;
            if (!is_before(place.reader, after)) late = &place.reader;
            if (place.readers >= 0) {
              for (const Moment& reader : call.memory.more_readers[place.readers]) {
                if (!is_before(reader, after)) late = &reader;
              }
            }
            if (late == nullptr) continue;
            return invalid_argument(fmt::format(
                "rank {} may leave the call while rank {} still touches piece {} of its {} in round {}", rank,
                threads_[late->thread].rank, piece, space == Space::input ? "input" : "output", round));
          }
        }
      }
    }
    return {};
  }

  // ---- words ----

  static std::string name_of(const Range& range, int k) {
    static constexpr const char* names[] = {"input piece", "output piece", "slot", "published slot"};
    return fmt::format("{} {} of rank {}", names[static_cast<int>(range.space)], range.first + k, range.rank);
  }

  std::string where(const Thread& thread) const {
    const std::string call = calls_.size() > 1 ? fmt::format("call {}, ", thread.call) : "";
    return fmt::format("{}rank {}, lane {}, step {}, round {}", call, thread.rank, thread.lane, thread.step,
                       thread.round);
  }

  Status bad(int t, const std::string& what) const {
    return invalid_argument(fmt::format("{}: {}", where(threads_[t]), what));
  }

  Status race(int t, const Range& range, int k, const char* does, const Moment& other, const char* other_does) const {
    return bad(t, fmt::format("{} {} while rank {}, lane {} {} it", does, name_of(range, k),
                              threads_[other.thread].rank, threads_[other.thread].lane, other_does));
  }

  const VerifyOptions options_;
  int ranks_;
  int lanes_ = 1;
  Values values_;
  std::vector<std::unique_ptr<CallState>> calls_;
  std::vector<Thread> threads_;
  std::vector<RankState> at_;
  std::unordered_map<std::uint64_t, Link> links_;
  std::uint32_t stamp_ = 0;
  std::vector<ValueId> terms_;
};

}  // namespace

Status verify(const Plan& plan, const VerifyOptions& options) {
  TUTTI_TRY(check_shape(plan, options));
  return Walk({&plan}, options).run();
}

Status verify_sequence(const std::vector<const Plan*>& plans, const VerifyOptions& options) {
  TUTTI_CHECK(!plans.empty());
  for (const Plan* plan : plans) {
    TUTTI_CHECK_EQ(plan->ranks, plans[0]->ranks);
    TUTTI_TRY(check_shape(*plan, options));
  }
  return Walk(plans, options).run();
}

}  // namespace tutti::plan
