#include "training/pipeline/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "training/abort.h"
#include "training/hash.h"
#include "training/pipeline/split_backward.h"
#include "training/pipeline/transfers.h"
#include "training/streams.h"
#include "training/tensors.h"

namespace tutti::training {
namespace {

// torch::chunk gives fewer parts where rows are few.
constexpr const char* kHowToCut = "; tensor_split(n) cuts into n parts, of one shape where n divides the rows";

using enum ActionKind;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool can_be_sent(const torch::Tensor& tensor) {
  return is_communicable(tensor) && floating_type_of(tensor).has_value() &&
         tensor.dim() <= static_cast<std::int64_t>(Transfers::kMaxDimensions);
}

/// The form that all copies of a tied parameter have in common.
std::string form_of(const torch::Tensor& parameter) {
  return to_text(shape_of(parameter)) + (parameter.requires_grad() ? " trained" : " frozen");
}

/// Collective. A hash of each rank's `text`; 0 for an empty one.
std::vector<std::uint64_t> hashes_of(Communicator& comm, const std::string& text) {
  const std::uint64_t mine = text.empty() ? 0 : ByteHash::of(text.data(), text.size());
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(comm.size()));
  comm.all_gather(&mine, hashes.data(), 1, DataType::u64);
  return hashes;
}

/// Returns the device of its parameters; the CPU for one without any.
c10::Device device_of_stage(const Stage& stage) {
  const std::vector<torch::Tensor> parameters =
      stage.module ? stage.module->parameters() : std::vector<torch::Tensor>();
  return parameters.empty() ? c10::Device(torch::kCPU) : parameters.front().device();
}

}  // namespace

struct Pipeline::State {
  struct Live {  // of a stage and a micro-batch
    torch::Tensor input, output;
    torch::Tensor output_gradient;  // from a next stage on this rank
    torch::Tensor input_gradient;   // until it is sent
    Transfers::Ticket activation = 0, gradient = 0;
    SplitBackward split;
  };
  struct Tied {
    torch::Tensor parameter;
    Communicator comm;
    std::string name;      // in its stage
    torch::Tensor before;  // the gradient at the start of the run
  };

  State(std::vector<Stage> given, Communicator communicator, Schedule plan, PipelineLoss loss_given)
      : comm(std::move(communicator)),
        rank(comm.rank()),
        stages(std::move(given)),
        schedule(std::move(plan)),
        loss(std::move(loss_given)),
        transfers(comm) {
    or_abort(comm, "Pipeline", [&] { check(); });  // the others wait for this rank's hash
    const std::string text =
        fmt::format("{} {} {}\n{}", schedule.ranks, schedule.stages, schedule.micro_batches, to_text(schedule));
    const std::vector<std::uint64_t> hashes = hashes_of(comm, text);
    for (std::size_t other = 1; other < hashes.size(); ++other) {
      if (hashes[other] == hashes[0]) continue;
      throw Error(Code::invalid_argument,
                  fmt::format("Pipeline: the schedule of rank {} differs from that of rank 0", other));
    }
    const auto splits = [](const Action& action) { return action.kind != forward && !is_transfer(action.kind); };
    for (const auto& list : schedule.actions) trains |= std::any_of(list.begin(), list.end(), splits);
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(Code::invalid_argument, fmt::format("rank {}: Pipeline: {}", rank, what));
  }

  void check() const {
    if (schedule.ranks != comm.size()) {
      fail(fmt::format("the schedule is for {} ranks, the communicator has {}", schedule.ranks, comm.size()));
    }
    simulate(schedule);
    const auto expected = static_cast<std::size_t>(schedule.stages / schedule.ranks);
    if (stages.size() != expected) {
      fail(fmt::format("{} stages were given; expected {} ({} stages on {} ranks)", stages.size(), expected,
                       schedule.stages, schedule.ranks));
    }
    for (std::size_t i = 0; i < stages.size(); ++i) {
      if (!stages[i].forward) fail(fmt::format("stages[{}] has no forward function", i));
    }
    if (has_stage(schedule.stages - 1) && !loss.value) fail("this rank has the last stage; expected a loss.value");
  }

  bool has_stage(int stage) const { return stage >= 0 && stage < schedule.stages && schedule.rank_of(stage) == rank; }
  bool is_first(int stage) const { return stage == 0; }
  bool is_last(int stage) const { return stage == schedule.stages - 1; }
  Live& live(int stage, int micro_batch) {
    const int own = stage / schedule.ranks;
    return lives[static_cast<std::size_t>(own * schedule.micro_batches + micro_batch)];
  }
  const Stage& stage(const Action& a) const { return stages[static_cast<std::size_t>(a.stage / schedule.ranks)]; }
  c10::Device device_of(const Action& a) const { return devices[static_cast<std::size_t>(a.stage / schedule.ranks)]; }
  const std::vector<Action>& list() const { return schedule.actions[static_cast<std::size_t>(rank)]; }

