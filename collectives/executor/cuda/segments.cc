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

bool can_be_segmented(const Program& program) {
  if (program.lanes != 1 || program.express) return false;
  const auto* steps = array<ProgramStep>(program, program.steps_at);
  for (std::uint32_t s = 0; s < array<ProgramLane>(program, program.lanes_at)->step_count; ++s) {
    if (steps[s].verb == Verb::open) return false;
  }
  return true;
}

std::vector<SegmentLaunch> segments_of(const Program& program) {
  TUTTI_CHECK(can_be_segmented(program));
  const ProgramLane lane = *array<ProgramLane>(program, program.lanes_at);
  const auto* steps = array<ProgramStep>(program, program.steps_at) + lane.steps;
  const auto* peers = array<std::int32_t>(program, program.peers_at);
  std::vector<SegmentLaunch> launches(1);
  launches.back().segment = {.on = true, .begins = true};
  const auto begin_segment = [&](int round, std::uint32_t step) {
    launches.emplace_back().segment = {.on = true, .round = round, .first_step = step, .end_step = step};
  };
  for (int round = 0; round < program.rounds; ++round) {
    begin_segment(round, 0);
    bool only_waits = true;  // so far in this segment
    for (std::uint32_t s = 0; s < lane.step_count; ++s) {
      const ProgramStep& step = steps[s];
      if (passes(step.guard, round, program.rounds)) {
        const bool waits = step.verb == Verb::wait;
        if (waits && !only_waits) {
          begin_segment(round, s);
          only_waits = true;
        }
        for (std::uint32_t i = 0; waits && i < step.peer_count; ++i) {
          launches.back().before.push_back({peers[step.peers + i], step.channel});
        }
        only_waits = only_waits && waits;
      }
      launches.back().segment.end_step = s + 1;
    }
  }
  launches.back().segment.ends = true;
  return launches;
}

}  // namespace tutti::executor::cuda
