// What comes from remote ranks only to be copied to the output may be written there at once (Wire::land()): a pass over
// memory less.
//
// A message that lands comes earlier than its copy would: while this rank still waits, perhaps for another one. That is
// no race where nothing of this rank touches that part of the output from the wait until the copy (PreparedStep::
// lands_from), and no peer ever does: plans that open buffers do not land. What is still being sent from there, of an
// earlier step, is asked for.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/executor/host/executor.h"
#include "collectives/executor/host/passes-inl.h"

namespace tutti::executor {

namespace {

/// Whether the caller's buffers may have bytes in common.
bool may_be_in_place(const Prepared& prepared, const HostExecutor::Buffers& buffers) {
  if (buffers.uneven != nullptr) return true;
  const std::size_t stride = std::max(prepared.shape.stride, prepared.shape.count);
  const std::size_t most = stride * prepared.element * static_cast<std::size_t>(prepared.ranks);
  const auto* input = static_cast<const std::byte*>(buffers.input);
  const auto* output = static_cast<const std::byte*>(buffers.output);
  return input < output + most && output < input + most;
}

}  // namespace

Status HostExecutor::land_ahead(const Prepared& prepared, const Buffers& buffers, int lane, Cursor& cursor) {
  const auto& steps = prepared.lanes[static_cast<std::size_t>(lane)];
  if (cursor.ahead_round < cursor.round || (cursor.ahead_round == cursor.round && cursor.ahead_step < cursor.step)) {
    cursor.ahead_round = cursor.round;
    cursor.ahead_step = cursor.step;
  }
  const std::vector<std::byte*>& bases = bases_of(prepared);
  for (;; ++cursor.ahead_step) {
    if (cursor.ahead_step == steps.size()) {
      ++cursor.ahead_round;
      cursor.ahead_step = 0;
    }
    // The slots of the round after the next may be those of this one.
    if (cursor.ahead_round >= prepared.rounds || cursor.ahead_round > cursor.round + 1) return {};
    const PreparedStep& s = steps[cursor.ahead_step];
    if (s.lands_from == PreparedStep::kNever || !net_->far(s.sender)) continue;
    const std::uint32_t from = may_be_in_place(prepared, buffers) ? s.lands_from_in_place : s.lands_from;
    if (from > (cursor.ahead_round == cursor.round ? cursor.step : 0)) return {};  // not yet
    TUTTI_TRY(each_pass(prepared, s, buffers, cursor.ahead_round,
                        [&](std::span<const std::size_t> offsets, std::size_t elements) -> Status {
                          const PreparedRange* ranges = &prepared.ranges[s.sources];
                          const std::byte* slot = bases[ranges[0].base] + offsets[0];
                          std::byte* to = bases[ranges[1].base] + offsets[1];
                          const std::size_t bytes = elements * prepared.element;
                          if (bytes <= net_->info().copied || net_puts_->reads(to, bytes)) return {};
                          net_->wire().land(slot, bytes, to);
                          landings_.push_back(slot);
                          return {};
                        }));
  }
}

bool HostExecutor::has_landed(const void* slot) {
  const auto found = std::find(landings_.begin(), landings_.end(), slot);
  if (found == landings_.end()) return false;
  *found = landings_.back();
  landings_.pop_back();
  return net_->wire().landed(slot);
}

void HostExecutor::end_landings() {
  for (const void* slot : landings_) (void)net_->wire().landed(slot);
  landings_.clear();
}

}  // namespace tutti::executor
