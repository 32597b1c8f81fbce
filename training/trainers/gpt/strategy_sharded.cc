// Data ranks share what they hold: ZeRO 1, 2 and 3 by FullyShardedDataParallel, replicated over mesh.dp() (hybrid).
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "training/fsdp/fsdp.h"
#include "training/trainers/gpt/rank_model.h"
#include "training/trainers/gpt/strategy.h"

namespace tutti::training {
namespace {

ShardedState state_of(Sharding sharding) {
  if (sharding == Sharding::zero1) return ShardedState::optimizer;
  return sharding == Sharding::zero2 ? ShardedState::gradients : ShardedState::parameters;
}

double elements_of(const UnitParameters& unit) {
  double sum = 0;
  for (const NamedTensor& item : unit.parameters) sum += static_cast<double>(item.tensor.numel());
  return sum;
}

class Sharded : public Strategy {
 public:
  Sharded(const GptRunOptions& options, const Mesh& mesh)
      : options_(options), mesh_(mesh), model_(make_rank_model(options, mesh)) {
    const FsdpOptions fsdp = fsdp_options();
    const std::vector<UnitParameters> units = plan_units(*model_.module, fsdp.units);
    // The root unit, and the last block: it is still whole when backward begins.
    kept_elements_ = elements_of(units.front()) + elements_of(units.back());
    fsdp_.emplace(*model_.module, mesh.fsdp(), fsdp);
  }

  float backward(const std::function<Batch(int micro)>& rows, GradScaler& scaler) override {
    const float loss = backward_passes(*fsdp_, model_, options_, rows, scaler);
    ++steps_;
    return loss;
  }

  std::vector<torch::Tensor> trained() const override { return fsdp_->parameters(); }
  ClippedParameters clipped() const override { return count_once(*model_.module, fsdp_->named_parameters(), mesh_); }
  void store(Gpt whole) override {
    const auto full = fsdp_->summon_full_parameters();
    model_.store(whole);
  }

  double wait_seconds() const override { return fsdp_->stats().wait_seconds; }
  std::uint64_t bytes_sent() const override {  // it has another communicator beside the mesh's
    return mesh_.traffic().bytes_put - mesh_.fsdp().traffic().bytes_put + fsdp_->traffic().bytes_put;
  }
  HeldBytes held() const override {
    const FsdpMemory memory = fsdp_->memory();
    return {memory.shards, memory.gradients, memory.peak_gathered, memory.padding};
  }

  ExpectedCost expected_cost() const override {
    const int layers = options_.model.layers + 2;
    const double elements = gpt_stage_elements(options_.model, 0, layers, options_.mesh.tp);
    DataParallelStep step;
    step.sharded = state_of(options_.sharding);
    step.elements = elements;
    step.unresharded = kept_elements_;
    step.ranks = options_.mesh.fsdp;
    step.passes = options_.passes();
    step.reductions = options_.exchanges_every_pass() ? options_.passes() : 1;
    const double replicas = step.reductions * all_reduce_bytes(4 * elements / options_.mesh.fsdp, options_.mesh.dp);
    return {adam_state(step.sharded, elements, options_.mesh.fsdp),
            data_parallel_bytes(step) + step_check_bytes(step) + replicas + tensor_bytes_sent(options_, 0, layers)};
  }

  std::vector<RepeatedCall> communication() const override {
    std::vector<RepeatedCall> calls = tensor_communication(options_, mesh_);
    const FsdpStats stats = fsdp_->stats();
    if (steps_ == 0) return calls;
    // Units differ in size; the calls repeated have their mean size.
    const auto add = [&](RepeatedCall::Kind kind, const Communicator& comm, std::uint64_t bytes, std::uint64_t times,
                         double share) {
      if (times == 0 || comm.size() == 1) return;
      calls.push_back({kind, comm, share * static_cast<double>(bytes) / static_cast<double>(times),
                       static_cast<double>(times) / static_cast<double>(steps_)});
    };
    add(RepeatedCall::Kind::all_gather, mesh_.fsdp(), stats.gathered_bytes, stats.gathers, 1);
    add(RepeatedCall::Kind::reduce_scatter, mesh_.fsdp(), stats.reduced_bytes, stats.reductions, 1);
    add(RepeatedCall::Kind::all_reduce, mesh_.dp(), stats.reduced_bytes, stats.reductions, 1.0 / options_.mesh.fsdp);
    return calls;
  }

 private:
  FsdpOptions fsdp_options() const {
    FsdpOptions fsdp;
    fsdp.sharding = options_.sharding;
    fsdp.deterministic = options_.deterministic;
    if (options_.mesh.dp > 1) fsdp.replicas = mesh_.dp();
    if (options_.offload) fsdp.compute_device = options_.device;
    return fsdp;
  }

  GptRunOptions options_;
  Mesh mesh_;
  RankModel model_;
  double kept_elements_ = 0;  // not gathered again for backward
  std::optional<FullyShardedDataParallel> fsdp_;
  std::uint64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<Strategy> make_sharded(const GptRunOptions& options, const Mesh& mesh) {
  return std::make_unique<Sharded>(options, mesh);
}

}  // namespace tutti::training
