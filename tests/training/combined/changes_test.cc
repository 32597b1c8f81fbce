// Changes that users make to a model, its gradients and their steps after the strategy was made: between two steps, on
// all ranks or on rank 1 alone. Each is right, or one sentence on every rank.
#include "tests/training/combined/changes.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/training/pipeline/pipeline_parts.h"
#include "training/ddp/ddp.h"
#include "training/fsdp/fsdp.h"
#include "training/tensor/gpt_tensor.h"

namespace tutti::training::changes_test {
namespace {

using Module = torch::nn::Module;

torch::Tensor named(Module& module, const std::string& name) { return module.named_parameters()[name]; }

// What a row expects beside words of a sentence.
constexpr const char* kRight = nullptr;            // what one process has
constexpr const char* kParts = "holds different";  // copies part unseen, until check_equal() is called
constexpr const char* kUnseen = "?";               // as kParts; nothing is expected
constexpr const char* kAsDdp = "";

struct Row {
  Change change;
  const char* all = kRight;
  const char* alone = kRight;
  const char* fsdp_all = kAsDdp;
  const char* fsdp_alone = kAsDdp;
  const char* zero3_alone = kAsDdp;
};

Change by(const char* name, std::function<void(Module&)> make) { return {.name = name, .make = std::move(make)}; }

void freeze(Module& net) { named(net, "first.bias").set_requires_grad(false); }
void freeze_all(Module& net) {
  for (torch::Tensor& parameter : net.parameters()) parameter.set_requires_grad(false);
}
void unfreeze(Module& net) { named(net, "fixed").set_requires_grad(true); }
void replace(Module& net) {
  OpenModule::parameters_of(*net.named_modules()["left"])["bias"] =
      torch::zeros({12}, torch::dtype(torch::kFloat64).requires_grad(true));
}
void to_f32(Module& net) { net.to(torch::kFloat32); }
void resize(Module& net) { named(net, "right.bias").set_data(torch::zeros({1, 12}, torch::kFloat64)); }
void tie(Module& net) { named(net, "right.weight").set_data(named(net, "left.weight")); }
void load(Module& net) { named(net, "left.bias").set_data(torch::ones({12}, torch::kFloat64)); }
void add_hook(Module& net) {
  named(net, "last.weight").register_hook([](const torch::Tensor& gradient) {
    return hooks_act ? gradient * 2 : gradient;
  });
}
void assign_buffer(Module& net) {  // what is registered stays
  auto& scale = dynamic_cast<ChangedNetImpl&>(net).scale;
  scale = scale.clone();
}
void add_buffer(Module& net) { net.register_buffer("added", torch::ones({3})); }
void set_buffer(Module& net) { net.buffers()[0].set_data(net.buffers()[0].clone()); }

void drop(torch::Tensor& held) { held.mutable_grad().reset(); }
void put_zeros(torch::Tensor& held) { held.mutable_grad() = torch::zeros_like(held); }

const char* const kAhead = "once more";
const char* const kOutside = "used parameters outside of its step";  // to() reads what has to be gathered
const char* const kDiffer = "the ranks' steps differ";
const Row kRows[] = {
    {by("freeze", freeze), "'first.bias' was frozen", "'first.bias' was frozen"},
    {by("freezeAll", freeze_all), "' was frozen", "rank 1: "},
    {by("unfreeze", unfreeze), "'fixed' was unfrozen", "'fixed' was unfrozen"},
    {by("float32", to_f32), "changed from Double to Float", "changed from Double to Float", kAsDdp, kAsDdp, kOutside},
    {by("bfloat16", [](Module& net) { net.to(torch::kBFloat16); }), "changed from Double to BFloat16",
     "changed from Double to BFloat16", kAsDdp, kAsDdp, kOutside},
    {{.name = "float32ZeroToNone", .make = to_f32, .zeroing = Zeroing::to_none},
     "changed from Double to Float",
     "changed from Double to Float",
     kAsDdp,
     kAsDdp,
     kOutside},
    {{.name = "resizeZeroToNone", .make = resize, .zeroing = Zeroing::to_none},
     "'right.bias' changed its shape",
     "'right.bias' changed its shape"},
    {by("replace", replace), "'left.bias' was replaced", "'left.bias' was replaced"},
    {by("resize", resize), "'right.bias' changed its shape", "'right.bias' changed its shape"},
    {by("tie", tie), "'right.weight' was given the memory of 'left.weight'",
     "'right.weight' was given the memory of 'left.weight'"},
    {by("load", load), kRight, kParts, "'left.bias' was given other memory", "'left.bias' was given other memory"},
    {by("hook", add_hook)},
    {by("assignBuffer", assign_buffer)},
    {by("addBuffer", add_buffer), "'added' was added", "'added' was added", kRight, kRight},
    {by("setBuffer", set_buffer)},
    {{.name = "zeroToNone", .zeroing = Zeroing::to_none}},
    {{.name = "zeroToZero", .zeroing = Zeroing::to_zero}},
    {{.name = "closure", .in_closure = true}},
    {{.name = "closureZeroToNone", .zeroing = Zeroing::to_none, .in_closure = true}},
    {{.name = "backwardTwice", .passes = 2, .of_one_graph = true}, kRight, kAhead, kRight, kDiffer},
    {{.name = "backwardTwiceZeroToNone", .zeroing = Zeroing::to_none, .passes = 2, .of_one_graph = true},
     kRight,
     kAhead,
     kRight,
     kDiffer},
    {{.name = "twoPasses", .passes = 2}, kRight, kAhead, kRight, kDiffer},
    {{.name = "dropGradient", .touch = drop}, kRight, kParts, kRight, kRight},
    {{.name = "putGradient", .touch = put_zeros}, kRight, kParts, kRight, kRight},
};

/// DistributedDataParallel, or FullyShardedDataParallel with a sharding.
struct Way {
  const char* name;
  std::optional<Sharding> sharding;
  UnusedParameters unused = UnusedParameters::refuse;
};
const Way kWays[] = {{"ddp", {}},
                     {"ddpFind", {}, UnusedParameters::find},
                     {"ddpFixed", {}, UnusedParameters::fixed},
                     {"zero1", Sharding::zero1},
                     {"zero2", Sharding::zero2},
                     {"zero3", Sharding::zero3}};

/// Makes a step, then the change where `changes`, then further steps.
void train(Module& net, Trainer& trainer, const Change& change, bool changes) {
  const Change none;
  make_step(trainer, none);
  if (changes) change.make(net);
  for (int step = 0; step < kStepsAfterChange; ++step) make_step(trainer, changes ? change : none);
}

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }
void PrintTo(const Row& row, std::ostream* out) { *out << row.change.name; }

struct Outcome {
  std::vector<std::string> errors;
  std::vector<Tensors> parameters;  // of each rank
};

void train_ddp(ChangedNet& net, Communicator comm, UnusedParameters unused, const torch::Tensor& x,
               const Change& change, bool changes, Tensors& result) {
  DdpOptions options;
  options.unused = unused;
  DistributedDataParallel ddp(*net, std::move(comm), options);
  torch::optim::SGD optimizer = changed_optimizer(net->parameters());
  const auto loss = [&] { return net->loss(x.to(net->first->weight.scalar_type())); };
  Trainer trainer{.backward = [&](const Change& now) { return run_backward(loss, now); },
                  .zero_grad = [&] { ddp.zero_grad(); },
                  .optimizer = optimizer};
  train(*net, trainer, change, changes);
  ddp.check_equal();
  for (const torch::Tensor& parameter : net->parameters()) result.push_back(parameter.detach().clone());
}

void train_fsdp(ChangedNet& net, Communicator comm, Sharding sharding, const torch::Tensor& x, const Change& change,
                bool changes, Tensors& result) {
  FsdpOptions options;
  options.sharding = sharding;
  FullyShardedDataParallel fsdp(*net, std::move(comm), options);
  torch::optim::SGD optimizer = changed_optimizer(fsdp.parameters());
  const auto loss = [&] { return net->loss(x.to(net->first->weight.scalar_type())); };
  Trainer trainer{.backward = [&](const Change& now) { return run_backward(loss, now); },
                  .zero_grad = [&] { fsdp.zero_grad(); },
                  .optimizer = optimizer};
  train(*net, trainer, change, changes);
  for (std::size_t i = 0; i < fsdp.parameters().size(); ++i) result.push_back(fsdp.full_parameter(i));
}

Outcome on_both(const Way& way, const Change& change, bool alone) {
  std::vector<ChangedNet> nets;
  Tensors rows;
  for (int rank = 0; rank < kChangedRanks; ++rank) {
    nets.push_back(changed_net());
    rows.push_back(changed_rows(rank));
  }
  Outcome outcome;
  outcome.parameters.resize(kChangedRanks);
  outcome.errors = on_ranks(
      kChangedRanks,
      [&](int rank, Communicator comm) {
        const auto i = static_cast<std::size_t>(rank);
        const bool changes = !alone || rank == 1;
        if (way.sharding) {
          train_fsdp(nets[i], std::move(comm), *way.sharding, rows[i], change, changes, outcome.parameters[i]);
        } else {
          train_ddp(nets[i], std::move(comm), way.unused, rows[i], change, changes, outcome.parameters[i]);
        }
      },
      short_options());
  return outcome;
}

/// One process on the whole batch. Rank 1 alone holds the lower half of a sharded parameter.
Tensors one_process(Change change, bool alone) {
  torch::set_num_threads(1);
  ChangedNet net = changed_net();
  torch::optim::SGD optimizer = changed_optimizer(net->parameters());
  const Tensors rows{changed_rows(0), changed_rows(1)};
  const auto backward = [&](const Change& now) {
    for (int rank = 0; rank < kChangedRanks; ++rank) {
      hooks_act = !alone || rank == 1;
      run_backward([&] { return net->loss(rows[static_cast<std::size_t>(rank)]) / kChangedRanks; }, now);
    }
    return torch::Tensor();
  };
  Trainer trainer{.backward = backward, .zero_grad = [&] { optimizer.zero_grad(); }, .optimizer = optimizer};
  if (alone && change.touch) {
    change.touch = [](torch::Tensor& held) { held.mutable_grad().narrow(0, 6, 6).zero_(); };
  }
  train(*net, trainer, change, /*changes=*/true);
  hooks_act = true;
  return net->parameters();
}

// Values are near 1 and each is a sum of fewer than 100 products in four steps: 400 * 2^-53 = 4e-14 at most.
constexpr double kTolerance = 1e-12;

void expect_close(const Tensors& a, const Tensors& b, double tolerance = kTolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_LT((a[i] - b[i]).abs().max().item<double>(), tolerance) << "parameter " << i;
  }
}

