// What a benchmark has to say about its collective: sizes, data, the call. One short file per collective implements it.
#pragma once

#include <cstddef>
#include <vector>

#include "perf/driver/pattern.h"
#include "tutti/tutti.hpp"

namespace tutti::perf {

/// Elements per rank: of the send buffer, of the receive buffer, and what the call is given as `count`.
struct Elements {
  std::size_t send = 0;
  std::size_t recv = 0;
  std::size_t count = 0;
};

/// The ranks of a row.
struct Place {
  int rank = 0;
  int ranks = 1;
  int root = 0;
};

/// A stretch of a buffer and the data in it: what `source` gives from position `phase` on.
struct Block {
  std::size_t offset = 0;  // elements
  std::size_t count = 0;
  int source = 0;  // a rank, or Pattern::kReduced
  std::size_t phase = 0;
};

/// The arguments of one call.
struct Arguments {
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  Place place;
  CallOptions options;
};

class PerfCollective {
 public:
  virtual ~PerfCollective() = default;
  virtual const char* name() const = 0;
  virtual bool reduces() const { return false; }
  virtual bool rooted() const { return false; }
  virtual bool has_in_place() const { return true; }

  /// `total` is a row's size in elements.
  virtual Elements elements(std::size_t total, int ranks, std::size_t type_bytes) const = 0;
  /// Bus bandwidth over algorithm bandwidth (nccl-tests' doc/PERFORMANCE.md).
  virtual double bus_factor(int ranks) const = 0;

  /// The contents of the send buffer before the call and of the receive buffer after it.
  virtual std::vector<Block> sent(const Place& place, std::size_t count) const = 0;
  virtual std::vector<Block> received(const Place& place, std::size_t count) const = 0;

  /// In place: where the send and the receive buffer begin in the one buffer, in elements.
  virtual std::size_t in_place_send(const Place&, std::size_t) const { return 0; }
  virtual std::size_t in_place_recv(const Place&, std::size_t) const { return 0; }

  virtual void run(Communicator& comm, const Arguments& arguments) const = 0;
};

/// Elements per rank when `total` is shared out: rounded down to whole 16 bytes, as nccl-tests does.
inline std::size_t share_of(std::size_t total, int ranks, std::size_t type_bytes) {
  const std::size_t granule = 16 / type_bytes;
  return total / static_cast<std::size_t>(ranks) / granule * granule;
}

/// (n - 1) / n: the shares of all ranks move except a rank's own.
inline double all_but_own(int ranks) { return static_cast<double>(ranks - 1) / ranks; }

/// The program: reads the command line, starts ranks if asked to, measures, reports. Returns the exit status.
int perf_main(int argc, char** argv, const PerfCollective& collective);

}  // namespace tutti::perf
