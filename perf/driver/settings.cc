#include "perf/driver/settings.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/option_checks.h"
#include "base/parse.h"
#include "launch/launch_local.h"

namespace tutti::perf {
namespace {

constexpr std::array<const char*, kDataTypes> kTypeNames = {"int8", "uint8",    "int32", "uint32", "int64",  "uint64",
                                                            "half", "bfloat16", "float", "double", "f8e4m3", "f8e5m2"};
constexpr std::array<const char*, kReduceOps> kOpNames = {"sum",    "prod", "min", "max", "avg",
                                                          "mulsum", "band", "bor", "bxor"};

/// The texts of the command line, not yet parsed.
struct Raw {
  std::string min_bytes, max_bytes, step_bytes;
  std::string op = "sum";
  std::string type = "float";
  std::string memory = "registered";
  std::string halves = "both";
  int average = 1;
  int timeout_seconds = 0;
  int local_register = 0;
  int report_memory = 0;
  int cpu_time = 0, timestamps = 0, per_iter = 0;
  // GPUs only.
  int gpus = 1, stream_null = 0, cta_policy = 0, device_implementation = 0, device_cta_count = 16;
};

void declare(CLI::App& app, Settings& s, Raw& raw) {
  app.set_help_flag("-h,--help", "print this and end");
  app.add_option("-t,--nthreads", s.threads, "ranks as threads of this process [1]")->check(whole_number(1));
  app.add_option("-g,--ngpus", raw.gpus, "GPUs per thread; a rank here has one at most, so only 1 is allowed [1]");
  app.add_option("-b,--minbytes", raw.min_bytes, "smallest size; K, M and G are powers of 1024 [8]");
  app.add_option("-e,--maxbytes", raw.max_bytes, "largest size [4M]");
  app.add_option("-i,--stepbytes", raw.step_bytes, "fixed step between sizes, instead of a factor [1M]");
  app.add_option("-f,--stepfactor", s.step_factor, "factor between sizes [2, or off with -i]")->check(whole_number(1));
  app.add_option("-n,--iters", s.iters, "timed iterations per row [20]")->check(whole_number(1));
  app.add_option("-m,--agg_iters", s.agg_iters, "calls per iteration [1]")->check(whole_number(1));
  app.add_option("-w,--warmup_iters", s.warmup_iters, "untimed iterations before each measurement [1]")
      ->check(whole_number(0));
  app.add_option("-N,--run_cycles", s.run_cycles, "how often all rows are run; 0: for ever [1]")
      ->check(whole_number(0));
  app.add_option("-p,--parallel_init", s.parallel_init, "accepted; ranks always start side by side [0]")
      ->check(whole_number(0, 1));
  app.add_option("-c,--check", s.check, "iterations whose results are checked; 0: none [1]")->check(whole_number(0));
  app.add_option("-o,--op", raw.op, "sum, prod, min, max, avg, mulsum, band, bor, bxor or all [sum]");
  app.add_option("-d,--datatype", raw.type,
                 "int8, uint8, int32, uint32, int64, uint64, half, bfloat16, float, double, f8e4m3, f8e5m2 or all; "
                 "also by the short names i8 ... f32 [float]");
  app.add_option("-r,--root", s.root, "root rank; -1: every rank in turn [0]")->check(CLI::Range(-1, 1 << 30));
  app.add_option("-z,--blocking", s.blocking, "accepted; calls always block [0]")->check(CLI::Range(0, 3));
  app.add_option("-y,--stream_null", raw.stream_null, "device memory: 1 is the legacy default stream [0]")
      ->check(whole_number(0, 1));
  app.add_option("-T,--timeout", raw.timeout_seconds, "deadline of every wait in seconds; 0: the default [0]")
      ->check(whole_number(0));
  app.add_option("-G,--cudagraph", s.graph_launches,
                 "device memory: capture the iterations as a CUDA graph and launch it so often; 0: no graph [0]")
      ->check(whole_number(0));
  app.add_option("-C,--report_cputime", raw.cpu_time, "report CPU time instead of latency [0]")
      ->check(whole_number(0, 1));
  app.add_option("-S,--report_timestamps", raw.timestamps, "add the time of day to each row [0]")
      ->check(whole_number(0, 1));
  app.add_option("-J,--output_file", s.json_file, "write the results as JSON to this file");
  app.add_option("-a,--average", raw.average, "over ranks: 0 rank 0, 1 mean, 2 min, 3 max [1]")
      ->check(CLI::Range(0, 3));
  app.add_option("-R,--local_register", raw.local_register, "1 or 2: the same as --memory registered [0]")
      ->check(CLI::Range(0, 2));
  app.add_option("-x,--cta_policy", raw.cta_policy, "GPU kernels' blocks; only 0 is allowed [0]");
  app.add_option("-D,--device_implementation", raw.device_implementation, "device-side API; only 0 is allowed [0]");
  app.add_option("-V,--device_cta_count", raw.device_cta_count, "accepted; means something with -D only [16]");
  app.add_option("-M,--memory_report", raw.report_memory, "1: report the communicator's memory [0]")
      ->check(whole_number(0, 1));
  app.add_option("-u,--unalign", s.unalign, "shift the buffers by this many elements [0]")
      ->check(whole_number(0, 1 << 20));
  app.add_option("-I,--per_iter_timing", raw.per_iter, "1: time each iteration; adds i_min i_max i_p99 i_cv% [0]")
      ->check(whole_number(0, 1));
  app.add_option("-K,--per_iter_skip", s.per_iter_skip, "leave out the first iterations from -I and --percentiles [0]")
      ->check(whole_number(0));

  app.add_option("--ranks", s.ranks, "start this many processes here; not under mpirun or torchrun, which start them")
      ->check(whole_number(1, kMostLocalRanks));
  app.add_option("--backend", s.backend, "tutti, openmpi, mpich, gloo or nccl [tutti]")
      ->check(CLI::IsMember({"tutti", "openmpi", "mpich", "gloo", "nccl"}));
  app.add_option("--memory", raw.memory,
                 "registered, plain or device: a GPU's, dealt out in turn to the ranks of a host [registered]")
      ->check(CLI::IsMember({"registered", "plain", "device", "0", "1"}));
  app.add_option("--algorithm", s.algorithm, "use this row of the algorithm table");
  app.add_flag("--deterministic", s.deterministic, "same bits for every algorithm and placement");
  app.add_flag("--percentiles", s.percentiles, "add p50 and p99 columns: of the iterations, each by its slowest rank");
  app.add_flag("--cold", s.cold, "each iteration moves on through buffers of the largest size, so caches do not help");
  app.add_option("--halves", raw.halves, "both, out (of place) or in (place): which are measured [both]")
      ->check(CLI::IsMember({"both", "out", "in"}));
  app.add_option("--parts", s.parts,
                 "the median over so many parts of a measurement counts, where each has 100 iterations at least [1]")
      ->check(whole_number(1));
  app.add_option("--time", s.row_seconds, "seconds per measurement: more iterations than -n, if they fit")
      ->check(finite_number(/*above=*/false));
}

Parsed refuse(Exit exit, std::string message) { return {.settings = {}, .exit = exit, .message = std::move(message)}; }

/// nccl-tests calls -M "--memory" too: a digit is its meaning, a word is ours.
void settle_memory(Settings& s, Raw& raw, bool algorithm_of_memory_given) {
  if (raw.memory == "0" || raw.memory == "1") {
    raw.report_memory = raw.memory == "1";
    raw.memory = "registered";
  }
  s.memory = raw.memory == "plain"    ? MemoryKind::plain
             : raw.memory == "device" ? MemoryKind::device
                                      : MemoryKind::registered;
  if (raw.local_register != 0 && !algorithm_of_memory_given) s.memory = MemoryKind::registered;
  s.report_memory = raw.report_memory != 0;
}

/// Why something cannot be had that concerns GPUs.
std::optional<std::string> no_gpu(const Settings& s, const Raw& raw) {
  if (raw.gpus != 1) return fmt::format("-g {}: a rank has one GPU at most; expected 1", raw.gpus);
  if (s.graph_launches != 0 && s.memory != MemoryKind::device) {
    return fmt::format("-G {}: a CUDA graph needs --memory device; expected 0", s.graph_launches);
  }
  if (s.graph_launches != 0 && raw.stream_null != 0) {
    return fmt::format("-G {}: the legacy default stream (-y 1) cannot be captured", s.graph_launches);
  }
  if (raw.cta_policy != 0) return fmt::format("-x {}: kernels have no such policy here; expected 0", raw.cta_policy);
  if (raw.device_implementation != 0) {
    return fmt::format("-D {}: there is no device-side API here; expected 0", raw.device_implementation);
  }
  return {};
}

/// Returns false if `text` is not a size.
bool take_size(const std::string& text, std::size_t& value) {
  const auto parsed = parse_bytes(text);
  if (!parsed.ok()) return false;
  value = parsed.value();
  return true;
}

template <class T, std::size_t kCount, class ShortName>
std::vector<T> named(const std::string& text, const std::array<const char*, kCount>& names, ShortName short_name) {
  std::vector<T> found;
  for (std::size_t i = 0; i < kCount; ++i) {
    const T value = static_cast<T>(i);
    if (text == "all" || text == names[i] || text == short_name(value)) found.push_back(value);
  }
  return found;
}

}  // namespace

const char* column_name(DataType type) { return kTypeNames[static_cast<std::size_t>(type)]; }
const char* column_name(ReduceOp op) { return kOpNames[static_cast<std::size_t>(op)]; }

Parsed parse_settings(int argc, const char* const* argv) {
  Parsed parsed;
  Settings& s = parsed.settings;
  Raw raw;
  CLI::App app("Measures one collective. Columns and options are nccl-tests'.");
  declare(app, s, raw);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return refuse(Exit::ok, app.help());
  } catch (const CLI::ParseError& error) {
    return refuse(Exit::usage, error.what());
  }
  settle_memory(s, raw, app.count("--memory") > 0);
  if (auto message = no_gpu(s, raw)) return refuse(Exit::unsupported, *message);
  s.null_stream = raw.stream_null != 0;

