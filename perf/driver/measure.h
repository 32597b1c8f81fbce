// One row of a benchmark: warm up, time, check; the figures of all ranks put together.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "perf/driver/collective.h"
#include "perf/driver/gpu.h"
#include "perf/driver/memory.h"
#include "perf/driver/settings.h"

namespace tutti::perf {

/// The subject of a measurement.
struct RowKey {
  std::size_t bytes = 0;  // as asked for; the row's size may be less, where shares are rounded
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
};

/// Times of single iterations in microseconds, each by its slowest rank.
struct Spread {
  std::vector<double> times_us;
  double min = 0, max = 0, mean = 0, p50 = 0, p95 = 0, p99 = 0, stdev = 0;
};
/// Sorted copy inside; percentiles by nearest rank. Pure.
Spread spread_of(std::vector<double> times_us);
/// Returns the median over `parts` parts of a measurement, each part over ranks. `times` are rank by rank. Pure.
double median_of_parts(const std::vector<double>& times, std::size_t parts, Average average);

/// Out of place or in place.
struct Half {
  bool measured = false;
  double time_us = 0;              // per call, over ranks as -a says
  double algorithm_bandwidth = 0;  // GB/s, 1e9 bytes
  double bus_bandwidth = 0;
  bool checked = false;
  std::size_t wrong = 0;  // elements, over all ranks
  int iterations = 0;
  std::string algorithm;  // that the last timed call ran
  Spread spread;          // empty unless asked for
};

struct Row {
  std::size_t size = 0;   // bytes
  std::size_t count = 0;  // elements, as the call is given
  RowKey key;
  Half out_of_place;
  Half in_place;
};

/// The ranks' buffers and the loop around the call. Every rank makes the same calls in the same order.
class Bench {
 public:
  /// `place`: of this rank among those of its host; device memory is on a GPU of that number.
  Bench(const Settings& settings, const PerfCollective& collective, Communicator& comm, int place = 0);

  /// The row is the same on all ranks. Throws tutti::Error.
  Row measure(const RowKey& key);

 private:
  struct Loop;
  void time(Loop& loop, Half& half);
  void run_half(const RowKey& key, const Elements& elements, bool in_place, Half& half);
  void check(Loop& loop, Half& half);
  int choose_iterations(Loop& loop);
  void finish();  // what is in the stream
  void time_graph(Loop& loop, Half& half);
  /// `parts`: microseconds per call in each, on this rank; `times`: of each iteration, empty unless asked for.
  void take(Half& half, const std::vector<double>& parts, std::vector<double> times);
  void fill(char* to, unsigned char value, std::size_t bytes);

  double clock_us() const;
  std::vector<double> gather(double mine);
  /// median_of_parts() with those of the other ranks.
  double over_parts(const std::vector<double>& mine);

  const Settings& settings_;
  const PerfCollective& collective_;
  Communicator& comm_;
  std::unique_ptr<Gpu> gpu_;  // device memory only; before the memory, which is its
  std::size_t buffer_bytes_ = 0;
  std::vector<char> staged_;  // what is made or looked at on the host
  Memory send_;
  Memory recv_;
};

}  // namespace tutti::perf
