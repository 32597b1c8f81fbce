#include "training/trainers/gpt/strategy.h"

#include <fmt/format.h>

namespace tutti::training {

void check_options(const GptRunOptions& options) {
  const MeshShape& mesh = options.mesh;
  const auto refuse = [](const std::string& what) { throw Error(Code::invalid_argument, "train_gpt: " + what); };
  const auto want_positive = [&](const char* name, double value) {
    if (!(value > 0)) refuse(fmt::format("{} is {}; it must be above 0", name, value));
  };
  want_positive("steps", options.steps);
  want_positive("batch", options.batch);
  want_positive("accumulate", options.accumulate);
  want_positive("micro_batches", options.micro_batches);
  if (mesh.fsdp > 1 && mesh.pp > 1) {
    refuse(
        fmt::format("mesh {}: a pipeline's stages are not sharded; use dp in place of fsdp, or no pp", to_text(mesh)));
  }
  if (options.sequence_parallel && mesh.tp == 1) {
    refuse(fmt::format("sequence_parallel needs tensor parallelism; the mesh is {}", to_text(mesh)));
  }
  const bool interleaved = options.schedule == "interleaved";
  if (mesh.pp > 1) {
    if (interleaved != (options.stages_per_rank > 1)) {
      refuse(fmt::format("schedule {} with {} stages per rank; interleaved needs 2 or more, the others 1",
                         options.schedule, options.stages_per_rank));
    }
    if (interleaved && options.micro_batches % mesh.pp != 0) {
      refuse(fmt::format("schedule interleaved needs micro-batches that {} ranks divide; there are {}", mesh.pp,
                         options.micro_batches));
    }
    if (mesh.pp * options.stages_per_rank > options.model.layers + 2) {
      refuse(fmt::format("{} stages need as many layers; the model has {} (embedding, {} blocks, head)",
                         mesh.pp * options.stages_per_rank, options.model.layers + 2, options.model.layers));
    }
    if (options.exchange == Exchange::every_pass) {
      refuse("a pipeline exchanges gradients once per step; choose another exchange than every_pass");
    }
  }
  if (options.offload && (options.mesh.fsdp == 1 || options.sharding != Sharding::zero3)) {
    refuse("offload is of sharded parameters; it goes with fsdp over 2 ranks or more");
  }
  if (options.checkpoint_every < 0) refuse("checkpoint_every is negative; 0 is none, 1 is every block");
}

std::unique_ptr<Strategy> make_strategy(const GptRunOptions& options, const Mesh& mesh) {
  if (options.pipelined()) return make_pipeline(options, mesh);
  return mesh.shape().fsdp > 1 ? make_sharded(options, mesh) : make_replicated(options, mesh);
}

}  // namespace tutti::training
