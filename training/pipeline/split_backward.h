// Backward in two parts: first the gradient of a stage's input, which the rank before waits for, then the gradients of
// its parameters, for which no other rank waits (Qi et al., "Zero Bubble Pipeline Parallelism", 2023, section 2).
//
//   SplitBackward split;
//   Tensor g = split.run_input(output, input, gradient_of_output);   // parameters' .grad() untouched
//   ...
//   split.run_weights();                                             // adds to the parameters' .grad()
//
// How: the first part runs autograd on the path from output to input only, and keeps the gradients that arrive at each
//   node on this path where parameters join it; the second starts at these nodes and runs nothing but the branches to
//   the parameters. The arithmetic is that of one backward pass, and so are the bits.
// Not split: a parameter that joins the path at two nodes, or at an autograd function that is not LibTorch's own (such
//   a function may communicate, or compute a part again as a checkpoint does, and is run once). It gets its gradient
//   in the first part, which is added to .grad() in the second. When `input` is undefined or does not need a gradient
//   (first stage), the first part does nothing and the second is a whole backward.
// Hooks: those of parameters run once, in the second part.
// Memory: the graph and the kept gradients live until run_weights() has returned.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <utility>
#include <vector>

namespace tutti::training {

class SplitBackward {
 public:
  /// `gradient` may be undefined when `output` is a scalar. Returns the input's gradient; undefined when it has none.
  torch::Tensor run_input(const torch::Tensor& output, const torch::Tensor& input, const torch::Tensor& gradient);
  /// Runs the weights' part, once after run_input(). Drops the graph.
  void run_weights();

 private:
  struct Branch {  // one autograd pass of the second part
    torch::autograd::edge_list roots;
    torch::autograd::variable_list gradients;
    torch::autograd::edge_list parameters;
  };
  std::vector<Branch> branches_;
};

}  // namespace tutti::training