  // Everything from here on happens inside run().

  void check_batches() {
    const auto count = static_cast<std::size_t>(schedule.micro_batches);
    if (has_stage(0) && inputs->size() != count) {
      fail(fmt::format("run: {} micro-batches were given; expected {}, as in the schedule{}", inputs->size(), count,
                       kHowToCut));
    }
    if (!has_stage(schedule.stages - 1)) return;
    if (targets->size() != count) {
      fail(fmt::format("run: {} targets were given; expected {}, as in the schedule{}", targets->size(), count,
                       kHowToCut));
    }
    result.weight = 0;
    for (const torch::Tensor& target : *targets) result.weight += loss.weight ? loss.weight(target) : 1;
    if (total_weight == 0) total_weight = result.weight;
    if (!(total_weight > 0) || !std::isfinite(total_weight)) {
      fail(fmt::format("run: the weights of the targets sum to {}; expected more than 0", total_weight));
    }
  }

  void run_forward(const Action& a) {
    Live& here = live(a.stage, a.micro_batch);
    if (is_first(a.stage)) {
      here.input = (*inputs)[static_cast<std::size_t>(a.micro_batch)];
    } else {
      if (!has_stage(a.stage - 1)) here.input = transfers.take(here.activation).to(device_of(a));
      if (trains) here.input.requires_grad_(true);
    }
    here.output = stage(a).forward(here.input);
    result.peak_live = std::max(result.peak_live, ++live_count);
    if (is_last(a.stage)) {
      const torch::Tensor& target = (*targets)[static_cast<std::size_t>(a.micro_batch)];
      here.output = loss.value(here.output, target).div(total_weight);
      if (here.output.numel() != 1) fail(fmt::format("loss.value gave {} elements; expected 1", here.output.numel()));
      result.loss += here.output.item<double>();
    } else {
      check_output(a, here.output);
    }
    if (has_stage(a.stage + 1)) live(a.stage + 1, a.micro_batch).input = here.output.detach();
    if (!trains) {
      here.input.reset();
      if (is_last(a.stage) || has_stage(a.stage + 1)) here.output.reset();
      --live_count;
    }
  }

  void check_output(const Action& a, const torch::Tensor& output) const {
    if (!can_be_sent(output)) {
      fail(
          fmt::format("stage {} gave a tensor of type {} with {} dimensions on {} for micro-batch {}; expected a dense "
                      "tensor of f32, f64, f16 or bf16 of at most {} dimensions on the CPU or a CUDA device",
                      a.stage, c10::toString(output.scalar_type()), output.dim(), output.device().str(), a.micro_batch,
                      Transfers::kMaxDimensions));
    }
    const TensorShape* agreed = transfers.shape(a.stage);
    if (agreed == nullptr || *agreed == shape_of(output)) return;
    fail(fmt::format(
        "stage {} gave {} for micro-batch {}; expected {}, as for the first one; all micro-batches of a run have "
        "one shape, and forget_shapes() on all ranks lets the next run have another",
        a.stage, to_text(shape_of(output)), a.micro_batch, to_text(*agreed)));
  }

  torch::Tensor incoming_gradient(const Action& a, Live& here) {
    if (is_last(a.stage)) return {};
    if (has_stage(a.stage + 1)) return std::exchange(here.output_gradient, {});
    return transfers.take(here.gradient).to(here.output.device());
  }

  void hand_on(const Action& a, Live& here, torch::Tensor gradient) {
    if (is_first(a.stage)) return;
    if (!gradient.defined()) gradient = torch::zeros_like(here.input);  // the stage does not use its input
    if (has_stage(a.stage - 1)) {
      live(a.stage - 1, a.micro_batch).output_gradient = gradient;
    } else {
      here.input_gradient = gradient;
    }
  }

  void release(Live& here) {
    here.input.reset();
    here.output.reset();
    --live_count;
  }

  void run_backward(const Action& a) {
    Live& here = live(a.stage, a.micro_batch);
    const torch::Tensor gradient = incoming_gradient(a, here);
    if (here.output.requires_grad()) torch::autograd::backward({here.output}, {gradient});
    hand_on(a, here, is_first(a.stage) ? torch::Tensor() : here.input.grad());
    release(here);
  }

