// Random numbers under tensor parallelism: where all ranks hold the same activations they must draw the same numbers,
// where each holds its own part they must draw different ones.
//
//   RandomStates states(seed, comm.rank());
//   {
//     const auto guard = states.use(RandomRegion::inside);          // each rank its own: dropout of its own heads
//     y = torch::dropout(y, 0.1, training);
//   }
//   { const auto guard = states.use(RandomRegion::outside); ... }   // the same on every rank
//
// How: the object keeps two generators, seeded with `seed` (outside) and with `seed + 2718 + rank` (inside), the
//   constant of Megatron-LM (megatron/core/tensor_parallel/random.py). While a guard lives, torch's default CPU
//   generator has the state of one of them; then that one goes on from where the default one stopped, which gets back
//   what it had.
// Computing a part again with the same numbers (checkpoint.h): CheckpointOptions{.default_generators = false,
//   .generators = states.generators()}.
// Threads: the default generator is one for the whole process. Guards of all threads exclude each other, so ranks may
//   be threads of one process; a guard must hence not live across a collective call (the others might wait for the
//   guard while it waits for them). A thread that draws without a guard takes its numbers from whatever is in place.
// Errors: invalid_argument when a thread that holds a guard asks for another.
// Limits: CPU. A CUDA generator is not touched: ranks on CUDA are processes, where each seeds its own device.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <mutex>
#include <vector>

namespace tutti::training {

enum class RandomRegion : std::uint8_t { outside, inside };

class RandomStates {
 public:
  static constexpr std::uint64_t kInsideOffset = 2718;

  RandomStates(std::uint64_t seed, int rank);
  RandomStates(const RandomStates&) = delete;  // two that draw the same numbers would be a mistake
  RandomStates& operator=(const RandomStates&) = delete;

  class Guard {
   public:
    explicit Guard(at::Generator generator);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    std::unique_lock<std::mutex> lock_;
    at::Generator generator_;
    torch::Tensor before_;
  };
  [[nodiscard]] Guard use(RandomRegion region);
  /// Outside, inside. Their states may be read and set while no guard lives.
  std::vector<at::Generator> generators() const { return {outside_, inside_}; }

 private:
  at::Generator outside_, inside_;
};

}  // namespace tutti::training
