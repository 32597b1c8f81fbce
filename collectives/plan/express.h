// Plans whose data can go in the signals themselves: in "express cells", which an executor has one of for each call and
// direction.
#pragma once

#include <optional>
#include <vector>

#include "collectives/plan/plan.h"

namespace tutti::plan {

/// The rank that fills each scratch slot, by rank and slot; -1: none.
using SlotSenders = std::vector<std::vector<int>>;

/// Returns nothing where a plan's data does not fit into its signals, however small.
///
/// It fits when the plan has one lane and opens no peer, and each peer is signalled and waited for at most once in a
/// single round. What goes to a peer must go before that signal: the one published slot, the same for all, or one slot
/// of the peer's scratch. All ranks must come to the same answer, so all their steps are looked at.
std::optional<SlotSenders> express_senders(const Plan& plan);

}  // namespace tutti::plan
