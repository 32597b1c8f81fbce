// What the ranks of train_vision and the single-process reference share, so that they do the same arithmetic.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "training/pipeline/stage.h"
#include "training/trainers/precision.h"
#include "training/trainers/vision/loader.h"
#include "training/trainers/vision/run.h"

namespace tutti::training {

inline VisionLoaderOptions loader_options(const VisionRunOptions& options, int shares, int first, int count) {
  const auto rows = static_cast<std::size_t>(options.batch) * static_cast<std::size_t>(options.accumulate);
  return {shares, first, count, rows, options.model.seed, options.end};
}

/// AdamW, its falling learning rate, and for fp16 the scale of losses, on which the ranks agree.
class VisionOptimizer {
 public:
  VisionOptimizer(const VisionRunOptions& options, const VisionLoader& loader, std::vector<torch::Tensor> parameters,
                  std::vector<Communicator> ranks)
      : highest_(options.learning_rate),
        steps_(options.epochs * loader.steps()),
        optimizer_(std::move(parameters), torch::optim::AdamWOptions(options.learning_rate)),
        scaler_(make_scaler(options.precision, std::move(ranks))) {}

  void zero_grad() { optimizer_.zero_grad(); }
  torch::Tensor scale(const torch::Tensor& loss) { return scaler_.scale(loss); }
  double learning_rate() const { return highest_ * (steps_ - step_) / steps_; }
  void step();

 private:
  double highest_;
  int steps_, step_ = 0;
  torch::optim::AdamW optimizer_;
  GradScaler scaler_;
};

/// The model, where it is trained.
Stage make_trained_model(const VisionRunOptions& options, const VisionData& data);

/// Forward and loss of a share's rows, in micro-batches; `backward` gets what each adds to `weight` times the mean loss
/// over the rows, and whether it is the last. Returns that mean.
double pass_over(const VisionRunOptions& options, const Stage& model, const ImageBatch& rows, double weight,
                 const std::function<void(const torch::Tensor& part, bool last)>& backward);

/// Copies of parameters, then buffers. On the CPU.
std::vector<torch::Tensor> state_of(const torch::nn::Module& module);

/// Returns the weight of a share's mean loss in the mean over shares, so that it becomes the mean over rows; as
/// Join::weigh().
double weight_of(const VisionRows& rows, std::size_t share);

/// Returns a pipeline's loss: cross entropy summed over the rows, and their number.
PipelineLoss summed_loss();

/// Errors: invalid_argument for what a pipeline cannot do.
void check_pipeline(const VisionRunOptions& options);

}  // namespace tutti::training
