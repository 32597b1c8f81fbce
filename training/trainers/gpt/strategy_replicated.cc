// Every data rank holds the whole model (or the whole of its slices): DistributedDataParallel.
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "training/ddp/ddp.h"
#include "training/trainers/gpt/rank_model.h"
#include "training/trainers/gpt/strategy.h"

namespace tutti::training {
namespace {

class Replicated : public Strategy {
 public:
  Replicated(const GptRunOptions& options, const Mesh& mesh)
      : options_(options),
        mesh_(mesh),
        model_(make_rank_model(options, mesh)),
        ddp_(*model_.module, mesh.data(), ddp_options()) {}

  float backward(const std::function<Batch(int micro)>& rows, GradScaler& scaler) override {
    return backward_passes(ddp_, model_, options_, rows, scaler);
  }

  std::vector<torch::Tensor> trained() const override { return parameters_in(*model_.module); }
  ClippedParameters clipped() const override {
    return count_once(*model_.module, parameters_of(*model_.module), mesh_);
  }
  void store(Gpt whole) override { model_.store(whole); }
  void check_equal() override { ddp_.check_equal(); }

  double wait_seconds() const override { return ddp_.stats().wait_seconds; }
  std::uint64_t bytes_sent() const override { return mesh_.traffic().bytes_put; }
  HeldBytes held() const override { return held_by(trained()); }

  ExpectedCost expected_cost() const override {
    const int layers = options_.model.layers + 2;
    const double elements = gpt_stage_elements(options_.model, 0, layers, options_.mesh.tp);
    DataParallelStep step;
    step.elements = elements;
    step.ranks = options_.mesh.data_ranks();
    step.reductions = options_.exchanges_every_pass() ? options_.passes() : 1;
    return {adam_state(ShardedState::none, elements, 1),
            data_parallel_bytes(step) + step_check_bytes(step) + tensor_bytes_sent(options_, 0, layers)};
  }

  std::vector<RepeatedCall> communication() const override {
    std::vector<RepeatedCall> calls = tensor_communication(options_, mesh_);
    if (mesh_.data().size() == 1) return calls;
    for (const Bucket& bucket : ddp_.buckets()) {
      calls.push_back({RepeatedCall::Kind::all_reduce, mesh_.data(), static_cast<double>(bucket.bytes()),
                       options_.exchanges_every_pass() ? static_cast<double>(options_.passes()) : 1.0});
    }
    return calls;
  }

 private:
  DdpOptions ddp_options() const {
    DdpOptions ddp;
    ddp.deterministic = options_.deterministic;
    return ddp;
  }

  GptRunOptions options_;
  Mesh mesh_;
  RankModel model_;
  DistributedDataParallel ddp_;
};

}  // namespace

std::unique_ptr<Strategy> make_replicated(const GptRunOptions& options, const Mesh& mesh) {
  return std::make_unique<Replicated>(options, mesh);
}

}  // namespace tutti::training
