// The runs of bytes that a step moves in a round.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/executor/host/plan_walker.h"
#include "collectives/executor/host/scratchpad.h"
#include "collectives/plan/layout.h"

namespace tutti::executor {

template <class Pass>
Status PlanWalker::each_pass(const Prepared& prepared, const PreparedStep& s, const CallBuffers& buffers, int round,
                             Pass&& pass) {
  const std::size_t ranges = s.source_count + s.destination_count;
  Scratchpad<std::size_t> offsets(ranges);
  const PreparedRange* all = &prepared.ranges[s.sources];  // sources, then destinations
  if (prepared.rounds == 1 && s.one_pass) {
    if (s.elements == 0) return {};
    for (std::size_t i = 0; i < ranges; ++i) {
      offsets[i] = all[i].offset + origins_[static_cast<std::size_t>(all[i].range.space)];
    }
    return pass(std::span<const std::size_t>(offsets.span()), s.elements);
  }
  // Slices of neighbouring pieces do not touch each other: one pass for each.
  for (int i = 0; i < s.pieces; ++i) {
    const Share slice = plan::slice(elements_of(prepared, s, i, buffers), prepared.rounds, round);
    if (slice.size == 0) continue;
    for (std::size_t k = 0; k < ranges; ++k) {
      const plan::Range& range = all[k].range;
      if (plan::is_user(range.space)) {
        offsets[k] = (share_of(prepared, range, i, buffers).offset + slice.offset) * prepared.element;
      } else {
        offsets[k] = origins_[static_cast<std::size_t>(range.space)] +
                     prepared.slots_of(range.space).offset(range.first + i, round);
      }
    }
    TUTTI_TRY(pass(std::span<const std::size_t>(offsets.span()), slice.size));
  }
  return {};
}

}  // namespace tutti::executor
