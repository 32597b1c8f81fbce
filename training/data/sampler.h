// DistributedSampler: which samples of a data set each rank works on, in which order. An epoch shows every sample once,
// over all ranks together, in an order that depends on (seed, epoch) alone.
//
//   DistributedSampler sampler(data.size(), comm.rank(), comm.size(), {.seed = 1});
//   for (std::uint64_t epoch = 0; epoch < 10; ++epoch) {
//     sampler.set_epoch(epoch);                                // begins it, at position 0
//     while (auto step = sampler.next(32)) {                   // at most 32 rows for each rank
//       const double weight = comm.size() / double(step->total);
//       (loss_sum(step->indices) * weight).backward();         // DDP's mean of these is the loss of all / total
//     }
//   }
//   saved = sampler.state();                                   // with the checkpoint
//
// A run that goes on, on any number of ranks, has the same loop:
//   sampler.restore(saved);
//   for (std::uint64_t epoch = saved.epoch; epoch < 10; ++epoch) {
//     sampler.set_epoch(epoch);                                // goes on where the state was taken
//     ...
//
// How: the epoch is one sequence. A step takes the next ranks * rows samples of it; rank r gets the r-th part. So one
//   process that takes ranks * rows samples sees exactly what the ranks saw together, and a position in the sequence
//   is all that a resumed run needs, on whatever number of ranks: it goes on with exactly the samples not yet seen.
// Order: a keyed bijection of 0..N-1, so no memory and no work beyond the samples asked for: a balanced Feistel network
//   of 24 rounds on the smallest power of two >= N, walked until the value is below N (Black, Rogaway: "Ciphers with
//   arbitrary finite domains", CT-RSA 2002).
// The last step of an epoch may have fewer than ranks * rows samples left. EpochEnd says what becomes of them.
// Errors: tutti::Error, invalid_argument, naming the rank.
// Threads: const calls from any number of threads at once; they are what a Loader uses.
// Limits: at most 2^62 samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tutti::training {

enum class EpochEnd {
  uneven,  // shares of the last step differ by at most one, the first ranks have the larger ones; a share may be empty
  pad,     // the epoch is filled up from its own start until all ranks have the same number, as PyTorch's sampler does
  drop,    // the last samples, fewer than ranks, are left out, so that all ranks have the same number
};

struct SamplerOptions {
  std::uint64_t seed = 0;
  bool shuffle = true;
  EpochEnd end = EpochEnd::uneven;
};

/// One step of all ranks, seen from one of them.
struct SamplerStep {
  std::vector<std::int64_t> indices;  // this rank's samples; with EpochEnd::pad the repeated ones come last
  std::vector<std::size_t> counts;    // by rank: its samples, without the repeated ones
  std::size_t total = 0;              // sum of counts
};

/// The position of a run, in plain numbers, to be stored with a checkpoint.
struct SamplerState {
  std::uint64_t samples = 0;  // in the data set
  std::uint64_t seed = 0;
  bool shuffle = true;
  std::uint64_t epoch = 0;
  std::uint64_t position = 0;  // samples of the epoch that all ranks together have taken
  int ranks = 0;               // that took them; for the record, restore() takes any number
  bool operator==(const SamplerState&) const = default;
};

class DistributedSampler {
 public:
  DistributedSampler(std::uint64_t samples, int rank, int ranks, const SamplerOptions& options = {});

  /// Begins that epoch. Without it, every epoch has the order of the first. The first call behind restore(), with the
  /// epoch of the state, keeps its position.
  void set_epoch(std::uint64_t epoch);

  /// The next step of at most `rows` samples for each rank, the same `rows` on all of them; none when the epoch has
  /// ended. All ranks get the same number of steps.
  std::optional<SamplerStep> next(std::size_t rows);

  /// Returns what next() would return after `ahead` more steps, without moving.
  std::optional<SamplerStep> peek(std::uint64_t ahead, std::size_t rows) const;
  /// Steps that are left in this epoch.
  std::uint64_t steps(std::size_t rows) const;

  SamplerState state() const { return state_after(0, 1); }
  /// state() as it will be after `steps` more steps: for a Loader, which reads ahead of what was trained on.
  SamplerState state_after(std::uint64_t steps, std::size_t rows) const;
  /// Takes over seed, shuffle, epoch and position. Errors: the state is of another number of samples.
  void restore(const SamplerState& state);

 private:
  std::uint64_t position_after(std::uint64_t steps, std::size_t rows) const;
  std::uint64_t sample_at(std::uint64_t place) const;
  std::uint64_t step_size(std::size_t rows) const;
  void check_rows(std::size_t rows) const;

  std::uint64_t samples_;
  std::uint64_t rank_, ranks_;
  SamplerOptions options_;
  std::uint64_t epoch_ = 0;
  std::uint64_t position_ = 0;
  bool is_restored_ = false;  // and not used since
};

/// Returns the place of `index` in a shuffle of 0..size-1 that `key` picks: a bijection. REQUIRES: index < size <=
/// 2^62.
std::uint64_t shuffled(std::uint64_t index, std::uint64_t size, std::uint64_t key);

}  // namespace tutti::training
