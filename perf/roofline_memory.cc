// The machine's limit for the work of a collective: N processes move and add the same bytes through memory that all of
// them see, with no protocol and no waiting for each other between iterations. What a collective takes beyond this is
// its own cost.
//   all_reduce      rank r reads its share of all N inputs, adds, writes it to all N outputs (direct two-shot)
//   reduce_scatter  the same, written to its own output only
//   copy            rank r copies the whole vector (all_gather, broadcast, all_to_all, gather, scatter)
// Each with ordinary and with non-temporal stores; the faster one is the limit. Options: -b -e -f -n -w --ranks --time
// -J.
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/even_share.h"
#include "base/pages.h"
#include "perf/driver/settings.h"
#include "perf/vector_clones.h"

namespace {

using tutti::even_share;
using tutti::now_ns;
using tutti::Share;
using tutti::perf::Settings;

enum class Work { all_reduce, reduce_scatter, copy };
constexpr std::array<Work, 3> kWorks = {Work::all_reduce, Work::reduce_scatter, Work::copy};
constexpr std::array<const char*, 3> kWorkNames = {"all_reduce", "reduce_scatter", "copy"};
constexpr int kMaxRanks = 64;
constexpr std::size_t kTile = 1024;  // elements: sums of one tile stay in the first-level cache

/// Shared by all ranks, at the start of the common memory.
struct Board {
  std::atomic<int> arrived{0};
  std::atomic<int> phase{0};
  std::atomic<std::int64_t> calls{0};
  std::array<std::atomic<std::int64_t>, kMaxRanks> spent_ns{};
};

struct Rank {
  int rank = 0;
  int ranks = 1;
  Board* board = nullptr;
  std::vector<float*> inputs;   // of all ranks
  std::vector<float*> outputs;  // of all ranks

  void barrier() const {
    const int phase = board->phase.load();
    if (board->arrived.fetch_add(1) + 1 == ranks) {
      board->arrived.store(0);
      board->phase.store(phase + 1);
      return;
    }
    while (board->phase.load() == phase) sched_yield();
  }
};

TUTTI_VECTOR_CLONES void add(float* sum, const float* a, const float* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

TUTTI_VECTOR_CLONES void add_to_two(float* __restrict x, float* __restrict y, const float* a, const float* b,
                                    std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i];
    x[i] = sum;
    y[i] = sum;
  }
}

void stream(float* to, const float* from, std::size_t count) {
  std::size_t i = 0;
  for (; i < count && reinterpret_cast<std::uintptr_t>(to + i) % 16 != 0; ++i) to[i] = from[i];
  const std::size_t whole = (count - i) / 4 * 4;
  tutti::stream(to + i, from + i, whole * sizeof(float));
  tutti::stream_fence();
  for (i += whole; i < count; ++i) to[i] = from[i];
}

void put(float* to, const float* from, std::size_t count, bool streaming) {
  if (streaming) {
    stream(to, from, count);
  } else {
    std::memcpy(to, from, count * sizeof(float));
  }
}

/// One pass over what this rank has to do for a vector of `count` elements.
void pass(const Rank& me, Work work, std::size_t count, bool streaming) {
  if (work == Work::copy) {
    // The next rank's data, so that it comes from where another core wrote it.
    put(me.outputs[static_cast<std::size_t>(me.rank)], me.inputs[static_cast<std::size_t>((me.rank + 1) % me.ranks)],
        count, streaming);
    return;
  }
  const Share share = even_share(count, static_cast<std::size_t>(me.ranks), static_cast<std::size_t>(me.rank));
  if (me.ranks == 2 && work == Work::all_reduce && !streaming) {
    add_to_two(me.outputs[0] + share.offset, me.outputs[1] + share.offset, me.inputs[0] + share.offset,
               me.inputs[1] + share.offset, share.size);
    return;
  }
  alignas(64) std::array<float, kTile> sums;
  for (std::size_t at = share.offset; at < share.offset + share.size; at += kTile) {
    const std::size_t piece = std::min(kTile, share.offset + share.size - at);
    const float* so_far = me.inputs[0] + at;
    for (std::size_t i = 1; i < me.inputs.size(); ++i) {
      add(sums.data(), so_far, me.inputs[i] + at, piece);
      so_far = sums.data();
    }
    if (work == Work::reduce_scatter) {
      put(me.outputs[static_cast<std::size_t>(me.rank)] + at, so_far, piece, streaming);
    } else {
      for (float* output : me.outputs) put(output + at, so_far, piece, streaming);
    }
  }
}