class WrappedChanges : public ::testing::TestWithParam<std::tuple<Way, Row>> {};

TEST_P(WrappedChanges, AreRightOrOneSentence) {
  const auto& [way, row] = GetParam();
  for (const bool alone : {false, true}) {
    SCOPED_TRACE(alone ? "on rank 1" : "on all ranks");
    const char* expected = alone ? row.alone : row.all;
    const char* const of_fsdp = alone ? row.fsdp_alone : row.fsdp_all;
    if (way.sharding && of_fsdp != kAsDdp) expected = of_fsdp;
    if (alone && way.sharding == Sharding::zero3 && row.zero3_alone != kAsDdp) expected = row.zero3_alone;
    const Outcome outcome = on_both(way, row.change, alone);
    if (expected != kRight) {
      expect_sentence(outcome.errors, expected);
      continue;
    }
    ASSERT_EQ(outcome.errors, nothing(kChangedRanks));
    const Tensors reference = one_process(row.change, alone);
    for (const Tensors& mine : outcome.parameters) expect_close(mine, reference);
  }
}

INSTANTIATE_TEST_SUITE_P(AfterWrapping, WrappedChanges,
                         ::testing::Combine(::testing::ValuesIn(kWays), ::testing::ValuesIn(kRows)),
                         [](const ::testing::TestParamInfo<std::tuple<Way, Row>>& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param).name,
                                              std::get<1>(info.param).change.name);
                         });

