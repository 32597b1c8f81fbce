// Dissemination: in step k a rank passes the 2^k blocks that it has to the rank 2^k below. ceil(log2 n) steps for every
// n, n-1 blocks per rank. Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications in
// multiport message-passing systems", 1997. Blocks go to their final place at once, so nothing is rotated at the end; a
// run of blocks that wraps around is two messages.
#include <algorithm>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/phases.h"

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::RankBuilder;

namespace {

struct Run {
  int first;
  int count;
};

/// Blocks first, first + 1, ... (mod n) as runs that do not wrap.
std::vector<Run> runs(int first, int count, int n) {
  if (first + count <= n) return {{first, count}};
  return {{first, n - first}, {0, first + count - n}};
}

}  // namespace

Plan all_gather_bruck(const PlanRequest& request) {
  const int n = request.ranks;
  if (n == 1) return single_rank_plan(request, "bruck");
  Builder b(request.collective, "bruck", n, /*pieces=*/n);
  for (int r = 0; r < n; ++r) {
    RankBuilder me = b.rank(r);
    me.copy(me.output(r), me.input(r));
    for (int have = 1; have < n; have *= 2) {
      const int blocks = std::min(have, n - have);
      const int to = modulo(r - have, n);
      const int from = modulo(r + have, n);
      for (const Run& run : runs(r, blocks, n)) me.send(to, me.output(run.first, run.count));
      for (const Run& run : runs(from, blocks, n)) me.recv(from, me.output(run.first, run.count));
    }
  }
  return b.finish();
}

}  // namespace tutti::algorithms
