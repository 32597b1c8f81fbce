// The models of train_vision, and how a ViT is cut into the stages of a pipeline.
//
//   const Stage model = make_vision_model({.model = "resnet"}, data);          // a module and its forward
//   VisionPipeline parts = cut_vit({.model = "vit"}, data, schedule, comm);    // the same ViT, this rank's stages
//
// Parameters depend on the seed alone, so all ranks and the single-process reference begin with the same ones.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "training/pipeline/schedule.h"
#include "training/pipeline/stage.h"
#include "training/trainers/vision/data.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

struct VisionModelOptions {
  std::string model = "resnet";  // or "vit"
  int width = 0;                 // ResNet: of the first stage; ViT: of all blocks. 0: the model's own
  int depth = 0;                 // ResNet: blocks of each of three stages; ViT: blocks. 0: the model's own
  int heads = 4;                 // of a ViT
  int patch = 4;                 // of a ViT; must divide the images' side
  std::uint64_t seed = 1337;
};

/// Errors: invalid_argument (sizes that do not fit each other or the images).
Stage make_vision_model(const VisionModelOptions& options, const VisionData& data);

struct VisionPipeline {
  torch::nn::Sequential layers;        // of the whole model
  std::vector<std::size_t> cuts;       // stage s: layers [cuts[s], cuts[s + 1])
  std::vector<Stage> stages;           // this rank's; they share the layers' tensors
  std::vector<torch::Tensor> trained;  // this rank's parameters
};

/// Collective. Rank 0 measures each layer on `rows` rows and cuts so that the slowest stage is as fast as possible.
/// Errors: invalid_argument (as above; more stages than layers).
VisionPipeline cut_vit(const VisionModelOptions& options, const VisionData& data, const Schedule& schedule, int rows,
                       Communicator comm);

/// Collective. Gives every rank all stages' parameters.
void share_stages(VisionPipeline& pipeline, const Schedule& schedule, Communicator comm);

}  // namespace tutti::training