// Of what the optimiser of FullyShardedDataParallel holds.
TEST(ShardChanges, AreOneSentence) {
  const std::pair<const char*, std::function<void(torch::Tensor)>> changes[] = {
      {"rank 1: FullyShardedDataParallel: 'first.weight' has a shard that was frozen",
       [](torch::Tensor shard) { shard.set_requires_grad(false); }},
      {"rank 1: FullyShardedDataParallel: 'first.weight' has a shard that was given other memory",
       [](torch::Tensor shard) { shard.set_data(shard.detach().clone()); }},
      {"rank 1: FullyShardedDataParallel: 'first.weight' has a shard that was given a hook",
       [](torch::Tensor shard) { shard.register_hook([](const torch::Tensor& gradient) { return gradient; }); }}};
  for (const auto& [sentence, make] : changes) {
    std::vector<ChangedNet> nets{changed_net(), changed_net()};
    const Tensors rows{changed_rows(0), changed_rows(1)};
    const auto errors = on_ranks(
        kChangedRanks,
        [&](int rank, Communicator comm) {
          const auto i = static_cast<std::size_t>(rank);
          FullyShardedDataParallel fsdp(*nets[i], std::move(comm));
          nets[i]->loss(rows[i]).backward();
          if (rank == 1) make(fsdp.parameters()[kTouched]);
          nets[i]->loss(rows[i]).backward();
        },
        short_options());
    expect_sentence(errors, sentence);
  }
}