  for (const auto& [option, text, value] :
       {std::tuple{"-b", &raw.min_bytes, &s.min_bytes}, std::tuple{"-e", &raw.max_bytes, &s.max_bytes},
        std::tuple{"-i", &raw.step_bytes, &s.step_bytes}}) {
    if (app.count(option) > 0 && !take_size(*text, *value)) {
      return refuse(Exit::bad_size,
                    fmt::format("{} {}: not a size; expected bytes such as 8, 64K or 1.5M", option, quote(*text)));
    }
  }
  if (raw.max_bytes.empty()) s.max_bytes = std::max(s.max_bytes, s.min_bytes);
  if (s.min_bytes > s.max_bytes) {
    return refuse(Exit::usage, fmt::format("-b {} is more than -e {}", s.min_bytes, s.max_bytes));
  }
  if (app.count("-i") > 0 && app.count("-f") == 0) s.step_factor = 1;
  if (s.step_factor > 1 && s.min_bytes == 0 && s.max_bytes > 0) {
    return refuse(Exit::usage,
                  fmt::format("-b 0: 0 times -f {} is 0 again; expected -b 1 or more, or -i", s.step_factor));
  }
  if (s.step_factor == 1 && s.step_bytes == 0) return refuse(Exit::usage, "-i 0: expected a step above 0");

