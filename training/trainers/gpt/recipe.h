// How train_gpt trains: the same for the ranks of a mesh and for the single-process reference (reference.h).
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "training/data/text.h"
#include "training/trainers/gpt/options.h"

namespace tutti::training {

/// Returns a model on the CPU, with the same parameters on every rank.
Gpt make_gpt(const GptRunOptions& options);

/// Returns AdamW with weight decay for matrices, and none for biases and norms.
torch::optim::AdamW make_optimizer(const std::vector<torch::Tensor>& trained);

/// Returns the rate of a step: it rises over the first tenth (100 steps at most), then falls along a cosine.
double learning_rate_at(const GptRunOptions& options, int step);
void set_learning_rate(torch::optim::Optimizer& optimizer, double rate);

/// Returns the mean of the losses, added in f64. On a device this waits for the last of them.
float mean_of(const std::vector<torch::Tensor>& losses);

/// Returns the rows of data rank `data_rank` in micro-batch `micro` of a step, on the device of the options.
Batch rows_of(const GptRunOptions& options, const BatchSampler& sampler, int step, int micro, int data_rank);

}  // namespace tutti::training
