// Partners exchange all blocks that they have, and then do so with others twice as far: log2 n steps. Where n is no
// power of two the ranks beyond are folded (fold.h). Bruck's needs no folding, but there no rank receives from the peer
// that it sends to: over TCP each message then costs an acknowledgement of its own.
//
// Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005.
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/fold.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::Range;
using plan::RankBuilder;

Plan all_gather_recursive_doubling(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "recursive_doubling");
  const Folded folded(n);
  Builder b(request.collective, "recursive_doubling", n, /*pieces=*/n);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    me.copy(me.output(r), me.input(r));
    const auto all_but = [&](int rank) {
      std::vector<Range> blocks;
      if (rank > 0) blocks.push_back(me.output(0, rank));
      blocks.push_back(me.output(rank + 1, n - rank - 1));
      return blocks;
    };
    const int v = folded.participant(r);
    if (v < 0) {
      me.send(r + 1, me.output(r));
      me.recv(r + 1, all_but(r));
      continue;
    }
    if (folded.serves_folded_rank(r)) me.recv(r - 1, me.output(r - 1));
    // What participants first .. first + distance - 1 stand for.
    const auto blocks = [&](int first, int distance) {
      const int begin = folded.first_piece(first);
      return me.output(begin, folded.first_piece(first + distance) - begin);
    };
    for (int distance = 1; distance < folded.participants; distance *= 2) {
      const int partner = folded.rank_of(v ^ distance);
      const int first = v & ~(distance - 1);
      me.send(partner, blocks(first, distance));
      me.recv(partner, blocks(first ^ distance, distance));
    }
    if (folded.serves_folded_rank(r)) me.send(r - 1, all_but(r - 1));
  }
  return b.finish();
}

}  // namespace tutti::algorithms