  void run_backward_input(const Action& a) {
    Live& here = live(a.stage, a.micro_batch);
    const torch::Tensor gradient = incoming_gradient(a, here);
    const torch::Tensor input = is_first(a.stage) ? torch::Tensor() : here.input;
    hand_on(a, here, here.split.run_input(here.output, input, gradient));
  }

  void run_backward_weight(const Action& a) {
    Live& here = live(a.stage, a.micro_batch);
    here.split.run_weights();
    release(here);
  }

  void act(const Action& a) {
    Live& here = live(a.stage, a.micro_batch);
    const int peer = is_transfer(a.kind) ? schedule.peer_of(a) : rank;
    switch (a.kind) {
      case send_activation:
        transfers.send(here.output, a.stage, peer);
        if (!trains) here.output.reset();
        return;
      case recv_activation: here.activation = transfers.recv(a.stage - 1, peer); return;
      case send_gradient: transfers.send(std::exchange(here.input_gradient, {}), a.stage - 1, peer); return;
      case recv_gradient: here.gradient = transfers.recv(a.stage, peer); return;
      default: break;
    }
    wait_for_input(a, here);
    const double start = now_seconds();
    switch (a.kind) {
      case forward: run_forward(a); break;
      case backward: run_backward(a); break;
      case backward_input: run_backward_input(a); break;
      default: run_backward_weight(a); break;
    }
    wait_for(device_of(a));
    result.measured.push_back({a, start, now_seconds()});
  }

  /// Waits for an action's input, so that its measured time holds no waiting.
  void wait_for_input(const Action& a, const Live& here) {
    if (a.kind == forward) {
      if (!is_first(a.stage) && !has_stage(a.stage - 1)) transfers.wait(here.activation);
    } else if (a.kind != backward_weight && !is_last(a.stage) && !has_stage(a.stage + 1)) {
      transfers.wait(here.gradient);
    }
  }

  /// Returns its name in this rank's stages; empty: it has none.
  std::string name_of(const torch::Tensor& parameter) const {
    for (const Stage& each : stages) {
      if (!each.module) continue;
      for (const NamedTensor& item : parameters_of(*each.module)) {
        if (item.tensor.is_same(parameter)) return item.name;
      }
    }
    return {};
  }

  /// A sharer that has frozen or converted its copy would leave the others waiting; one whose stage has another
  /// parameter by now would train that one alone.
  void expect_alike(Tied& tied) {
    if (!tied.name.empty() && name_of(tied.parameter).empty()) {
      fail(
          fmt::format("run: the tied parameter '{}' was replaced or removed after tie(); expected it to stay in its "
                      "stage",
                      tied.name));
    }
    const std::string mine = form_of(tied.parameter);
    const std::vector<std::uint64_t> of_ranks = hashes_of(tied.comm, mine);
    for (std::size_t other = 1; other < of_ranks.size(); ++other) {
      if (of_ranks[other] == of_ranks[0]) continue;
      throw Error(Code::mismatch,
                  fmt::format("a tied parameter is not alike on rank {} of its sharers and on rank 0 "
                              "(here {}); expected it to be of one type and shape, and frozen on all or none",
                              other, mine));
    }
  }

  /// Sets aside what earlier runs have added, so that only this run's part is summed over the sharers.
  void begin_tied() {
    for (Tied& tied : ties) {
      expect_alike(tied);
      if (!tied.parameter.requires_grad()) continue;  // frozen, on all of them
      torch::Tensor& gradient = tied.parameter.mutable_grad();
      tied.before = gradient.defined() ? gradient.clone() : torch::Tensor();
      if (gradient.defined()) gradient.zero_();
    }
  }

  void end_tied() {
    CallOptions in_rank_order;
    in_rank_order.deterministic = true;
    for (Tied& tied : ties) {
      torch::Tensor& gradient = tied.parameter.mutable_grad();
      if (!tied.parameter.requires_grad()) continue;  // frozen, on all of them
      if (!gradient.defined()) gradient = torch::zeros_like(tied.parameter);
      torch::Tensor sum = gradient.contiguous();
      tied.comm.all_reduce(sum.data_ptr(), sum.data_ptr(), count_of(sum), *floating_type_of(sum), ReduceOp::sum,
                           in_stream_of(sum, in_rank_order));
      if (!sum.is_same(gradient)) gradient.copy_(sum);
      if (tied.before.defined()) gradient.add_(tied.before);
      tied.before.reset();
    }
  }

