// The command line of the benchmarks: nccl-tests' options, and a few of our own.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "perf/driver/memory.h"
#include "tutti/types.hpp"

namespace tutti::perf {

/// The process's exit status, as nccl-tests'.
enum class Exit : int {
  ok = 0,
  internal = 1,
  system = 2,      // there: CUDA
  collective = 3,  // there: NCCL
  timeout = 4,
  unsupported = 5,
  usage = 6,
  wrong_data = 7,  // or bandwidth below the floor
  bad_size = 255,  // there: -1
};

enum class Average : int { rank0 = 0, mean = 1, min = 2, max = 3 };

struct Settings {
  int threads = 1;  // ranks as threads of this process
  int ranks = 0;    // processes to start; 0: the environment's ranks
  std::size_t min_bytes = 8;
  std::size_t max_bytes = 4 << 20;
  std::size_t step_bytes = 1 << 20;
  int step_factor = 2;  // 1: steps of step_bytes
  int iters = 20;
  int agg_iters = 1;
  int warmup_iters = 1;
  int run_cycles = 1;  // 0: for ever
  int check = 1;       // iterations whose results are checked; 0: none
  std::vector<ReduceOp> ops{ReduceOp::sum};
  std::vector<DataType> types{DataType::f32};
  int root = 0;                          // -1: every rank in turn
  std::chrono::milliseconds timeout{0};  // 0: the communicator's default
  bool cpu_time = false;
  bool timestamps = false;
  std::string json_file;
  Average average = Average::mean;
  bool report_memory = false;
  std::size_t unalign = 0;  // elements by which the buffers are shifted
  bool per_iter = false;
  int per_iter_skip = 0;

  std::string backend = "tutti";
  MemoryKind memory = MemoryKind::registered;
  int graph_launches = 0;    // more than 0: the iterations are captured as a graph, which is launched so often
  bool null_stream = false;  // device memory: the legacy default stream
  std::string algorithm;
  bool deterministic = false;
  bool percentiles = false;
  bool cold = false;  // each iteration moves on through buffers of the largest size
  bool out_of_place = true;
  bool in_place = true;
  int parts = 1;           // at most; the median over them counts
  double row_seconds = 0;  // at least `iters` iterations, and as many as fill this time

  // As given, for what is only repeated in the output.
  int parallel_init = 0;
  int blocking = 0;
};

struct Parsed {
  Settings settings;
  std::optional<Exit> exit;  // set: print `message` and end
  std::string message;
};

/// Differences from nccl-tests: unknown options, operations and types are refused (there: exit status 0, or a default
/// in their place), and what concerns GPUs only is refused unless it asks for nothing.
Parsed parse_settings(int argc, const char* const* argv);

/// The sizes of the rows, in bytes: from min to max, multiplied or stepped.
std::vector<std::size_t> row_sizes(const Settings& settings);

/// nccl-tests' names: "float", "bfloat16", "int8"; and "sum", "mulsum".
const char* column_name(DataType type);
const char* column_name(ReduceOp op);

}  // namespace tutti::perf
