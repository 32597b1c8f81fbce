#include "training/pipeline/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <tuple>
#include <utility>

#include "tutti/tutti.hpp"

namespace tutti::training {
namespace {

using Actions = std::vector<Action>;
using enum ActionKind;

[[noreturn]] void fail(const char* call, const std::string& what) {
  throw Error(Code::invalid_argument, fmt::format("{}: {}", call, what));
}

Schedule begin(const char* name, int ranks, int micro_batches, int stages_per_rank = 1) {
  if (ranks < 1 || micro_batches < 1 || stages_per_rank < 1) {
    fail(name, fmt::format("ranks {}, micro-batches {}, stages per rank {}; expected at least 1 of each", ranks,
                           micro_batches, stages_per_rank));
  }
  return {name, ranks, ranks * stages_per_rank, micro_batches, std::vector<Actions>(static_cast<std::size_t>(ranks))};
}

/// The times of the calculations if only each other's results hold them up.
class UnitTimes {
 public:
  explicit UnitTimes(const Schedule& schedule) : s_(schedule), end_(slots(schedule)), next_(schedule.actions.size()) {
    std::vector<double> now(s_.actions.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < s_.actions.size(); ++r) {
        for (; next_[r] < s_.actions[r].size(); ++next_[r], moved = true) {
          const Action& action = s_.actions[r][next_[r]];
          const std::optional<double> inputs = ready(action);
          if (!inputs) break;
          now[r] = std::max(now[r], *inputs) + cost(action.kind);
          end_[slot(action)] = now[r];
        }
      }
    }
    for (std::size_t r = 0; r < s_.actions.size(); ++r) {
      if (next_[r] == s_.actions[r].size()) continue;
      fail("add_transfers", fmt::format("in schedule '{}' rank {} waits at {} for what no rank calculates before",
                                        s_.name, r, to_text(s_.actions[r][next_[r]])));
    }
  }

  double end(const Action& action) const { return *end_[slot(action)]; }

 private:
  static std::size_t slots(const Schedule& s) {
    return static_cast<std::size_t>(kActionKinds) * static_cast<std::size_t>(s.stages) *
           static_cast<std::size_t>(s.micro_batches);
  }
  static double cost(ActionKind kind) { return kind == backward ? 2 : 1; }

  std::size_t slot(const Action& a) const {
    if (a.stage < 0 || a.stage >= s_.stages || a.micro_batch < 0 || a.micro_batch >= s_.micro_batches ||
        is_transfer(a.kind)) {
      fail("add_transfers", fmt::format("{} in schedule '{}'; expected calculations of {} stages and {} micro-batches",
                                        to_text(a), s_.name, s_.stages, s_.micro_batches));
    }
    return static_cast<std::size_t>((static_cast<int>(a.kind) * s_.stages + a.stage) * s_.micro_batches +
                                    a.micro_batch);
  }

  std::optional<double> ready(const Action& a) const {
    const auto of = [&](ActionKind kind, int stage) { return end_[slot({kind, stage, a.micro_batch})]; };
    switch (a.kind) {
      case forward: return a.stage == 0 ? 0.0 : of(forward, a.stage - 1);
      case backward_weight: return of(backward_input, a.stage);
      default: break;
    }
    if (a.stage == s_.stages - 1) return of(forward, a.stage);
    const std::optional<double> split = of(backward_input, a.stage + 1);
    return split ? split : of(backward, a.stage + 1);
  }

  const Schedule& s_;
  std::vector<std::optional<double>> end_;
  std::vector<std::size_t> next_;  // first action of each rank that has not run
};

struct Transfer {
  double ready;
  Action from, send, recv;
};

}  // namespace

int Schedule::peer_of(const Action& action) const {
  const bool next = action.kind == send_activation || action.kind == recv_gradient;
  return rank_of(next ? action.stage + 1 : action.stage - 1 + stages);
}