// A pipeline holds no parameters, so each stage may change as in one process, to the bit.
struct PipelineRow {
  Change change;
  const char* all = kRight;
  const char* alone = kRight;
  bool forgets_shapes = false;
};
void PrintTo(const PipelineRow& row, std::ostream* out) { *out << row.change.name; }

void freeze_norm(Module& part) { named(part, "norm.bias").set_requires_grad(false); }
void unfreeze_frozen(Module& part) { named(part, "frozen").set_requires_grad(true); }
void to_f64(Module& part) { part.to(torch::kFloat64); }
void resize_bias(Module& part) {
  const torch::Tensor bias = named(part, "up.bias");
  bias.set_data(bias.detach().clone().unsqueeze(0));
}
void tie_norm(Module& part) { named(part, "norm.bias").set_data(named(part, "norm.weight")); }
void hook_scale(Module& part) {
  named(part, "scale").register_hook([](const torch::Tensor& gradient) { return gradient * 2; });
}
void replace_scale(Module& part) {
  auto& scale = dynamic_cast<PartImpl&>(part).scale;
  scale = torch::full({1}, 0.5F, torch::requires_grad());
  OpenModule::parameters_of(part)["scale"] = scale;
}

const PipelineRow kPipelineRows[] = {
    {by("freeze", freeze_norm)},
    {by("freezeAll", freeze_all)},
    {by("unfreeze", unfreeze_frozen)},
    {by("float64", to_f64), "gave Double [3, 5, 11] for micro-batch 0; expected Float", "rank 1: Pipeline: F1.0"},
    {by("float64Forgotten", to_f64), kRight, "rank 1: Pipeline: F1.0", /*forgets_shapes=*/true},
    {by("replace", replace_scale)},
    {by("resize", resize_bias)},
    {by("tie", tie_norm)},
    {by("hook", hook_scale)},
    {{.name = "zeroToNone", .zeroing = Zeroing::to_none}},
    {{.name = "zeroToZero", .zeroing = Zeroing::to_zero}},
    {{.name = "closure", .in_closure = true}},
    {{.name = "twoRuns", .passes = 2}, kRight, "rank 1"},
    {{.name = "dropGradient", .touch = drop}},
};

