#include "tests/support/oracles/mutate.h"

#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <utility>

namespace tutti::plan {
namespace {

bool moves_data(const Step& step) {
  return step.kind == StepKind::put || step.kind == StepKind::copy || step.kind == StepKind::reduce;
}

std::vector<Step>& steps_of(Plan& plan, const Mutant& at) { return plan.of_rank[at.rank].lanes[at.lane].steps; }
const Step& step_of(const Plan& plan, const Mutant& at) { return plan.of_rank[at.rank].lanes[at.lane].steps[at.step]; }

/// The wait that takes the signal of `at`: as many waits of that link come before it as signals before the signal.
std::optional<std::size_t> taker_of(const Plan& plan, const Mutant& at) {
  const std::vector<Step>& signals = plan.of_rank[at.rank].lanes[at.lane].steps;
  const Step& signal = signals[at.step];
  int number = 0;
  for (int i = 0; i < at.step; ++i) {
    number +=
        signals[i].kind == StepKind::signal && signals[i].peer == signal.peer && signals[i].channel == signal.channel;
  }
  const std::vector<Step>& waits = plan.of_rank[signal.peer].lanes[at.lane].steps;
  for (std::size_t i = 0; i < waits.size(); ++i) {
    const bool same_link =
        waits[i].kind == StepKind::wait && waits[i].peer == at.rank && waits[i].channel == signal.channel;
    if (same_link && number-- == 0) return i;
  }
  return std::nullopt;
}

/// The kinds of mistake that can be planted at one step.
void add_mutants(const Plan& plan, Mutant at, std::vector<Mutant>& all) {
  const std::vector<Step>& steps = plan.of_rank[at.rank].lanes[at.lane].steps;
  const Step& step = steps[at.step];
  const Step* next = at.step + 1 < static_cast<int>(steps.size()) ? &steps[at.step + 1] : nullptr;
  const auto add = [&](Mutation mutation, int part = 0) {
    at.mutation = mutation;
    at.part = part;
    all.push_back(at);
  };
  switch (step.kind) {
    case StepKind::wait: add(Mutation::drop_wait); break;
    case StepKind::signal:
      add(Mutation::drop_signal);
      if (taker_of(plan, at)) add(Mutation::drop_pair);
      break;
    case StepKind::open: add(Mutation::drop_open); break;
    default: add(Mutation::drop_data); break;
  }
  if (step.peer >= 0 && plan.ranks > 2) add(Mutation::change_peer);
  if (step.kind == StepKind::reduce) add(Mutation::flip_last);
  if (next != nullptr && *next != step) add(Mutation::swap_steps);
  if (!moves_data(step)) return;
  const int parts = static_cast<int>(step.sources.size() + step.destinations.size());
  for (int part = 0; part < parts; ++part) add(Mutation::shift_range, part);
  for (int later = at.step + 1; later < static_cast<int>(steps.size()); ++later) {
    if (!moves_data(steps[later])) continue;
    if (steps[later].destinations[0].first != step.destinations[0].first) add(Mutation::swap_pieces, later);
    break;
  }
}

int another_peer(const Plan& plan, int rank, int peer) {
  int other = (peer + 1) % plan.ranks;
  if (other == rank) other = (other + 1) % plan.ranks;
  return other;
}

}  // namespace

const char* name_of(Mutation mutation) {
  constexpr const char* names[kMutations] = {"drop_wait",   "drop_signal", "drop_pair",   "drop_open",  "drop_data",
                                             "swap_pieces", "shift_range", "change_peer", "swap_steps", "flip_last"};
  return names[static_cast<int>(mutation)];
}

std::vector<Mutant> mutants_of(const Plan& plan) {
  std::vector<Mutant> all;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    for (int lane = 0; lane < static_cast<int>(plan.of_rank[rank].lanes.size()); ++lane) {
      const int steps = static_cast<int>(plan.of_rank[rank].lanes[lane].steps.size());
      for (int step = 0; step < steps; ++step) add_mutants(plan, {Mutation::drop_wait, rank, lane, step}, all);
    }
  }
  return all;
}

Plan mutate(const Plan& plan, const Mutant& mutant) {
  Plan result = plan;
  std::vector<Step>& steps = steps_of(result, mutant);
  Step& step = steps[mutant.step];
  switch (mutant.mutation) {
    case Mutation::drop_wait:
    case Mutation::drop_signal:
    case Mutation::drop_open:
    case Mutation::drop_data: steps.erase(steps.begin() + mutant.step); break;
    case Mutation::drop_pair: {
      std::vector<Step>& waits = result.of_rank[step.peer].lanes[mutant.lane].steps;
      waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(*taker_of(plan, mutant)));
      steps.erase(steps.begin() + mutant.step);
      break;
    }
    case Mutation::swap_pieces: std::swap(step.destinations[0].first, steps[mutant.part].destinations[0].first); break;
    case Mutation::shift_range: {
      const int sources = static_cast<int>(step.sources.size());
      Range& range = mutant.part < sources ? step.sources[mutant.part] : step.destinations[mutant.part - sources];
      range.first += range.first > 0 ? -1 : 1;
      break;
    }
    case Mutation::change_peer:
      step.peer = another_peer(plan, mutant.rank, step.peer);
      if (step.kind == StepKind::put) step.destinations[0].rank = step.peer;
      break;
    case Mutation::swap_steps: std::swap(step, steps[mutant.step + 1]); break;
    case Mutation::flip_last: step.last = !step.last; break;
  }
  return result;
}

std::string describe(const Plan& plan, const Mutant& mutant) {
  const Step& step = step_of(plan, mutant);
  constexpr const char* kinds[] = {"open", "put", "copy", "reduce", "signal", "wait"};
  return fmt::format("{} at rank {}, lane {}, step {} ({}{}), part {}", name_of(mutant.mutation), mutant.rank,
                     mutant.lane, mutant.step, kinds[static_cast<int>(step.kind)],
                     step.peer >= 0 ? fmt::format(" {}", step.peer) : "", mutant.part);
}

}  // namespace tutti::plan
