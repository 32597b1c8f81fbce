#include "collectives/algorithms/table.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <utility>

#include "base/log.h"

namespace tutti::algorithms {

const std::vector<Algorithm>& table() {
  using enum Collective;
  constexpr bool yes = true;
  constexpr bool no = false;
  // clang-format off
  static const std::vector<Algorithm> rows = {
      // collective, name, summary,
      //   load/store, opens peers, rank order, in place, uses hosts
      {all_reduce, "one_shot", "all ranks publish, then each adds up all inputs; least latency",
       yes, no, yes, yes, no, all_reduce_one_shot},
      {all_reduce, "two_shot", "each rank reduces its piece from all inputs into all outputs, directly",
       yes, yes, yes, yes, no, all_reduce_two_shot},
      {all_reduce, "put_one_shot", "each rank puts its input to all others; one step",
       no, no, yes, yes, no, all_reduce_put_one_shot},
      {all_reduce, "put_two_shot", "two-shot by puts alone",
       no, no, yes, yes, no, all_reduce_put_two_shot},
      {all_reduce, "published_two_shot", "two-shot through slots that all read: a sum is written once",
       yes, no, yes, yes, no, all_reduce_published_two_shot},
      {all_reduce, "ring", "ring reduce-scatter, then ring all-gather; least bytes",
       no, no, no, yes, no, all_reduce_ring},
      {all_reduce, "recursive_doubling", "everything with a partner, then with one twice as far; log n steps",
       no, no, no, yes, no, all_reduce_recursive_doubling},
      {all_reduce, "halving_doubling", "recursive halving, then doubling; log n steps with the bytes of a ring",
       no, no, no, yes, no, all_reduce_halving_doubling},
      {all_reduce, "double_binary_tree", "up and down two trees, half of the data each",
       no, no, no, yes, yes, all_reduce_double_binary_tree},
      {all_reduce, "hierarchical", "a ring across hosts; each sums its ranks' pieces and spreads the sums meanwhile",
       no, no, no, yes, yes, all_reduce_hierarchical},
      {reduce_scatter, "direct", "each rank reduces its block from all inputs, directly",
       yes, yes, yes, yes, no, reduce_scatter_direct},
      {reduce_scatter, "one_shot", "all ranks publish all blocks, then each adds up its own",
       yes, no, yes, yes, no, reduce_scatter_one_shot},
      {reduce_scatter, "linear", "each rank puts block j to rank j; one step",
       no, no, yes, yes, no, reduce_scatter_linear},
      {reduce_scatter, "ring", "sums travel around the ring; least bytes",
       no, no, no, yes, no, reduce_scatter_ring},
      {reduce_scatter, "halving", "recursive halving; log n steps",
       no, no, no, yes, no, reduce_scatter_halving},
      {reduce_scatter, "hierarchical", "sums of whole hosts travel around a ring of hosts",
       no, no, no, yes, yes, reduce_scatter_hierarchical},
      {all_gather, "direct", "copy every peer's input, directly",
       yes, yes, yes, yes, no, all_gather_direct},
      {all_gather, "one_shot", "all ranks publish, then each copies all blocks",
       yes, no, yes, yes, no, all_gather_one_shot},
      {all_gather, "linear", "each rank puts its block to all others; one step",
       no, no, yes, yes, no, all_gather_linear},
      {all_gather, "ring", "blocks travel around the ring; least bytes",
       no, no, yes, yes, no, all_gather_ring},
      {all_gather, "bruck", "twice as many blocks in each step; log n steps",
       no, no, yes, yes, no, all_gather_bruck},
      {all_gather, "recursive_doubling", "all that one has with a partner, then with one twice as far; log n steps",
       no, no, yes, yes, no, all_gather_recursive_doubling},
      {all_gather, "hierarchical", "blocks travel around a ring of hosts, and spread within each",
       no, no, yes, yes, yes, all_gather_hierarchical},
      {broadcast, "direct", "copy the root's input, directly",
       yes, yes, yes, yes, no, broadcast_direct},
      {broadcast, "one_shot", "the root publishes, each rank copies",
       yes, no, yes, yes, no, broadcast_one_shot},
      {broadcast, "chain", "a pipeline through all ranks",
       no, no, yes, yes, no, broadcast_chain},
      {broadcast, "double_binary_tree", "down two trees, half of the data each",
       no, no, yes, yes, yes, broadcast_double_binary_tree},
      {broadcast, "hierarchical", "shards go along a chain of hosts by a rank each, and spread within each host",
       no, no, yes, yes, yes, broadcast_hierarchical},
      {reduce, "direct", "each rank reduces its piece from all inputs into the root's output, directly",
       yes, yes, yes, yes, no, reduce_direct},
      {reduce, "one_shot", "all ranks publish, the root adds up",
       yes, no, yes, yes, no, reduce_one_shot},
      {reduce, "linear", "each rank puts its input to the root, which adds up; one step",
       no, no, yes, yes, no, reduce_linear},
      {reduce, "chain", "a pipeline through all ranks",
       no, no, no, yes, no, reduce_chain},
      {reduce, "double_binary_tree", "up two trees, half of the data each",
       no, no, no, yes, yes, reduce_double_binary_tree},
      {reduce, "hierarchical", "sums of whole hosts go along a chain of hosts, each shard by a rank of its own",
       no, no, no, yes, yes, reduce_hierarchical},
      {all_to_all, "direct", "copy this rank's block of every peer's input, directly",
       yes, yes, yes, no, no, all_to_all_direct},
      {all_to_all, "one_shot", "all ranks publish all blocks, then each copies its own",
       yes, no, yes, yes, no, all_to_all_one_shot},
      {all_to_all, "linear", "each rank puts block j to rank j; one step",
       no, no, yes, yes, no, all_to_all_linear},
      {all_to_all, "pairwise", "exchange with one partner after the other",
       no, no, yes, yes, no, all_to_all_pairwise},
      {all_to_all, "hierarchical", "blocks for a rank of another host go through one rank, as one message",
       no, no, yes, yes, yes, all_to_all_hierarchical},
      {all_to_allv, "direct", "copy what every peer's input has for this rank, directly",
       yes, yes, yes, no, no, all_to_all_direct},
      {all_to_allv, "one_shot", "all ranks publish all blocks, then each copies its own",
       yes, no, yes, yes, no, all_to_all_one_shot},
      {all_to_allv, "linear", "each rank puts block j to rank j; one step",
       no, no, yes, yes, no, all_to_all_linear},
      {all_to_allv, "pairwise", "exchange with one partner after the other",
       no, no, yes, yes, no, all_to_all_pairwise},
      {gather, "direct", "each rank writes its block into the root's output, directly",
       yes, yes, yes, yes, no, gather_direct},
      {gather, "one_shot", "all ranks publish, the root copies",
       yes, no, yes, yes, no, gather_one_shot},
      {gather, "linear", "each rank puts its block to the root",
       no, no, yes, yes, no, gather_linear},
      {scatter, "direct", "copy this rank's block of the root's input, directly",
       yes, yes, yes, yes, no, scatter_direct},
      {scatter, "one_shot", "the root publishes, each rank copies its block",
       yes, no, yes, yes, no, scatter_one_shot},
      {scatter, "linear", "the root puts each rank's block to it",
       no, no, yes, yes, no, scatter_linear},
      {barrier, "dissemination", "signals over doubling distances; log n steps",
       no, no, yes, yes, no, barrier_dissemination},
  };
  // clang-format on
  return rows;
}

std::string_view current_name(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kRenamed{
      {{"staged_direct", "linear"}, {"staged_one_shot", "put_one_shot"}, {"staged_two_shot", "put_two_shot"}}};
  static std::atomic<bool> said{false};
  for (const auto& [old, current] : kRenamed) {
    if (name != old) continue;
    if (!said.exchange(true))
      log::error("the algorithm {} is now called {}; the next release forgets the old name", old, current);
    return current;
  }
  return name;
}

const Algorithm* find(Collective collective, std::string_view name) {
  name = current_name(name);
  for (const Algorithm& algorithm : table()) {
    if (algorithm.collective == collective && algorithm.name == name) return &algorithm;
  }
  return nullptr;
}

bool serves(const Algorithm& algorithm, const PlanRequest& request) {
  if (algorithm.collective != request.collective || request.ranks < 1) return false;
  if (has_root(request.collective) ? request.root < 0 || request.root >= request.ranks : request.root != 0)
    return false;
  return request.host_of_rank.empty() || request.host_of_rank.size() == static_cast<std::size_t>(request.ranks);
}

}  // namespace tutti::algorithms