constexpr int kMicroBatches = 3;

/// One process with an optimiser for each part.
void train_parts(std::vector<Part>& parts, const Batches& batches, const PipelineRow& row, bool alone) {
  torch::set_num_threads(1);
  std::vector<torch::optim::SGD> optimizers;
  for (Part& part : parts) optimizers.push_back(changed_optimizer(part->parameters()));
  const auto is_trained = [](const Part& part) {
    const Tensors all = part->parameters();
    return std::any_of(all.begin(), all.end(), [](const torch::Tensor& each) { return each.requires_grad(); });
  };
  for (int step = 0; step <= kStepsAfterChange; ++step) {
    const Change change = step == 0 ? Change{} : row.change;
    for (torch::optim::SGD& optimizer : optimizers) optimizer.zero_grad();
    for (int pass = 0; pass < change.passes && std::any_of(parts.begin(), parts.end(), is_trained); ++pass) {
      accumulate_parts(parts, batches, token_loss());
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const bool changes = !alone || i == 1;
      if (changes && change.touch) change.touch(optimizers[i].param_groups()[0].params()[kTouched]);
      optimizers[i].step();
      if (changes && step == 0) row.change.make(*parts[i]);
    }
  }
}

void train_stage(Part& part, Pipeline& pipeline, const Batches& batches, const PipelineRow& row, bool changes) {
  torch::optim::SGD optimizer = changed_optimizer(part->parameters());
  std::int64_t step = 0;
  const auto backward = [&](const Change& now) {
    for (int run = 0; run < now.passes; ++run) pipeline.run(batches.inputs, batches.targets, {.step = step});
    ++step;
    return torch::Tensor();
  };
  Trainer trainer{.backward = backward, .zero_grad = [&] { optimizer.zero_grad(); }, .optimizer = optimizer};
  make_step(trainer, {});
  if (changes) row.change.make(*part);
  if (row.forgets_shapes) pipeline.forget_shapes();
  for (int i = 0; i < kStepsAfterChange; ++i) make_step(trainer, changes ? row.change : Change{});
}

class PipelineChanges : public ::testing::TestWithParam<PipelineRow> {};

