#include "collectives/executor/cuda/segments.h"

#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace tutti::executor::cuda {

namespace {

template <class T>
const T* array(const Program& program, std::uint32_t at) {
  return reinterpret_cast<const T*>(reinterpret_cast<const std::byte*>(&program) + at);
}

bool passes(std::uint8_t guard, int round, int rounds) {
  return guard == 0 || (guard == 1 ? round >= 2 : round + 2 < rounds);
}

}  // namespace

bool can_be_cut(const Program& program) {
  if (program.lanes != 1 || program.express) return false;
  const auto* steps = array<ProgramStep>(program, program.steps_at);
  for (std::uint32_t s = 0; s < array<ProgramLane>(program, program.lanes_at)->step_count; ++s) {
    if (steps[s].verb == Verb::open) return false;
  }
  return true;
}

std::vector<Cut> cuts_of(const Program& program) {
  TUTTI_CHECK(can_be_cut(program));
  const ProgramLane lane = *array<ProgramLane>(program, program.lanes_at);
  const auto* steps = array<ProgramStep>(program, program.steps_at) + lane.steps;
  const auto* peers = array<std::int32_t>(program, program.peers_at);
  std::vector<Cut> cuts(1);
  cuts.back().segment = {.on = true, .begins = true};
  const auto cut = [&](int round, std::uint32_t step) {
    cuts.emplace_back().segment = {.on = true, .round = round, .first_step = step, .end_step = step};
  };
  for (int round = 0; round < program.rounds; ++round) {
    cut(round, 0);
    bool only_waits = true;  // so far in this cut
    for (std::uint32_t s = 0; s < lane.step_count; ++s) {
      const ProgramStep& step = steps[s];
      if (passes(step.guard, round, program.rounds)) {
        const bool waits = step.verb == Verb::wait;
        if (waits && !only_waits) {
          cut(round, s);
          only_waits = true;
        }
        for (std::uint32_t i = 0; waits && i < step.peer_count; ++i) {
          cuts.back().before.push_back({peers[step.peers + i], step.channel});
        }
        only_waits = only_waits && waits;
      }
      cuts.back().segment.end_step = s + 1;
    }
  }
  cuts.back().segment.ends = true;
  return cuts;
}

}  // namespace tutti::executor::cuda
