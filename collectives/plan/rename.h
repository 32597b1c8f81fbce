// Plans made from plans: the same algorithm with the ranks in another order, or among some of more ranks, and several
// plans at once, each in lanes of its own. What the builder's authors write for ranks 0 .. n-1 in a row serves any
// order so; verify() proves the result as it proves any plan.
#pragma once

#include <vector>

#include "collectives/plan/plan.h"

namespace tutti::plan {

/// Rank order[p] does what rank p did, and the root of the result is order[plan.root]. Where pieces belong to ranks
/// (all_gather, ...) piece p becomes piece order[p]. Sums are then not formed in rank order. REQUIRES: `order` holds
/// every rank once.
Plan renamed(const Plan& plan, const std::vector<int>& order);

/// The plan among some of `ranks` ranks: members[p] does what rank p did, the others do nothing. Blocks and root stay
/// as they were (block p is that of members[p]), so each of the members runs it as a call of `plan.ranks` ranks;
/// verify() is for `plan`. REQUIRES: `members` are different.
Plan embedded(const Plan& plan, const std::vector<int>& members, int ranks);

/// Plan k works on the k-th even share of the message, or of each block, in the lanes behind those of plan k - 1.
/// REQUIRES: at least one plan; all of the same collective, algorithm, ranks, pieces and root; not of all_to_allv,
/// whose blocks only their owners can cut.
Plan side_by_side(const std::vector<Plan>& plans);

}  // namespace tutti::plan
