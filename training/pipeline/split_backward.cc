#include "training/pipeline/split_backward.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>

#include "training/gradient_hooks.h"

namespace tutti::training {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;
using NodePtr = decltype(Edge::function);  // which smart pointer depends on LibTorch's version

variable_list execute(const edge_list& roots, const variable_list& gradients, bool accumulate,
                      const edge_list& outputs) {
  return torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/true,
                                                               /*create_graph=*/false, accumulate, outputs);
}

const torch::autograd::AccumulateGrad* as_leaf(const Node* node) {
  return dynamic_cast<const torch::autograd::AccumulateGrad*>(node);
}
bool takes_gradient(const Node* node) { return as_leaf(node) != nullptr; }

/// LibTorch's own operators are; a user's autograd function is not, and may do more than calculate.
bool may_run_twice(const Node& node) { return const_cast<Node&>(node).is_traceable(); }

/// All nodes from `root` on, each behind the nodes that it leads to.
std::vector<NodePtr> nodes_from(const NodePtr& root) {
  std::vector<NodePtr> order;
  std::unordered_set<const Node*> seen{root.get()};
  std::vector<std::pair<NodePtr, std::size_t>> stack{{root, 0}};  // and its next edge
  while (!stack.empty()) {
    auto& [node, edge] = stack.back();
    if (edge == node->next_edges().size()) {
      order.push_back(node);
      stack.pop_back();
      continue;
    }
    const NodePtr next = node->next_edges()[edge++].function;
    if (next != nullptr && seen.insert(next.get()).second) stack.emplace_back(next, 0);
  }
  return order;
}

}  // namespace

torch::Tensor SplitBackward::run_input(const torch::Tensor& output, const torch::Tensor& input,
                                       const torch::Tensor& gradient) {
  branches_.clear();
  if (!output.requires_grad()) return {};
  const torch::Tensor start = gradient.defined() ? gradient : torch::ones_like(output);
  const Edge root = torch::autograd::impl::gradient_edge(output);
  const std::vector<NodePtr> order = nodes_from(root.function);
  const bool wanted = input.defined() && input.requires_grad();
  const Edge goal = wanted ? torch::autograd::impl::gradient_edge(input) : Edge();

  std::unordered_set<const Node*> path;  // nodes that lead to the input
  if (wanted) path.insert(goal.function.get());
  for (const NodePtr& node : order) {
    for (const Edge& edge : node->next_edges()) {
      if (edge.function != nullptr && path.contains(edge.function.get())) path.insert(node.get());
    }
  }
  if (!path.contains(root.function.get())) {  // nothing that the rank before could wait for
    Branch all{{root}, {start}, {}};
    for (const NodePtr& node : order) {
      if (takes_gradient(node.get())) all.parameters.emplace_back(node, 0);
    }
    branches_.push_back(std::move(all));
    return {};
  }

  struct Joint {
    NodePtr node;
    std::vector<NodePtr> parameters;
  };
  std::vector<Joint> joints;
  std::unordered_map<const Node*, int> joints_of;  // how many a parameter has
  for (auto node = order.rbegin(); node != order.rend(); ++node) {
    if (!path.contains(node->get())) continue;
    Joint joint{*node, {}};
    std::unordered_set<const Node*> mine;
    for (const Edge& edge : (*node)->next_edges()) {
      if (edge.function == nullptr || path.contains(edge.function.get())) continue;
      for (const NodePtr& leaf : nodes_from(edge.function)) {
        if (takes_gradient(leaf.get()) && mine.insert(leaf.get()).second) joint.parameters.push_back(leaf);
      }
    }
    for (const NodePtr& leaf : joint.parameters) ++joints_of[leaf.get()];
    if (!joint.parameters.empty()) joints.push_back(std::move(joint));
  }

  edge_list wanted_edges{goal};
  std::vector<NodePtr> not_split;  // parameters
  std::vector<torch::Tensor> without_hooks;
  for (Joint& joint : joints) {
    Branch branch;
    for (const NodePtr& leaf : joint.parameters) {
      if (joints_of[leaf.get()] == 1 && may_run_twice(*joint.node)) {
        branch.parameters.emplace_back(leaf, 0);
      } else if (joints_of[leaf.get()] > 0) {
        not_split.push_back(leaf);
        without_hooks.push_back(as_leaf(leaf.get())->variable);
        joints_of[leaf.get()] = 0;
      }
    }
    if (branch.parameters.empty()) continue;
    for (std::uint32_t i = 0; i < joint.node->num_inputs(); ++i) branch.roots.emplace_back(joint.node, i);
    wanted_edges.insert(wanted_edges.end(), branch.roots.begin(), branch.roots.end());
    branches_.push_back(std::move(branch));
  }
  for (const NodePtr& leaf : not_split) {
    wanted_edges.emplace_back(leaf, 0);
    branches_.push_back({{Edge(leaf, 0)}, {}, {Edge(leaf, 0)}});
  }

  variable_list found;
  {
    const WithoutGradientHooks none(without_hooks);  // the second part runs them
    found = execute({root}, {start}, /*accumulate=*/false, wanted_edges);
  }
  std::size_t next = 1;
  for (Branch& branch : branches_) {
    edge_list roots;
    for (const Edge& edge : branch.roots) {
      const torch::Tensor& arrived = found[next++];
      if (!arrived.defined()) continue;  // an output of the node that nothing uses
      roots.push_back(edge);
      branch.gradients.push_back(arrived);
    }
    branch.roots = std::move(roots);
  }
  return found[0];
}

void SplitBackward::run_weights() {
  for (Branch& branch : branches_) {
    if (!branch.roots.empty()) execute(branch.roots, branch.gradients, /*accumulate=*/true, branch.parameters);
    branch = {};
  }
  branches_.clear();
}

}  // namespace tutti::training
