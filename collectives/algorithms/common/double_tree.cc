#include "collectives/algorithms/common/double_tree.h"

#include <algorithm>
#include <cstddef>

namespace tutti::algorithms {
namespace {

/// Returns the tree with position p replaced by name_of(p), in a list of `names` nodes.
template <class NameOf>
std::vector<TreeNode> renamed(const std::vector<TreeNode>& tree, int names, NameOf name_of) {
  std::vector<TreeNode> result(names);
  for (std::size_t position = 0; position < tree.size(); ++position) {
    TreeNode& node = result[name_of(static_cast<int>(position))];
    node.parent = tree[position].parent < 0 ? -1 : name_of(tree[position].parent);
    for (const int child : tree[position].children) node.children.push_back(name_of(child));
  }
  return result;
}

using Hosts = std::vector<std::vector<int>>;

int ranks_in(const Hosts& hosts) {
  std::size_t ranks = 0;
  for (const std::vector<int>& host : hosts) ranks += host.size();
  return static_cast<int>(ranks);
}

int head_of(const std::vector<int>& host, int half) { return half == 0 ? host.front() : host.back(); }

void hang(std::vector<TreeNode>& tree, int parent, int child) {
  tree[parent].children.push_back(child);
  tree[child].parent = parent;
}

/// Adds the trees over `hosts` with their chains.
void add_hosts(DoubleTree& result, const Hosts& hosts) {
  const DoubleTree over = double_tree(static_cast<int>(hosts.size()));
  for (int half = 0; half < 2; ++half) {
    std::vector<TreeNode>& tree = result.of_half[half];
    for (std::size_t h = 0; h < hosts.size(); ++h) {
      const int head = head_of(hosts[h], half);
      // Other hosts first: they are farther.
      for (const int child : over.of_half[half][h].children) hang(tree, head, head_of(hosts[child], half));
      std::vector<int> chain = hosts[h];
      if (half == 1) std::reverse(chain.begin(), chain.end());
      for (std::size_t i = 1; i < chain.size(); ++i) hang(tree, chain[i - 1], chain[i]);
    }
  }
}

int in_second_tree(int position, int n) { return n % 2 == 0 ? n - 1 - position : (position + 1) % n; }

}  // namespace

std::vector<TreeNode> in_order_tree(int n) {
  std::vector<TreeNode> tree(n);
  for (int position = 1; position < n; ++position) {
    // In an in-order numbering the lowest set bit is the height: a node hangs below the next higher bit, on the side
    // that its own bits say. Where that parent lies past the end, the subtree hangs one place further down.
    const int low = position & -position;
    const int parent = (position ^ low) | (low << 1);
    tree[position].parent = parent < n ? parent : position ^ low;
    tree[tree[position].parent].children.push_back(position);
  }
  return tree;
}

DoubleTree double_tree(int n) {
  const std::vector<TreeNode> tree = in_order_tree(n);
  return {{tree, renamed(tree, n, [&](int position) { return in_second_tree(position, n); })}};
}

DoubleTree double_tree_below(int root, int n) {
  const DoubleTree others = double_tree(n - 1);
  DoubleTree result;
  for (int half = 0; half < 2; ++half) {
    std::vector<TreeNode>& tree = result.of_half[half];
    tree = renamed(others.of_half[half], n, [&](int position) { return position < root ? position : position + 1; });
    for (int rank = 0; rank < n; ++rank) {
      if (rank == root || tree[rank].parent >= 0) continue;
      tree[rank].parent = root;
      tree[root].children.push_back(rank);
    }
  }
  return result;
}

DoubleTree double_tree(const std::vector<std::vector<int>>& hosts) {
  const int n = ranks_in(hosts);
  if (hosts.size() == 1) return double_tree(n);
  DoubleTree result{{std::vector<TreeNode>(n), std::vector<TreeNode>(n)}};
  add_hosts(result, hosts);
  return result;
}

DoubleTree double_tree_below(int root, const std::vector<std::vector<int>>& hosts) {
  const int n = ranks_in(hosts);
  if (hosts.size() == 1) return double_tree_below(root, n);
  Hosts others = hosts;
  const auto own = std::find_if(others.begin(), others.end(), [&](const std::vector<int>& host) {
    return std::find(host.begin(), host.end(), root) != host.end();
  });
  std::vector<int> chain = *own;
  std::rotate(chain.begin(), std::find(chain.begin(), chain.end(), root), chain.end());
  others.erase(own);
  DoubleTree result{{std::vector<TreeNode>(n), std::vector<TreeNode>(n)}};
  add_hosts(result, others);
  for (std::vector<TreeNode>& tree : result.of_half) {
    for (const std::vector<int>& host : others) {
      for (const int rank : host) {
        if (tree[rank].parent < 0) hang(tree, root, rank);
      }
    }
    for (std::size_t i = 1; i < chain.size(); ++i) hang(tree, chain[i - 1], chain[i]);
  }
  return result;
}

}  // namespace tutti::algorithms
