#include "training/pipeline/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "tutti/tutti.hpp"

namespace tutti::training {
namespace {

using enum ActionKind;

class Simulator {
 public:
  Simulator(const Schedule& schedule, const Costs& costs) : s_(schedule), costs_(costs) {
    check_shape();
    for (const auto& list : s_.actions) {
      ranks_.emplace_back();
      ranks_.back().times.resize(list.size());
    }
    cells_.resize(static_cast<std::size_t>(s_.stages) * static_cast<std::size_t>(s_.micro_batches));
    for (int r = 0; r < s_.ranks; ++r) check_list(r);
    check_complete();
  }

  Simulation run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int r = 0; r < s_.ranks; ++r) moved |= advance(r) | transfer(r);
    }
    check_finished();
    return result();
  }

 private:
  struct Cell {  // of a stage and a micro-batch
    std::array<int, kActionKinds> count{};
    std::array<std::optional<double>, kActionKinds> end;
  };
  struct Rank {
    std::size_t next = 0;                // in its list
    double now = 0;                      // the thread that calculates
    std::vector<std::size_t> transfers;  // handed over: places in the list
    std::vector<double> handed_over;     // and when
    std::size_t next_transfer = 0;       // in transfers
    double link_free = 0;
    int live = 0, peak_live = 0;
    double busy = 0, last = 0;
    std::vector<TimedAction> times;
  };

  [[noreturn]] void fail(int rank, const std::string& what) const {
    throw Error(Code::invalid_argument, fmt::format("rank {}: simulate: schedule '{}': {}", rank, s_.name, what));
  }

  const std::vector<Action>& list(int r) const { return s_.actions[static_cast<std::size_t>(r)]; }
  Rank& rank(int r) { return ranks_[static_cast<std::size_t>(r)]; }
  Cell& cell(int stage, int micro_batch) {
    return cells_[static_cast<std::size_t>(stage * s_.micro_batches + micro_batch)];
  }
  Cell& cell(const Action& a) { return cell(a.stage, a.micro_batch); }
  std::optional<double>& end(ActionKind kind, int stage, int micro_batch) {
    return cell(stage, micro_batch).end[static_cast<std::size_t>(kind)];
  }
  bool crosses(int stage) const {  // from `stage` to the next one
    return stage >= 0 && stage + 1 < s_.stages && s_.rank_of(stage) != s_.rank_of(stage + 1);
  }

  void check_shape() const {
    if (s_.ranks < 1 || s_.stages < 1 || s_.micro_batches < 1 || s_.stages % s_.ranks != 0 ||
        s_.actions.size() != static_cast<std::size_t>(s_.ranks)) {
      fail(0, fmt::format("{} lists for {} ranks, {} stages and {} micro-batches; expected one list for each rank, and "
                          "stages in a multiple of the ranks",
                          s_.actions.size(), s_.ranks, s_.stages, s_.micro_batches));
    }
    if (!costs_.stage_factor.empty() && costs_.stage_factor.size() != static_cast<std::size_t>(s_.stages)) {
      fail(0, fmt::format("stage_factor has {} entries, expected {}", costs_.stage_factor.size(), s_.stages));
    }
  }

  /// Returns the actions that must have come earlier in the same list.
  std::vector<ActionKind> before(const Action& a) const {
    const bool last = a.stage == s_.stages - 1;
    const auto with_gradient = [&](std::vector<ActionKind> kinds) {
      if (!last && crosses(a.stage)) kinds.push_back(recv_gradient);
      return kinds;
    };
    switch (a.kind) {
      case forward: return crosses(a.stage - 1) ? std::vector{recv_activation} : std::vector<ActionKind>{};
      case backward:
      case backward_input: return with_gradient({forward});
      case backward_weight: return {backward_input};
      case send_activation: return {forward};
      default: return {};
    }
  }

  void check_list(int r) {
    for (const Action& a : list(r)) {
      const std::string name = to_text(a);
      if (a.stage < 0 || a.stage >= s_.stages || a.micro_batch < 0 || a.micro_batch >= s_.micro_batches) {
        fail(r, fmt::format("{} is not one of {} stages and {} micro-batches", name, s_.stages, s_.micro_batches));
      }
      if (s_.rank_of(a.stage) != r) fail(r, fmt::format("{} belongs to rank {}", name, s_.rank_of(a.stage)));
      const bool forwards = a.kind == send_activation || a.kind == recv_gradient;
      if (is_transfer(a.kind) && !crosses(forwards ? a.stage : a.stage - 1)) {
        fail(r, fmt::format("{} has no other rank at its other end", name));
      }
      Cell& c = cell(a);
      const auto has = [&](ActionKind kind) { return c.count[static_cast<std::size_t>(kind)] > 0; };
      if (++c.count[static_cast<std::size_t>(a.kind)] > 1) fail(r, fmt::format("{} comes twice", name));
      for (ActionKind kind : before(a)) {
        if (!has(kind)) fail(r, fmt::format("{} comes before {}", name, to_text(Action{kind, a.stage, a.micro_batch})));
      }
      if (a.kind == send_gradient && !has(backward) && !has(backward_input)) {
        fail(r, fmt::format("{} comes before its backward", name));
      }
      if (has(backward) && (has(backward_input) || has(backward_weight))) {
        fail(r, fmt::format("{} makes backward both whole and split", name));
      }
    }
  }

  void check_complete() {
    bool any_backward = false;
    const auto count = [](const Cell& c, ActionKind kind) { return c.count[static_cast<std::size_t>(kind)]; };
    for (const Cell& c : cells_) any_backward |= count(c, backward) + count(c, backward_input) > 0;
    for (int stage = 0; stage < s_.stages; ++stage) {
      for (int i = 0; i < s_.micro_batches; ++i) {
        const Cell& c = cell(stage, i);
        const auto need = [&](bool needed, ActionKind kind) {
          if (needed && count(c, kind) == 0) {
            fail(s_.rank_of(stage), fmt::format("{} is missing", to_text(Action{kind, stage, i})));
          }
        };
        need(true, forward);
        need(any_backward && count(c, backward_input) == 0, backward);
        need(count(c, backward_input) > 0, backward_weight);
        need(crosses(stage), send_activation);
        need(crosses(stage - 1), recv_activation);
        need(any_backward && crosses(stage), recv_gradient);
        need(any_backward && crosses(stage - 1), send_gradient);
      }
    }
  }

  double cost(const Action& a) const {
    const double factor = costs_.stage_factor.empty() ? 1 : costs_.stage_factor[static_cast<std::size_t>(a.stage)];
    switch (a.kind) {
      case forward: return factor * costs_.forward;
      case backward: return factor * costs_.backward;
      case backward_input: return factor * costs_.backward_input;
      case backward_weight: return factor * costs_.backward_weight;
      default: return costs_.send;
    }
  }

  /// Returns when the tensor that a calculation needs from another stage is there. Earlier actions of the same list are
  /// done.
  std::optional<double> input_ready(const Action& a) {
    if (a.kind == forward) {
      if (a.stage == 0) return 0;
      return crosses(a.stage - 1) ? end(recv_activation, a.stage, a.micro_batch)
                                  : end(forward, a.stage - 1, a.micro_batch);
    }
    if (a.kind == backward_weight || a.stage == s_.stages - 1) return 0;
    if (crosses(a.stage)) return end(recv_gradient, a.stage, a.micro_batch);
    const std::optional<double> split = end(backward_input, a.stage + 1, a.micro_batch);
    return split ? split : end(backward, a.stage + 1, a.micro_batch);
  }

  bool advance(int r) {
    Rank& me = rank(r);
    const std::size_t from = me.next;
    for (; me.next < list(r).size(); ++me.next) {
      const Action& a = list(r)[me.next];
      if (is_transfer(a.kind)) {
        me.transfers.push_back(me.next);
        me.handed_over.push_back(me.now);
        continue;
      }
      const std::optional<double> ready = input_ready(a);
      if (!ready) break;
      const double start = std::max(me.now, *ready);
      me.now = start + cost(a);
      me.busy += cost(a);
      me.last = me.now;
      me.times[me.next] = {a, start, me.now};
      end(a.kind, a.stage, a.micro_batch) = me.now;
      if (a.kind == forward) me.peak_live = std::max(me.peak_live, ++me.live);
      if (a.kind == backward || a.kind == backward_weight) --me.live;
    }
    return me.next > from;
  }

  /// Returns the name of the other side of `a`.
  Action counterpart(const Action& a) const {
    switch (a.kind) {
      case send_activation: return {recv_activation, a.stage + 1, a.micro_batch};
      case recv_activation: return {send_activation, a.stage - 1, a.micro_batch};
      case send_gradient: return {recv_gradient, a.stage - 1, a.micro_batch};
      default: return {send_gradient, a.stage + 1, a.micro_batch};
    }
  }

  bool transfer(int r) {
    Rank& me = rank(r);
    bool moved = false;
    while (me.next_transfer < me.transfers.size()) {
      const std::size_t mine = me.transfers[me.next_transfer];
      const Action& a = list(r)[mine];
      const int peer = s_.peer_of(a);
      Rank& other = rank(peer);
      if (other.next_transfer == other.transfers.size()) break;
      const std::size_t theirs = other.transfers[other.next_transfer];
      const Action& b = list(peer)[theirs];
      if (s_.peer_of(b) != r || is_send(b.kind) == is_send(a.kind)) break;
      if (b != counterpart(a)) {
        fail(r,
             fmt::format("{} meets {} of rank {}; expected {}", to_text(a), to_text(b), peer, to_text(counterpart(a))));
      }
      const double start = std::max(
          {me.handed_over[me.next_transfer], other.handed_over[other.next_transfer], me.link_free, other.link_free});
      me.link_free = other.link_free = start + costs_.send;
      me.times[mine] = {a, start, me.link_free};
      other.times[theirs] = {b, start, me.link_free};
      end(a.kind, a.stage, a.micro_batch) = me.link_free;
      end(b.kind, b.stage, b.micro_batch) = me.link_free;
      ++me.next_transfer;
      ++other.next_transfer;
      moved = true;
    }
    return moved;
  }

  void check_finished() {
    std::string waiting;
    int first = -1;
    for (int r = 0; r < s_.ranks; ++r) {
      const Rank& me = rank(r);
      std::string at;
      if (me.next < list(r).size()) at = to_text(list(r)[me.next]);
      if (me.next_transfer < me.transfers.size()) {
        at += fmt::format("{}{}", at.empty() ? "" : " behind ", to_text(list(r)[me.transfers[me.next_transfer]]));
      }
      if (at.empty()) continue;
      if (first < 0) {
        first = r;
        waiting = fmt::format("waits for ever at {}", at);
      } else {
        waiting += fmt::format(", rank {} at {}", r, at);
      }
    }
    if (first >= 0) fail(first, waiting);
  }

  Simulation result() {
    Simulation simulation;
    for (const Rank& me : ranks_) simulation.makespan = std::max(simulation.makespan, me.last);
    for (Rank& me : ranks_) {
      simulation.idle.push_back((simulation.makespan - me.busy) / simulation.makespan);
      simulation.peak_live.push_back(me.peak_live);
      simulation.timeline.push_back(std::move(me.times));
    }
    return simulation;
  }

  const Schedule& s_;
  const Costs& costs_;
  std::vector<Rank> ranks_;
  std::vector<Cell> cells_;
};

}  // namespace

Simulation simulate(const Schedule& schedule, const Costs& costs) { return Simulator(schedule, costs).run(); }

}  // namespace tutti::training