  void run() {
    torch::AutoGradMode mode(trains);
    devices.clear();
    for (const Stage& each : stages) devices.push_back(device_of_stage(each));
    check_batches();
    if (trains) {
      torch::NoGradGuard no_grad;
      begin_tied();
    }
    for (const Action& action : list()) {
      current = &action;
      act(action);
    }
    current = nullptr;
    transfers.finish();
    if (trains) {
      torch::NoGradGuard no_grad;
      end_tied();
    }
    add_up();
  }

  /// Collective. The loss and its weight are zeros from all but the last stage's rank. No rank leaves before all have
  /// come so far, so all fail if one does.
  void add_up() {
    struct Part {
      double loss, weight, step;
    };
    const Part mine{result.loss, result.weight, static_cast<double>(step)};
    std::vector<Part> parts(static_cast<std::size_t>(comm.size()));
    comm.all_gather(&mine, parts.data(), sizeof(Part) / sizeof(double), DataType::f64);
    result.loss = result.weight = 0;
    for (std::size_t other = 0; other < parts.size(); ++other) {
      if (parts[other].step != parts[0].step) {
        throw Error(Code::mismatch, fmt::format("the step of rank {} is {}, that of rank 0 is {}", other,
                                                parts[other].step, parts[0].step));
      }
      result.loss += parts[other].loss;
      result.weight += parts[other].weight;
    }
  }

  /// Aborts the communicators, in a catch block: the others wait for tensors that this rank will not send.
  [[noreturn]] void bring_down() {
    std::vector<Communicator> all{comm};
    for (const Tied& tied : ties) all.push_back(tied.comm);
    const std::string action = current == nullptr
                                   ? "run"
                                   : fmt::format("{} (stage {}, micro-batch {}) failed", to_text(*current),
                                                 current->stage, current->micro_batch);
    try {
      rethrow_on_all(all, "Pipeline: " + action);
    } catch (...) {
      transfers.abandon();
      lives.clear();
      throw;
    }
  }

  Communicator comm;
  const int rank;
  std::vector<Stage> stages;
  const Schedule schedule;
  PipelineLoss loss;
  bool trains = false;  // the schedule has backwards
  Transfers transfers;
  std::vector<Tied> ties;

  // Of the run under way.
  const std::vector<torch::Tensor>* inputs = nullptr;
  const std::vector<torch::Tensor>* targets = nullptr;
  double total_weight = 0;
  std::int64_t step = 0;
  std::vector<Live> lives;           // by own stage, then micro-batch
  std::vector<c10::Device> devices;  // of this rank's stages
  int live_count = 0;
  const Action* current = nullptr;
  PipelineRun result;
};

Pipeline::Pipeline(std::vector<Stage> stages, Communicator communicator, Schedule schedule, PipelineLoss loss)
    : state_(
          std::make_unique<State>(std::move(stages), std::move(communicator), std::move(schedule), std::move(loss))) {}
Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

void Pipeline::tie(torch::Tensor parameter, Communicator sharers) {
  const bool usable = can_be_sent(parameter) && parameter.is_contiguous();
  const std::vector<std::uint64_t> hashes = hashes_of(sharers, usable ? form_of(parameter) : std::string());
  for (std::size_t other = 0; other < hashes.size(); ++other) {
    if (hashes[other] != 0 && hashes[other] == hashes[0]) continue;
    throw Error(Code::invalid_argument,
                fmt::format("Pipeline: tie: the parameter of rank {} of the sharers is not a contiguous tensor of "
                            "f32, f64, f16 or bf16 with rank 0's shape, type and requires_grad",
                            other));
  }
  sharers.broadcast(parameter.data_ptr(), parameter.data_ptr(), parameter.nbytes(), DataType::u8, 0,
                    in_stream_of(parameter));
  state_->ties.push_back({parameter, std::move(sharers), state_->name_of(parameter), {}});
}

PipelineRun Pipeline::run(const std::vector<torch::Tensor>& micro_batches, const std::vector<torch::Tensor>& targets,
                          const PipelineRunOptions& options) {
  State& s = *state_;
  s.inputs = &micro_batches;
  s.targets = &targets;
  s.total_weight = options.total_weight;
  s.step = options.step;
  s.lives.assign(s.stages.size() * static_cast<std::size_t>(s.schedule.micro_batches), {});
  s.live_count = 0;
  s.current = nullptr;
  s.result = {};
  try {
    s.run();
  } catch (const std::exception&) {
    s.bring_down();
  }
  s.lives.clear();
  return std::exchange(s.result, {});
}

void Pipeline::forget_shapes() { state_->transfers.forget_shapes(); }
const Schedule& Pipeline::schedule() const { return state_->schedule; }

}  // namespace tutti::training
