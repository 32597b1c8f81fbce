#include "collectives/algorithms/double_tree.h"

namespace tutti::algorithms {
namespace {

/// The same tree with position p replaced by name_of(p), in a list of `names` nodes.
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

}  // namespace tutti::algorithms
