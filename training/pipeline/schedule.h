// What each rank of a pipeline does, and when: a schedule is data. Made by a builder, checked and timed by simulate()
// (simulator.h), run by Pipeline (pipeline.h).
//
//   Schedule schedule = one_forward_one_backward(/*ranks=*/4, /*micro_batches=*/8);
//   fmt::print("{}", to_text(schedule));   // one line for each rank: F0.0 SA0.0 F0.1 ...
//   Simulation simulation = simulate(schedule);
//
// Stages: numbered along the model; stage s lies on rank s % ranks. With more stages than ranks, each rank holds v =
//   stages / ranks of them (interleaved).
// Sends and receives: actions, too. Builders give the order of the calculations; add_transfers() derives the rest.
//   One communicator runs a rank's transfers one after the other, in the order of its list, and each transfer
//   waits for its other side. So all ranks' lists must agree with one order of all transfers. That order is by the time
//   at which each tensor is ready when F = I = W = 1 and B = 2; a receive goes before the calculation during which its
//   tensor becomes ready, so that it never makes the sender wait for the receiver's arithmetic.
// Order of accumulation: every builder runs the backward parts (B or W) of each stage in the order of its
//   micro-batches, so all of them add gradients in the same order as one process that runs micro-batch after
//   micro-batch.
// Errors: invalid_argument.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::training {

enum class ActionKind : std::uint8_t {
  forward,          // F
  backward,         // B: gradients of the stage's input and of its parameters
  backward_input,   // I: of its input
  backward_weight,  // W: of its parameters
  send_activation,  // SA: the stage's output, to the next stage's rank
  recv_activation,  // RA: the stage's input, from the rank of the stage before
  send_gradient,    // SG: of the stage's input, to the rank of the stage before
  recv_gradient,    // RG: of the stage's output, from the next stage's rank
};
inline constexpr int kActionKinds = 8;

constexpr bool is_transfer(ActionKind kind) { return kind >= ActionKind::send_activation; }
constexpr bool is_send(ActionKind kind) {
  return kind == ActionKind::send_activation || kind == ActionKind::send_gradient;
}

struct Action {
  ActionKind kind;
  int stage;
  int micro_batch;
  bool operator==(const Action&) const = default;
};

struct Schedule {
  std::string name;
  int ranks = 1;
  int stages = 1;  // a multiple of ranks
  int micro_batches = 1;
  std::vector<std::vector<Action>> actions;  // of each rank, in its order

  int rank_of(int stage) const { return stage % ranks; }
  /// The rank at the other end of a transfer.
  int peer_of(const Action& action) const;
};

/// All forwards, then all backwards (Huang et al., "GPipe", 2019). Holds all micro-batches' activations.
Schedule gpipe(int ranks, int micro_batches);

/// One forward, one backward after a warm-up of p-r-1 forwards on rank r (Narayanan et al., "PipeDream", 2019, in the
/// synchronous form of Megatron-LM, 2021, section 2.2.1). Holds min(m, p-r) activations.
Schedule one_forward_one_backward(int ranks, int micro_batches);

/// 1F1B with v stages on each rank; the idle share of an ideal run falls to (p-1)/(v m) (Narayanan et al.,
/// "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021, section 2.2.2). Warm-up of
/// 2(p-r-1) + (v-1)p forwards. `micro_batches` is a multiple of `ranks`.
Schedule interleaved(int ranks, int micro_batches, int stages_per_rank);

/// ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", 2023, section 3.1). Backward is split in I and W. Rank r's W
/// runs r micro-batches behind its I, so no rank holds more than p activations. W fills what 1F1B's drain leaves idle.
/// With m >= p and F = I = W, the idle part is (p-1)/3m of the ideal time.
Schedule zero_bubble_h1(int ranks, int micro_batches);

/// "gpipe", "1f1b", "interleaved" or "zb-h1"; `stages_per_rank` counts for "interleaved" only (1 elsewhere).
Schedule make_schedule(std::string_view name, int ranks, int micro_batches, int stages_per_rank = 1);

/// Forwards only, for evaluation.
Schedule forward_only(int ranks, int micro_batches, int stages_per_rank = 1);

/// `schedule` with its transfers put into lists that hold calculations only. Errors: lists that wait for each other.
Schedule add_transfers(Schedule schedule);

/// "F", "SA", ...
const char* name_of(ActionKind kind);
/// "F2.5": forward of stage 2, micro-batch 5.
std::string to_text(const Action& action);
/// One line for each rank.
std::string to_text(const Schedule& schedule);

}  // namespace tutti::training
