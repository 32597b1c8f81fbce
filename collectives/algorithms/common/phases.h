// Parts that several algorithms are made of.
#pragma once

#include <string>
#include <vector>

#include "collectives/algorithms/algorithms.h"
#include "collectives/algorithms/common/double_tree.h"
#include "collectives/plan/builder.h"

namespace tutti::algorithms {

inline int modulo(int a, int n) { return (a % n + n) % n; }

/// The plan of a communicator of one rank: output = input.
plan::Plan single_rank_plan(const PlanRequest& request, const std::string& algorithm);

/// The ranks of each host, hosts in the order of their first rank.
std::vector<std::vector<int>> ranks_by_host(const PlanRequest& request);

/// r+1, r+2, ... r-1 (mod n): each rank begins with another peer, so that they do not queue up at rank 0.
std::vector<int> others_from(int r, int n);

void open_all(plan::RankBuilder& me, int n);
/// Signals every other rank and waits for all of them: what each did before, all have seen.
void meet_all(plan::RankBuilder& me, int n);

/// Piece `piece` of the input of every rank, in rank order.
std::vector<plan::Range> inputs_in_rank_order(const plan::RankBuilder& me, int n, int piece);

/// Piece `piece` of every rank, in rank order: takes a message of every peer, which the caller releases once.
std::vector<plan::Range> take_in_rank_order(plan::RankBuilder& me, int n, int piece);

/// The ranks of a phase, in ring order, and the place of "me" among them; their pieces begin at first_piece.
struct Team {
  std::vector<int> members;
  int me = 0;
  int first_piece = 0;

  int size() const { return static_cast<int>(members.size()); }
  int next() const { return members[modulo(me + 1, size())]; }
  int prev() const { return members[modulo(me - 1, size())]; }
  int piece(int offset) const { return first_piece + modulo(offset, size()); }  // of the member me or any offset
};

/// All n ranks as a team, piece r for rank r.
Team all_ranks(int r, int n);

/// Ring reduce-scatter. Own contributions come from the input, or from the output where `from_output` (they are partial
/// sums then). Afterwards the member at position i holds the sum of piece i in its output. Patarasuk and Yuan,
/// "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009. REQUIRES: two members or more.
void ring_reduce_scatter(plan::RankBuilder& me, const Team& team, bool from_output = false);

/// Ring all-gather: piece i of the output of the member at position i goes to all. REQUIRES: two members or more.
void ring_all_gather(plan::RankBuilder& me, const Team& team);

/// Adds up the children's sums and this rank's input, and sends the sum of `piece` to the parent; the root of the tree
/// keeps it in its output. A node's sum lies in its first child's slot.
void reduce_up(plan::RankBuilder& me, const TreeNode& node, int piece);

/// `piece` of the output goes from the root of the tree, which has it, to all.
void send_down(plan::RankBuilder& me, const TreeNode& node, int piece);

}  // namespace tutti::algorithms
