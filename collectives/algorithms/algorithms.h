// The algorithms: one function each, in a file of its own (<collective>_<name>.cc) that reads like its textbook page.
// Use them through the table (table.h).
// Threads: pure; any.
// Limits: every function serves every number of ranks from 1 on.
#pragma once

#include <vector>

#include "collectives/plan/plan.h"

namespace tutti::algorithms {

struct PlanRequest {
  Collective collective = Collective::all_reduce;
  int ranks = 1;
  int root = 0;                   // of rooted collectives
  std::vector<int> host_of_rank;  // any numbers, equal on the same host; empty: all ranks on one host
};

plan::Plan all_reduce_one_shot(const PlanRequest& request);
plan::Plan all_reduce_two_shot(const PlanRequest& request);
plan::Plan all_reduce_put_one_shot(const PlanRequest& request);
plan::Plan all_reduce_put_two_shot(const PlanRequest& request);
plan::Plan all_reduce_published_two_shot(const PlanRequest& request);
plan::Plan all_reduce_ring(const PlanRequest& request);
plan::Plan all_reduce_recursive_doubling(const PlanRequest& request);
plan::Plan all_reduce_halving_doubling(const PlanRequest& request);
plan::Plan all_reduce_double_binary_tree(const PlanRequest& request);
plan::Plan all_reduce_hierarchical(const PlanRequest& request);

plan::Plan reduce_scatter_direct(const PlanRequest& request);
plan::Plan reduce_scatter_one_shot(const PlanRequest& request);
plan::Plan reduce_scatter_linear(const PlanRequest& request);
plan::Plan reduce_scatter_ring(const PlanRequest& request);
plan::Plan reduce_scatter_halving(const PlanRequest& request);
plan::Plan reduce_scatter_hierarchical(const PlanRequest& request);

plan::Plan all_gather_direct(const PlanRequest& request);
plan::Plan all_gather_one_shot(const PlanRequest& request);
plan::Plan all_gather_linear(const PlanRequest& request);
plan::Plan all_gather_ring(const PlanRequest& request);
plan::Plan all_gather_bruck(const PlanRequest& request);
plan::Plan all_gather_recursive_doubling(const PlanRequest& request);
plan::Plan all_gather_hierarchical(const PlanRequest& request);

plan::Plan broadcast_direct(const PlanRequest& request);
plan::Plan broadcast_one_shot(const PlanRequest& request);
plan::Plan broadcast_chain(const PlanRequest& request);
plan::Plan broadcast_double_binary_tree(const PlanRequest& request);
plan::Plan broadcast_hierarchical(const PlanRequest& request);

plan::Plan reduce_direct(const PlanRequest& request);
plan::Plan reduce_one_shot(const PlanRequest& request);
plan::Plan reduce_linear(const PlanRequest& request);
plan::Plan reduce_chain(const PlanRequest& request);
plan::Plan reduce_double_binary_tree(const PlanRequest& request);
plan::Plan reduce_hierarchical(const PlanRequest& request);

plan::Plan all_to_all_direct(const PlanRequest& request);
plan::Plan all_to_all_one_shot(const PlanRequest& request);
plan::Plan all_to_all_linear(const PlanRequest& request);
plan::Plan all_to_all_pairwise(const PlanRequest& request);
plan::Plan all_to_all_hierarchical(const PlanRequest& request);

plan::Plan gather_direct(const PlanRequest& request);
plan::Plan gather_one_shot(const PlanRequest& request);
plan::Plan gather_linear(const PlanRequest& request);

plan::Plan scatter_direct(const PlanRequest& request);
plan::Plan scatter_one_shot(const PlanRequest& request);
plan::Plan scatter_linear(const PlanRequest& request);

plan::Plan barrier_dissemination(const PlanRequest& request);

}  // namespace tutti::algorithms
