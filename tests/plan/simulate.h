// Runs a plan with numbers, one step at a time in a random order: a second opinion on the verifier, by other means. It
// knows nothing of clocks: a plan is wrong here only when some schedule that was tried hangs or gives a wrong result.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "collectives/plan/layout.h"
#include "collectives/plan/plan.h"

namespace tutti::plan {

class Simulation {
 public:
  using Number = std::uint64_t;

  Simulation(const Plan& plan, int rounds, bool in_place, unsigned seed)
      : plan_(plan), rounds_(rounds), in_place_(in_place), random_(seed) {}

  /// Empty when all is well, else what was wrong.
  std::string run() {
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      for (int lane = 0; lane < lanes(); ++lane) threads_.push_back({rank, lane});
    }
    left_.assign(plan_.ranks, false);
    entered_.assign(plan_.ranks, false);
    // Threads run by priority, which changes now and then: long delays of one rank find more than even chances.
    std::vector<std::size_t> order(threads_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (std::size_t moves = 0;; ++moves) {
      if (moves % 8 == 0) std::shuffle(order.begin(), order.end(), random_);
      bool moved = false;
      for (const std::size_t t : order) {
        if (!advance(threads_[t])) continue;
        moved = true;
        break;
      }
      if (!moved) break;
    }
    for (const Thread& thread : threads_) {
      if (thread.round < rounds_) return "hangs";
    }
    for (const auto& [link, count] : signals_) {
      if (count != 0) return "signals are left over";
    }
    return wrong_;
  }

 private:
  struct Thread {
    int rank;
    int lane;
    int round = 0;
    std::size_t step = 0;
  };
  using Key = std::vector<int>;

  int lanes() const { return static_cast<int>(plan_.of_rank[0].lanes.size()); }

  Number raw(int rank, int piece, int round) const {
    Number x = (static_cast<Number>(rank) * 1000003 + piece) * 1000033 + round + 1;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ULL;
    return x ^ (x >> 32);
  }
  static constexpr Number kLast = 0x9e3779b97f4a7c15ULL;  // what `last` multiplies a sum with

  Number& at(const Range& range, int k, int round) {
    const int i = range.first + k;
    const bool scratch = range.space == Space::scratch || range.space == Space::published;
    Space space = range.space;
    if (space == Space::output && in_place_ && holds(plan_, Space::input, range.rank, i)) {
      space = Space::input;
    }
    const Key key = {static_cast<int>(space), range.rank, i, scratch ? round % 2 : round};
    const auto [found, is_new] = memory_.try_emplace(key, 0);
    if (is_new && space == Space::input) found->second = raw(range.rank, i, round);
    return found->second;
  }

  bool advance(Thread& thread) {
    if (thread.round >= rounds_) return false;
    if (!entered_[thread.rank]) {
      entered_[thread.rank] = true;
      return true;
    }
    const std::vector<Step>& steps = plan_.of_rank[thread.rank].lanes[thread.lane].steps;
    if (thread.step == steps.size()) {
      thread.step = 0;
      if (++thread.round == rounds_) leave(thread.rank);
      return true;
    }
    const Step& step = steps[thread.step];
    const bool runs = step.guard == Guard::always || (step.guard == Guard::from_third_round && thread.round >= 2) ||
                      (step.guard == Guard::until_third_to_last && thread.round + 2 < rounds_);
    if (runs && !run(thread, step)) return false;
    ++thread.step;
    return true;
  }

  bool run(const Thread& thread, const Step& step) {
    const int channel = static_cast<int>(step.channel);
    switch (step.kind) {
      case StepKind::open: return entered_[step.peer];
      case StepKind::signal: ++signals_[{thread.rank, step.peer, thread.lane, channel}]; return true;
      case StepKind::wait: {
        int& count = signals_[{step.peer, thread.rank, thread.lane, channel}];
        if (count == 0) return false;
        --count;
        return true;
      }
      default: break;
    }
    const int count = step.sources[0].count;
    for (int k = 0; k < count; ++k) {
      Number sum = 0;
      for (const Range& range : step.sources) {
        check_alive(range);
        sum += at(range, k, thread.round);
      }
      if (step.last) sum *= kLast;
      for (const Range& range : step.destinations) {
        check_alive(range);
        at(range, k, thread.round) = sum;
      }
    }
    return true;
  }

  void check_alive(const Range& range) {
    if (range.space != Space::input && range.space != Space::output) return;
    if (!entered_[range.rank]) wrong_ = "touches buffers of a rank that has not entered";
    if (left_[range.rank]) wrong_ = "touches buffers of a rank that has left";
  }

  /// A rank that leaves looks at its output at once.
  void leave(int rank) {
    for (const Thread& thread : threads_) {
      if (thread.rank == rank && thread.round < rounds_) return;
    }
    left_[rank] = true;
    if (plan_.collective == Collective::barrier) {
      for (const bool entered : entered_) {
        if (!entered) wrong_ = "leaves the barrier early";
      }
      return;
    }
    for (int piece = 0; piece < plan_.pieces; ++piece) {
      if (!holds(plan_, Space::output, rank, piece)) continue;
      for (int round = 0; round < rounds_; ++round) {
        if (at({Space::output, rank, piece, 1}, 0, round) != expected(rank, piece, round)) wrong_ = "wrong result";
      }
    }
  }

  Number expected(int rank, int piece, int round) const {
    switch (plan_.collective) {
      case Collective::all_gather:
      case Collective::gather: return raw(block_of(plan_, piece), piece, round);
      case Collective::broadcast:
      case Collective::scatter: return raw(plan_.root, piece, round);
      case Collective::all_to_all:
      case Collective::all_to_allv: {
        const int from = block_of(plan_, piece);
        return raw(from, piece - from + rank, round);
      }
      default: break;
    }
    Number sum = 0;
    for (int r = 0; r < plan_.ranks; ++r) sum += raw(r, piece, round);
    return plan_.ranks == 1 ? sum : sum * kLast;
  }

  const Plan& plan_;
  int rounds_;
  bool in_place_;
  std::mt19937 random_;
  std::vector<Thread> threads_;
  std::vector<bool> entered_;
  std::vector<bool> left_;
  std::map<Key, Number> memory_;
  std::map<Key, int> signals_;
  std::string wrong_;
};

}  // namespace tutti::plan
