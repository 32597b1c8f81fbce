// Two binary trees over the same ranks, each for one half of the data, such that (nearly) every rank is inner node in
// one and leaf in the other: all links are used both ways. Sanders, Speck, Träff, "Two-tree algorithms for full
// bandwidth broadcast, reduction and scan", Parallel Computing 35 (2009).
#pragma once

#include <vector>

namespace tutti::algorithms {

struct TreeNode {
  int parent = -1;  // -1: the root of its tree
  std::vector<int> children;
};

/// A tree over positions 0..n-1, rooted at 0; odd positions are leaves; depth at most 1 + ceil(log2 n).
std::vector<TreeNode> in_order_tree(int n);

struct DoubleTree {
  std::vector<TreeNode> of_half[2];  // index: rank
};

/// Both trees over all ranks: the second is the first with its ranks mirrored (n even) or shifted by one (n odd).
DoubleTree double_tree(int n);

/// Both trees hang below `root`: it feeds the top of each tree over the n - 1 other ranks. REQUIRES: n >= 2.
DoubleTree double_tree_below(int root, int n);

/// Both trees where the ranks are on several hosts: they are over the hosts, and in each host a chain through its
/// ranks hangs below the one that talks to other hosts. The second tree runs through the chains the other way, so that
/// another rank of each host talks. `hosts`: the ranks of each, in the order of the chain. One host: as above.
DoubleTree double_tree(const std::vector<std::vector<int>>& hosts);
/// The host of `root` is a chain from it on. REQUIRES: two ranks or more.
DoubleTree double_tree_below(int root, const std::vector<std::vector<int>>& hosts);

}  // namespace tutti::algorithms