TEST_P(PipelineChanges, AreRightOrOneSentence) {
  const PipelineRow& row = GetParam();
  const Schedule schedule = one_forward_one_backward(kChangedRanks, kMicroBatches);
  const Batches batches = make_batches(kMicroBatches);
  for (const bool alone : {false, true}) {
    SCOPED_TRACE(alone ? "on rank 1" : "on all ranks");
    std::vector<Part> parts = make_parts(kChangedRanks), references = make_parts(kChangedRanks);
    const auto errors = on_ranks(
        kChangedRanks,
        [&](int rank, Communicator comm) {
          Pipeline pipeline(stages_of(parts, schedule, rank), comm, schedule, token_loss());
          train_stage(parts[static_cast<std::size_t>(rank)], pipeline, batches, row, !alone || rank == 1);
        },
        short_options());
    if (const char* words = alone ? row.alone : row.all; words != kRight) {
      expect_sentence(errors, words);
      continue;
    }
    ASSERT_EQ(errors, nothing(kChangedRanks));
    train_parts(references, batches, row, alone);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Tensors mine = parts[i]->parameters(), theirs = references[i]->parameters();
      for (std::size_t p = 0; p < mine.size(); ++p) EXPECT_TRUE(torch::equal(mine[p], theirs[p])) << i << " " << p;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AfterWrapping, PipelineChanges, ::testing::ValuesIn(kPipelineRows),
                         [](const auto& info) { return std::string(info.param.change.name); });

// Of a parameter that stages share.
TEST(TiedChanges, OnOneSharerAreOneSentence) {
  const std::pair<const char*, std::function<void(Module&)>> changes[] = {
      {"is not alike on rank 1 of its sharers", [](Module& part) { named(part, "scale").set_requires_grad(false); }},
      {"is not alike on rank 1 of its sharers",
       [](Module& part) { named(part, "scale").set_data(torch::ones({1}, torch::kFloat64)); }},
      {"is not alike on rank 1 of its sharers",
       [](Module& part) {
         named(part, "scale").set_data(torch::ones({1, 1}));
       }},
      {"rank 1: Pipeline: run: the tied parameter 'scale' was replaced", replace_scale}};
  const Schedule schedule = one_forward_one_backward(kChangedRanks, kMicroBatches);
  const Batches batches = make_batches(kMicroBatches);
  for (const auto& [sentence, make] : changes) {
    std::vector<Part> parts = make_parts(kChangedRanks);
    const auto errors = on_ranks(
        kChangedRanks,
        [&](int rank, Communicator comm) {
          Part& part = parts[static_cast<std::size_t>(rank)];
          Pipeline pipeline(stages_of(parts, schedule, rank), comm, schedule, token_loss());
          pipeline.tie(part->scale, comm.split(0, rank));
          pipeline.run(batches.inputs, batches.targets);
          if (rank == 1) make(*part);
          part->zero_grad();
          pipeline.run(batches.inputs, batches.targets);
        },
        short_options());
    expect_sentence(errors, sentence);
  }
}

/// Names of a parameter in the tensor parallel model, and in the whole one.
struct Names {
  const char* of_ranks;
  const char* whole;
};
constexpr Names kCut{"block0.mlp.in.weight", "block0.mlp_in.weight"};
constexpr Names kCopied{"block0.norm_mlp_weight", "block0.norm_mlp.weight"};
constexpr Names kCopiedBias{"block0.norm_mlp_bias", "block0.norm_mlp.bias"};

struct TensorRow {
  Change change;  // of the ranks' models
  std::function<void(Module&)> of_whole = [](Module&) {};
  const char* all = kRight;
  const char* alone = kRight;
  double tolerance = kTolerance;
};
void PrintTo(const TensorRow& row, std::ostream* out) { *out << row.change.name; }

TensorRow tensor_row(const char* name, const std::function<void(Module&, bool whole)>& make, const char* all,
                     const char* alone, double tolerance = kTolerance) {
  return {by(name, [make](Module& model) { make(model, false); }), [make](Module& model) { make(model, true); }, all,
          alone, tolerance};
}

auto with(Names names, void (*change)(torch::Tensor)) {
  return [=](Module& model, bool whole) { change(named(model, whole ? names.whole : names.of_ranks)); };
}
void freeze_one(torch::Tensor parameter) { parameter.set_requires_grad(false); }
void resize_one(torch::Tensor parameter) { parameter.set_data(parameter.detach().clone().unsqueeze(0)); }
void double_gradient(torch::Tensor parameter) {
  parameter.register_hook([](const torch::Tensor& gradient) { return gradient * 2; });
}
void tie_copied(Module& model, bool whole) {
  const auto name = [&](Names names) { return whole ? names.whole : names.of_ranks; };
  named(model, name(kCopiedBias)).set_data(named(model, name(kCopied)));
}

const char* const kUnlikeCopied = "'block0.norm_mlp_weight' is not alike on rank 1 and on rank 0";
const TensorRow kTensorRows[] = {
    tensor_row("freezeCut", with(kCut, freeze_one), kRight, "'block0.mlp.in.weight' is not alike on rank 1"),
    tensor_row("freezeCopied", with(kCopied, freeze_one), kRight, kUnlikeCopied),
    // f32 has 2^-24 = 6e-8; some thousand roundings of values near 1, of which most cancel.
    tensor_row(
        "float32", [](Module& model, bool) { model.to(torch::kFloat32); }, kRight, "is not alike on rank 1", 1e-5),
    tensor_row("resizeCopied", with(kCopied, resize_one), "TensorParallelGpt::loss", kUnlikeCopied),
    tensor_row("tieCopied", tie_copied, kRight, "'block0.norm_mlp_bias' is not alike on rank 1 and on rank 0"),
    tensor_row("hookCut", with(kCut, double_gradient), kRight, kUnseen),
    tensor_row("hookCopied", with(kCopied, double_gradient), kRight, kUnseen),
    {{.name = "zeroToZero", .zeroing = Zeroing::to_zero}},
    {{.name = "closure", .in_closure = true}},
    {{.name = "backwardTwice", .passes = 2, .of_one_graph = true}, [](Module&) {}, kRight, "called all_"},
    {{.name = "twoPasses", .passes = 2}, [](Module&) {}, kRight, kUnseen},
};

Gpt changed_gpt() {
  torch::manual_seed(4);
  GptConfig config;
  config.layers = 1;
  config.heads = 2;
  config.width = 8;
  config.context = 6;
  config.vocabulary = 11;
  Gpt gpt(config);
  gpt->to(torch::kFloat64);
  return gpt;
}

template <class Model>
void train_gpt(Model& model, const Tensors& batch, const Change& change, bool changes) {
  torch::optim::SGD optimizer = changed_optimizer(model->parameters());
  const auto loss = [&] { return model->loss(batch[0], batch[1]); };
  Trainer trainer{.backward = [&](const Change& now) { return run_backward(loss, now); },
                  .zero_grad = [&] { optimizer.zero_grad(); },
                  .optimizer = optimizer};
  train(*model, trainer, change, changes);
}

class TensorChanges : public ::testing::TestWithParam<std::tuple<bool, TensorRow>> {};

TEST_P(TensorChanges, AreRightOrOneSentence) {
  const auto& [sequence, row] = GetParam();
  torch::manual_seed(5);
  const Tensors batch{torch::randint(11, {2, 6}), torch::randint(11, {2, 6})};
  for (const bool alone : {false, true}) {
    SCOPED_TRACE(alone ? "on rank 1" : "on all ranks");
    const char* const expected = alone ? row.alone : row.all;
    if (expected == kUnseen) continue;
    std::vector<Gpt> wholes{changed_gpt(), changed_gpt()};
    const auto errors = on_ranks(
        kChangedRanks,
        [&](int rank, Communicator comm) {
          Gpt& whole = wholes[static_cast<std::size_t>(rank)];
          TensorParallelGpt model(whole, comm, TensorParallelOptions{.sequence_parallel = sequence});
          train_gpt(model, batch, row.change, !alone || rank == 1);
          model->store(whole);
        },
        short_options());
    if (expected != kRight) {
      expect_sentence(errors, expected);
      continue;
    }
    ASSERT_EQ(errors, nothing(kChangedRanks));
    Gpt reference = changed_gpt();
    Change change = row.change;
    change.make = row.of_whole;
    train_gpt(reference, batch, change, /*changes=*/true);
    for (const Gpt& whole : wholes) expect_close(whole->parameters(), reference->parameters(), row.tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(AfterWrapping, TensorChanges,
                         ::testing::Combine(::testing::Bool(), ::testing::ValuesIn(kTensorRows)),
                         [](const ::testing::TestParamInfo<std::tuple<bool, TensorRow>>& info) {
                           return fmt::format("{}{}", std::get<0>(info.param) ? "sequence_" : "",
                                              std::get<1>(info.param).change.name);
                         });

}  // namespace
}  // namespace tutti::training::changes_test
