// How train_gpt trains, whoever does the work: the ranks of a mesh, or one process as their twin.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "training/data/text.h"
#include "training/precision/autocast.h"
#include "training/precision/grad_scaler.h"
#include "training/tensors.h"
#include "training/trainers/gpt_options.h"

namespace tutti::training {

/// The same parameters wherever it is called. On the CPU.
Gpt make_gpt(const GptRunOptions& options);

/// AdamW: weight decay for matrices, none for biases and norms.
torch::optim::AdamW make_optimizer(const std::vector<torch::Tensor>& trained);

/// Rises over the first tenth (100 steps at most), then falls along a cosine.
double learning_rate_at(const GptRunOptions& options, int step);
void set_learning_rate(torch::optim::Optimizer& optimizer, double rate);

/// Autocast as options.precision wants it, for as long as it lives.
class PrecisionGuard {
 public:
  PrecisionGuard(Precision precision, torch::Device device);

 private:
  std::optional<Autocast> autocast_;
};

/// Scales losses for fp16, does nothing else otherwise.
GradScaler make_scaler(Precision precision, std::vector<Communicator> communicators);

/// Of --precision's words.
Precision precision_of(const std::string& word);

/// Their mean, added in f64. On a device this waits for the last of them.
float mean_of(const std::vector<torch::Tensor>& losses);

/// The rows of data rank `data_rank` in micro-batch `micro` of a step, on the device of the options.
Batch rows_of(const GptRunOptions& options, const BatchSampler& sampler, int step, int micro, int data_rank);

}  // namespace tutti::training
