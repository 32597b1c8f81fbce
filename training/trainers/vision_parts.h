// What the ranks of train_vision and its one-process twin have in common, so that they do the same arithmetic.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "training/pipeline/stage.h"
#include "training/trainers/vision_feed.h"
#include "training/trainers/vision_run.h"

namespace tutti::training {

inline VisionFeedOptions feed_options(const VisionRunOptions& options, int shares, int first, int count) {
  return {shares, first, count, static_cast<std::size_t>(options.batch), options.model.seed, options.end};
}

/// AdamW, and its falling learning rate.
class VisionOptimizer {
 public:
  VisionOptimizer(const VisionRunOptions& options, const VisionFeed& feed, std::vector<torch::Tensor> parameters)
      : highest_(options.learning_rate),
        steps_(options.epochs * feed.steps()),
        optimizer_(std::move(parameters), torch::optim::AdamWOptions(options.learning_rate)) {}

  void zero_grad() { optimizer_.zero_grad(); }
  double learning_rate() const { return highest_ * (steps_ - step_) / steps_; }
  void step();

 private:
  double highest_;
  int steps_, step_ = 0;
  torch::optim::AdamW optimizer_;
};

/// Copies of parameters, then buffers.
std::vector<torch::Tensor> state_of(const torch::nn::Module& module);

/// What a share's mean loss counts in the mean over shares, so that it becomes the mean over rows; as Join::weigh().
double weight_of(const VisionRows& rows, std::size_t share);

/// Of a pipeline: cross entropy summed over the rows, and their number.
PipelineLoss summed_loss();

/// Errors: invalid_argument for what a pipeline cannot do.
void check_pipeline(const VisionRunOptions& options);

}  // namespace tutti::training