  s.ops = named<ReduceOp>(raw.op, kOpNames, [](ReduceOp op) { return std::string_view(name_of(op)); });
  if (s.ops.empty()) {
    return refuse(Exit::usage, fmt::format("-o {}: expected sum, prod, min, max, avg, mulsum, band, bor, bxor or all",
                                           quote(raw.op)));
  }
  s.types = named<DataType>(raw.type, kTypeNames, [](DataType type) { return std::string_view(name_of(type)); });
  if (s.types.empty()) {
    return refuse(Exit::usage,
                  fmt::format("-d {}: unknown type; expected float, bfloat16, int8, ... or all", quote(raw.type)));
  }
  if (app.count("-J") > 0 && s.json_file.empty()) return refuse(Exit::usage, "-J '': expected a file's name");
  if (s.threads > 1 && s.ranks > 0) return refuse(Exit::usage, "-t and --ranks exclude each other");
  if (s.threads > 1 && s.backend != "tutti") {
    return refuse(Exit::unsupported, fmt::format("-t {}: backend {} has no ranks as threads", s.threads, s.backend));
  }
  s.average = static_cast<Average>(raw.average);
  s.out_of_place = raw.halves != "in";
  s.in_place = raw.halves != "out";
  s.timeout = std::chrono::seconds(raw.timeout_seconds);
  s.cpu_time = raw.cpu_time != 0;
  s.timestamps = raw.timestamps != 0;
  s.per_iter = raw.per_iter != 0;
  return parsed;
}

std::vector<std::size_t> row_sizes(const Settings& settings) {
  std::vector<std::size_t> sizes;
  std::size_t size = settings.min_bytes;
  while (size <= settings.max_bytes) {
    sizes.push_back(size);
    const std::size_t next =
        settings.step_factor > 1 ? size * static_cast<std::size_t>(settings.step_factor) : size + settings.step_bytes;
    if (next <= size) break;  // 0 times a factor, or past the largest number
    size = next;
  }
  return sizes;
}

}  // namespace tutti::perf
