#include "collectives/plan/layout.h"

namespace tutti::plan {

Placements placements_of(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::broadcast:
    case Collective::barrier: return {Placement::split, Placement::split};
    case Collective::reduce_scatter:
    case Collective::scatter: return {Placement::blocks, Placement::own};
    case Collective::all_gather:
    case Collective::gather: return {Placement::own, Placement::blocks};
    case Collective::all_to_all:
    case Collective::all_to_allv:
    case Collective::send_recv: return {Placement::blocks, Placement::blocks};
  }
  return {Placement::split, Placement::split};
}

bool holds(const Plan& plan, Space space, int rank, int piece) {
  const bool at_root = rank == plan.root;
  const bool input = space == Space::input;
  switch (plan.collective) {
    case Collective::barrier: return false;
    case Collective::broadcast:
    case Collective::scatter:
      if (input && !at_root) return false;
      break;
    case Collective::reduce:
    case Collective::gather:
      if (!input && !at_root) return false;
      break;
    default: break;
  }
  const Placements placements = placements_of(plan.collective);
  return (input ? placements.input : placements.output) != Placement::own || block_of(plan, piece) == rank;
}

}  // namespace tutti::plan