Schedule add_transfers(Schedule schedule) {
  const UnitTimes times(schedule);
  std::vector<Transfer> transfers;
  for (const Actions& list : schedule.actions) {
    for (const Action& a : list) {
      const int s = a.stage, i = a.micro_batch;
      const bool backwards = a.kind == backward || a.kind == backward_input;
      const int to = a.kind == forward ? s + 1 : s - 1;
      if (!(a.kind == forward || backwards) || to < 0 || to >= schedule.stages) continue;
      if (schedule.rank_of(to) == schedule.rank_of(s)) continue;
      if (backwards) {
        transfers.push_back({times.end(a), a, {send_gradient, s, i}, {recv_gradient, to, i}});
      } else {
        transfers.push_back({times.end(a), a, {send_activation, s, i}, {recv_activation, to, i}});
      }
    }
  }
  std::sort(transfers.begin(), transfers.end(), [](const Transfer& a, const Transfer& b) {
    const auto key = [](const Transfer& t) {
      return std::tuple(t.ready, t.send.kind, t.send.stage, t.send.micro_batch);
    };
    return key(a) < key(b);
  });

  // Behind how many calculations of its rank each transfer goes.
  std::vector<std::vector<Actions>> before;
  for (const Actions& list : schedule.actions) before.emplace_back(list.size() + 1);
  std::vector<std::size_t> last(schedule.actions.size());
  const auto put = [&](const Action& action, auto is_later) {
    const auto r = static_cast<std::size_t>(schedule.rank_of(action.stage));
    const Actions& list = schedule.actions[r];
    std::size_t& place = last[r];
    while (place < list.size() && !is_later(list[place])) ++place;
    before[r][place].push_back(action);
  };
  for (const Transfer& transfer : transfers) {
    const auto later = [&](const Action& a) { return times.end(a) > transfer.ready; };
    put(transfer.send, later);
    put(transfer.recv, later);
  }
  for (std::size_t r = 0; r < schedule.actions.size(); ++r) {
    Actions all;
    for (std::size_t place = 0; place < before[r].size(); ++place) {
      all.insert(all.end(), before[r][place].begin(), before[r][place].end());
      if (place < schedule.actions[r].size()) all.push_back(schedule.actions[r][place]);
    }
    schedule.actions[r] = std::move(all);
  }
  return schedule;
}

Schedule gpipe(int ranks, int micro_batches) {
  Schedule schedule = begin("gpipe", ranks, micro_batches);
  for (int r = 0; r < ranks; ++r) {
    Actions& list = schedule.actions[static_cast<std::size_t>(r)];
    for (int i = 0; i < micro_batches; ++i) list.push_back({forward, r, i});
    for (int i = 0; i < micro_batches; ++i) list.push_back({backward, r, i});
  }
  return add_transfers(std::move(schedule));
}

Schedule one_forward_one_backward(int ranks, int micro_batches) {
  Schedule schedule = begin("1f1b", ranks, micro_batches);
  for (int r = 0; r < ranks; ++r) {
    Actions& list = schedule.actions[static_cast<std::size_t>(r)];
    const int warm_up = std::min(ranks - r - 1, micro_batches);
    for (int i = 0; i < warm_up; ++i) list.push_back({forward, r, i});
    for (int i = 0; i < micro_batches; ++i) {
      if (i + warm_up < micro_batches) list.push_back({forward, r, i + warm_up});
      list.push_back({backward, r, i});
    }
  }
  return add_transfers(std::move(schedule));
}

