// Loader: threads that make the next batches while the model works on this one.
//
//   Loader<Batch> loader([&](std::uint64_t number) { return sampler.batch(number, first_row, rows); }, {.end = steps});
//   while (std::optional<Batch> batch = loader.next()) train_on(*batch);     // batches 0, 1, 2, ... in this order
//   saved = loader.position();           // later: {.begin = saved, .end = steps} goes on with the same batches
//
// The function makes a batch from its number alone, so any thread may make any batch. With a DistributedSampler:
//   Loader<Batch> loader([&](std::uint64_t number) { return make(sampler.peek(number, rows)->indices); },
//                        {.end = sampler.steps(rows)});
//   saved = sampler.state_after(loader.position(), rows);   // what was handed out, not what was read ahead
//   A loader over a sampler that was restored begins at 0: its batches are counted from where the sampler stands.
// How: batch k has place k % depth in a ring. Threads take numbers in order, at most `depth` past the consumer.
// Ownership: the function is kept; what it refers to must outlive the Loader. A batch is moved to the consumer.
// Errors: what the function throws for batch k, next() throws when it is k's turn: Error with "batch k: " before the
//   text (its code, or `system` when it was no tutti::Error), with the original nested in it (std::rethrow_if_nested).
//   Again at each further call: no batch is ever skipped.
// Threads: next() and position() by one thread at a time. The function is called by several threads at once (more than
//   one when options.threads is); torch's own random numbers in it would come in any order, so give it generators.
// End: the destructor waits for the batches being made, makes no new ones, and leaves no thread behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace tutti::training {

struct LoaderOptions {
  int threads = 1;
  std::size_t depth = 2;    // batches made or being made that were not handed out; also the most threads of use
  std::uint64_t begin = 0;  // number of the first batch
  std::uint64_t end = std::numeric_limits<std::uint64_t>::max();  // one past the last
};

/// The threads and their order, without the batches: Loader's base, not for direct use.
class Prefetcher {
 public:
  /// `make` puts batch `number` into `place` of the ring.
  using Make = std::function<void(std::uint64_t number, std::size_t place)>;
  Prefetcher(const LoaderOptions& options, Make make);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Waits for the next batch and says where it lies; none at the end. Throws what making it threw.
  std::optional<std::size_t> wait();
  /// The place has been emptied: goes on to the next batch.
  void release();
  std::uint64_t position() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

template <class Batch>
class Loader {
 public:
  using Make = std::function<Batch(std::uint64_t number)>;

  /// Starts the threads. Errors: threads or depth below 1, or begin past end.
  explicit Loader(Make make, const LoaderOptions& options = {})
      : ring_(options.depth),
        prefetcher_(options, [this, make = std::move(make)](std::uint64_t number, std::size_t place) {
          ring_[place].emplace(make(number));
        }) {}

  /// The next batch; none after the last.
  std::optional<Batch> next() {
    const std::optional<std::size_t> place = prefetcher_.wait();
    if (!place) return std::nullopt;
    std::optional<Batch> batch = std::move(ring_[*place]);
    ring_[*place].reset();
    prefetcher_.release();
    return batch;
  }

  /// Number of the batch that next() will give: `begin` plus the batches handed out.
  std::uint64_t position() const { return prefetcher_.position(); }

 private:
  std::vector<std::optional<Batch>> ring_;
  Prefetcher prefetcher_;  // last: its threads end before the ring goes
};

}  // namespace tutti::training
