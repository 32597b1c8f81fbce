#include "training/trainers/vision/model.h"

#include <fmt/format.h>

#include "training/models/resnet.h"
#include "training/models/vit.h"
#include "training/pipeline/partition.h"
#include "training/streams.h"

namespace tutti::training {
namespace {

/// `make`, with what torch has against its sizes as our own error.
template <class Make>
auto with_named_errors(const VisionModelOptions& options, Make&& make) {
  torch::manual_seed(options.seed);
  try {
    return make();
  } catch (const c10::Error& error) {
    throw Error(Code::invalid_argument,
                fmt::format("train_vision: --model {}: {}", options.model, error.what_without_backtrace()));
  }
}

ResNet make_resnet(const VisionModelOptions& options, const VisionData& data) {
  ResNetConfig config{.channels = data.channels(), .classes = VisionData::kClasses};
  if (options.width > 0) config.widths = {options.width, 2 * options.width, 4 * options.width};
  if (options.depth > 0) config.blocks = options.depth;
  return with_named_errors(options, [&] { return ResNet(config); });
}

Vit make_vit(const VisionModelOptions& options, const VisionData& data) {
  VitConfig config{.side = data.side(), .channels = data.channels(), .patch = options.patch};
  config.classes = VisionData::kClasses;
  config.heads = options.heads;
  if (options.width > 0) config.width = options.width;
  if (options.depth > 0) config.layers = options.depth;
  return with_named_errors(options, [&] { return Vit(config); });
}

std::vector<std::size_t> measured_cuts(torch::nn::Sequential layers, const VisionData& data, int stages, int rows) {
  std::vector<Layer> functions;
  for (const torch::nn::AnyModule& layer : *layers) {
    functions.push_back([own = torch::nn::AnyModule(layer)](const torch::Tensor& x) mutable { return own.forward(x); });
  }
  const torch::Tensor images = torch::zeros({rows, data.channels(), data.side(), data.side()});
  const std::vector<double> costs = totals(measure_layers(functions, images));
  layers->zero_grad();
  return balanced_partition(costs, stages);
}

}  // namespace

Stage make_vision_model(const VisionModelOptions& options, const VisionData& data) {
  return options.model == "vit" ? make_stage(make_vit(options, data)) : make_stage(make_resnet(options, data));
}

VisionPipeline cut_vit(const VisionModelOptions& options, const VisionData& data, const Schedule& schedule, int rows,
                       Communicator comm) {
  VisionPipeline pipeline;
  pipeline.layers = make_vit(options, data)->layers();
  pipeline.cuts.resize(static_cast<std::size_t>(schedule.stages) + 1);
  if (comm.rank() == 0) pipeline.cuts = measured_cuts(pipeline.layers, data, schedule.stages, rows);
  comm.broadcast(pipeline.cuts.data(), pipeline.cuts.data(), pipeline.cuts.size() * sizeof(std::size_t), DataType::u8,
                 0);
  for (int stage = comm.rank(); stage < schedule.stages; stage += schedule.ranks) {
    torch::nn::Sequential part;
    for (std::size_t i = pipeline.cuts[static_cast<std::size_t>(stage)];
         i < pipeline.cuts[static_cast<std::size_t>(stage) + 1]; ++i) {
      part->push_back(*(pipeline.layers->begin() + static_cast<std::ptrdiff_t>(i)));
    }
    for (const torch::Tensor& parameter : part->parameters()) pipeline.trained.push_back(parameter);
    pipeline.stages.push_back(make_stage(part));
  }
  return pipeline;
}

void share_stages(VisionPipeline& pipeline, const Schedule& schedule, Communicator comm) {
  for (int stage = 0; stage < schedule.stages; ++stage) {
    for (std::size_t i = pipeline.cuts[static_cast<std::size_t>(stage)];
         i < pipeline.cuts[static_cast<std::size_t>(stage) + 1]; ++i) {
      for (const torch::Tensor& parameter : pipeline.layers->ptr(i)->parameters()) {
        comm.broadcast(parameter.data_ptr(), parameter.data_ptr(), parameter.nbytes(), DataType::u8,
                       schedule.rank_of(stage), in_stream_of(parameter));
      }
    }
  }
}

}  // namespace tutti::training
