// The one-process side of vision_run.h.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "training/trainers/vision/parts.h"

namespace tutti::training {
namespace {

using Tensors = std::vector<torch::Tensor>;

constexpr std::int64_t kTestRows = 256;  // of a forward pass

}  // namespace

VisionResult ddp_reference(const VisionRunOptions& options, const VisionData& data, int ranks) {
  const Stage model = make_trained_model(options, data);
  const Tensors parameters = model.module->parameters(), buffers = model.module->buffers();
  VisionLoader loader(data, loader_options(options, ranks, 0, ranks));
  VisionOptimizer optimizer(options, loader, parameters, {});
  VisionResult result{.losses_per_step = ranks};

  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    loader.begin(epoch);
    while (const std::optional<VisionRows> rows = loader.next()) {
      Tensors sum, first_buffers;
      for (std::size_t share = 0; share < rows->counts.size(); ++share) {
        for (torch::Tensor parameter : parameters) parameter.mutable_grad() = torch::zeros_like(parameter);
        result.losses.push_back(0);
        if (rows->counts[share] > 0) {
          result.losses.back() = pass_over(options, model, rows->batches[share], weight_of(*rows, share),
                                           [&](const torch::Tensor& part, bool) { optimizer.scale(part).backward(); });
        }
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          if (share == 0) {
            sum.push_back(parameters[i].grad());
          } else {
            sum[i].add_(parameters[i].grad());
          }
        }
        // In training nothing reads them, so the other shares may go on from there until the first's are put back.
        if (share > 0) continue;
        for (const torch::Tensor& buffer : buffers) first_buffers.push_back(buffer.clone());
      }
      for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(first_buffers[i]);
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        torch::Tensor parameter = parameters[i];
        parameter.mutable_grad() = sum[i].div_(ranks);
      }
      optimizer.step();
    }
  }
  result.state = state_of(*model.module);
  return result;
}

VisionResult pipeline_reference(const VisionRunOptions& options, const VisionData& data) {
  check_pipeline(options);
  const Stage model = make_trained_model(options, data);
  const PipelineLoss loss = summed_loss();
  VisionLoader loader(data, loader_options(options, options.micro_batches, 0, options.micro_batches));
  VisionOptimizer optimizer(options, loader, model.module->parameters(), {});
  VisionResult result;

  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    loader.begin(epoch);
    while (const std::optional<VisionRows> rows = loader.next()) {
      optimizer.zero_grad();
      double sum = 0;
      for (const ImageBatch& batch : rows->batches) {
        torch::Tensor output;
        {
          const PrecisionGuard guard(options.precision, options.device);
          output = model.forward(batch.input.to(options.device));
        }
        const torch::Tensor value =
            loss.value(output, batch.target.to(options.device)).div(static_cast<double>(rows->total));
        value.backward();
        sum += value.item<double>();
      }
      optimizer.step();
      result.losses.push_back(sum);
    }
  }
  result.state = state_of(*model.module);
  return result;
}

std::string first_difference(const VisionResult& run, const VisionResult& reference) {
  if (run.losses.size() != reference.losses.size()) {
    return fmt::format("{} losses with several ranks, {} in one process", run.losses.size(), reference.losses.size());
  }
  for (std::size_t i = 0; i < run.losses.size(); ++i) {
    if (std::memcmp(&run.losses[i], &reference.losses[i], sizeof(double)) == 0) continue;
    const auto per_step = static_cast<std::size_t>(run.losses_per_step);
    return fmt::format("at step {} loss {} of {} is {:.9g} with several ranks and {:.9g} in one process", i / per_step,
                       i % per_step + 1, per_step, run.losses[i], reference.losses[i]);
  }
  for (std::size_t i = 0; i < std::max(run.state.size(), reference.state.size()); ++i) {
    const bool both = i < run.state.size() && i < reference.state.size();
    if (both && run.state[i].nbytes() == reference.state[i].nbytes() &&
        std::memcmp(run.state[i].data_ptr(), reference.state[i].data_ptr(), run.state[i].nbytes()) == 0) {
      continue;
    }
    return fmt::format("the losses are the same bits; tensor {} of parameters and buffers is not", i);
  }
  return {};
}

double test_accuracy(const VisionRunOptions& options, const VisionData& data, const Tensors& state) {
  torch::NoGradGuard no_grad;
  const Stage model = make_vision_model(options.model, data);
  Tensors own = model.module->parameters();
  for (const torch::Tensor& buffer : model.module->buffers()) own.push_back(buffer);
  for (std::size_t i = 0; i < own.size(); ++i) own[i].copy_(state[i]);
  model.module->eval();
  std::int64_t right = 0;
  for (std::int64_t begin = 0; begin < data.test.count(); begin += kTestRows) {
    const std::int64_t end = std::min(begin + kTestRows, data.test.count());
    const torch::Tensor logits = model.forward(normalised(data.test.pixels.slice(0, begin, end), data.scale));
    right += logits.argmax(1).eq(data.test.labels.slice(0, begin, end)).sum().item<std::int64_t>();
  }
  return static_cast<double>(right) / static_cast<double>(data.test.count());
}

}  // namespace tutti::training