/// Microseconds per pass, mean over ranks. The same value on every rank.
double measure(const Rank& me, const Settings& settings, Work work, std::size_t count, bool streaming) {
  const std::int64_t trial_start = now_ns();
  for (int i = 0; i <= settings.warmup_iters; ++i) pass(me, work, count, streaming);
  const double trial = static_cast<double>(now_ns() - trial_start) / (settings.warmup_iters + 1);
  if (me.rank == 0) {
    const double wanted = settings.row_seconds * 1e9 / std::max(trial, 1.0);
    me.board->calls.store(std::clamp<std::int64_t>(static_cast<std::int64_t>(wanted), settings.iters, 1'000'000));
  }
  me.barrier();
  const std::int64_t calls = me.board->calls.load();
  const std::int64_t start = now_ns();
  for (std::int64_t i = 0; i < calls; ++i) pass(me, work, count, streaming);
  me.board->spent_ns[static_cast<std::size_t>(me.rank)].store(now_ns() - start);
  me.barrier();
  double sum = 0;
  for (int i = 0; i < me.ranks; ++i) {
    sum += static_cast<double>(me.board->spent_ns[static_cast<std::size_t>(i)].load());
  }
  me.barrier();  // before any rank writes the next figures
  return sum * 1e-3 / me.ranks / static_cast<double>(calls);
}

nlohmann::ordered_json run(const Rank& me, const Settings& settings) {
  auto results = nlohmann::ordered_json::array();
  if (me.rank == 0)
    fmt::print("# {:>10s}  {:>16s}  {:>12s}  {:>10s}  {:s}\n", "size (B)", "work", "time (us)", "GB/s", "stores");
  for (const std::size_t bytes : row_sizes(settings)) {
    for (const Work work : kWorks) {
      const std::size_t count = bytes / sizeof(float);
      const double ordinary = measure(me, settings, work, count, false);
      const double streaming = measure(me, settings, work, count, true);
      if (me.rank != 0) continue;
      const double best = std::min(ordinary, streaming);
      const char* name = kWorkNames[static_cast<std::size_t>(work)];
      fmt::print("{:12d}  {:>16s}  {:12.2f}  {:10.2f}  {:s}\n", bytes, name, best,
                 static_cast<double>(bytes) / (best * 1e3), ordinary <= streaming ? "ordinary" : "non-temporal");
      results.push_back(
          {{"size", bytes}, {"work", name}, {"time", best}, {"ordinary", ordinary}, {"streaming", streaming}});
    }
  }
  return results;
}

}  // namespace

int main(int argc, char** argv) {
  const auto parsed = tutti::perf::parse_settings(argc, argv);
  if (parsed.exit) {
    fmt::print(stderr, "{}\n", parsed.message);
    return static_cast<int>(*parsed.exit);
  }
  const Settings& settings = parsed.settings;
  Rank me;
  me.ranks = std::clamp(settings.ranks, 1, kMaxRanks);
  const std::size_t slot = tutti::round_up(settings.max_bytes, tutti::page_bytes());
  const std::size_t head = tutti::round_up(sizeof(Board), tutti::page_bytes());
  const std::size_t total = head + 2 * static_cast<std::size_t>(me.ranks) * slot;
  void* memory = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    fmt::print(stderr, "roofline_memory: {} bytes of memory could not be had\n", total);
    return 2;
  }
  std::memset(memory, 0, total);
  me.board = new (memory) Board;
  for (int i = 0; i < me.ranks; ++i) {
    auto* base = static_cast<char*>(memory) + head + 2 * static_cast<std::size_t>(i) * slot;
    me.inputs.push_back(reinterpret_cast<float*>(base));
    me.outputs.push_back(reinterpret_cast<float*>(base + slot));
  }
  std::fflush(stdout);
  const pid_t parent = getpid();
  for (int i = 1; i < me.ranks; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      me.rank = i;
      run(me, settings);
      _exit(0);
    }
    if (child < 0) {
      std::perror("roofline_memory: fork");
      _exit(2);  // the ranks that exist die with this process
    }
  }
  const auto results = run(me, settings);
  while (wait(nullptr) > 0) {
  }
  if (!settings.json_file.empty()) {
    std::ofstream file(settings.json_file);
    file << nlohmann::ordered_json{{"ranks", me.ranks}, {"results", results}}.dump(2) << '\n';
    if (!file.flush()) {
      fmt::print(stderr, "roofline_memory: -J {}: could not be written\n", settings.json_file);
      return 2;
    }
  }
  return 0;
}