Schedule interleaved(int ranks, int micro_batches, int stages_per_rank) {
  Schedule schedule = begin("interleaved", ranks, micro_batches, stages_per_rank);
  if (micro_batches % ranks != 0) {
    fail("interleaved", fmt::format("{} micro-batches are not a multiple of {} ranks", micro_batches, ranks));
  }
  // Groups of p micro-batches pass all v stages of a rank in turn.
  const int group = ranks * stages_per_rank, total = micro_batches * stages_per_rank;
  for (int r = 0; r < ranks; ++r) {
    Actions& list = schedule.actions[static_cast<std::size_t>(r)];
    const auto add = [&](ActionKind kind, int k) {
      const int turn = k % group / ranks;
      const int turn_of_kind = kind == forward ? turn : stages_per_rank - 1 - turn;
      list.push_back({kind, turn_of_kind * ranks + r, k / group * ranks + k % ranks});
    };
    // With one stage on each rank this is 1F1B, whose warm-up is half as long.
    const int full = stages_per_rank == 1 ? ranks - r - 1 : 2 * (ranks - r - 1) + (stages_per_rank - 1) * ranks;
    const int warm_up = std::min(full, total);
    for (int k = 0; k < warm_up; ++k) add(forward, k);
    for (int k = 0; k < total; ++k) {
      if (k + warm_up < total) add(forward, k + warm_up);
      add(backward, k);
    }
  }
  return add_transfers(std::move(schedule));
}

Schedule zero_bubble_h1(int ranks, int micro_batches) {
  Schedule schedule = begin("zb-h1", ranks, micro_batches);
  for (int r = 0; r < ranks; ++r) {
    Actions& list = schedule.actions[static_cast<std::size_t>(r)];
    const int warm_up = std::min(ranks - r - 1, micro_batches);
    for (int i = 0; i < warm_up; ++i) list.push_back({forward, r, i});
    int weights = 0;
    for (int i = 0; i < micro_batches; ++i) {
      if (i + warm_up < micro_batches) list.push_back({forward, r, i + warm_up});
      list.push_back({backward_input, r, i});
      if (i >= r) list.push_back({backward_weight, r, weights++});
    }
    while (weights < micro_batches) list.push_back({backward_weight, r, weights++});
  }
  return add_transfers(std::move(schedule));
}

Schedule forward_only(int ranks, int micro_batches, int stages_per_rank) {
  Schedule schedule = begin("forward-only", ranks, micro_batches, stages_per_rank);
  for (int r = 0; r < ranks; ++r) {
    for (int i = 0; i < micro_batches; i += ranks) {
      for (int stage = r; stage < schedule.stages; stage += ranks) {
        for (int k = i; k < std::min(i + ranks, micro_batches); ++k) {
          schedule.actions[static_cast<std::size_t>(r)].push_back({forward, stage, k});
        }
      }
    }
  }
  return add_transfers(std::move(schedule));
}

Schedule make_schedule(std::string_view name, int ranks, int micro_batches, int stages_per_rank) {
  if (name == "interleaved") return interleaved(ranks, micro_batches, stages_per_rank);
  if (stages_per_rank != 1) {
    fail("make_schedule",
         fmt::format("'{}' with {} stages per rank; only 'interleaved' has more than 1", name, stages_per_rank));
  }
  if (name == "gpipe") return gpipe(ranks, micro_batches);
  if (name == "1f1b") return one_forward_one_backward(ranks, micro_batches);
  if (name == "zb-h1") return zero_bubble_h1(ranks, micro_batches);
  fail("make_schedule", fmt::format("no schedule '{}'; expected gpipe, 1f1b, interleaved or zb-h1", name));
}

const char* name_of(ActionKind kind) {
  constexpr const char* names[kActionKinds] = {"F", "B", "I", "W", "SA", "RA", "SG", "RG"};
  return names[static_cast<int>(kind)];
}

std::string to_text(const Action& action) {
  return fmt::format("{}{}.{}", name_of(action.kind), action.stage, action.micro_batch);
}

std::string to_text(const Schedule& schedule) {
  std::string text;
  for (const Actions& list : schedule.actions) {
    const char* gap = "";
    for (const Action& action : list) {
      text += gap;
      text += to_text(action);
      gap = " ";
    }
    text += '\n';
  }
  return text;
}

}  // namespace tutti::training
