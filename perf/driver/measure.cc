#include "perf/driver/measure.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/even_share.h"

namespace tutti::perf {
namespace {

constexpr int kMaxIterations = 1'000'000;
constexpr int kLeastOfPart = 100;  // iterations: what a call leaves for the next one to do must not count

double percentile(const std::vector<double>& sorted, double share) {
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::max<std::size_t>(rank, 1) - 1];
}

double combine(const std::vector<double>& values, Average average) {
  switch (average) {
    case Average::rank0: return values.front();
    case Average::min: return *std::min_element(values.begin(), values.end());
    case Average::max: return *std::max_element(values.begin(), values.end());
    case Average::mean: break;
  }
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

Spread spread_of(std::vector<double> times_us) {
  Spread spread;
  if (times_us.empty()) return spread;
  std::vector<double> sorted = times_us;
  std::sort(sorted.begin(), sorted.end());
  const double n = static_cast<double>(sorted.size());
  spread.min = sorted.front();
  spread.max = sorted.back();
  spread.mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / n;
  spread.p50 = percentile(sorted, 0.50);
  spread.p95 = percentile(sorted, 0.95);
  spread.p99 = percentile(sorted, 0.99);
  double squares = 0;
  for (const double time : sorted) squares += (time - spread.mean) * (time - spread.mean);
  spread.stdev = std::sqrt(squares / n);
  spread.times_us = std::move(times_us);
  return spread;
}

double median_of_parts(const std::vector<double>& times, std::size_t parts, Average average) {
  std::vector<double> of_parts;
  for (std::size_t part = 0; part < parts; ++part) {
    std::vector<double> of_ranks;
    for (std::size_t at = part; at < times.size(); at += parts) of_ranks.push_back(times[at]);
    of_parts.push_back(combine(of_ranks, average));
  }
  std::sort(of_parts.begin(), of_parts.end());
  return percentile(of_parts, 0.50);
}

/// One half of a row while it runs.
struct Bench::Loop {
  const PerfCollective& collective;
  Communicator& comm;
  const Elements elements;
  const RowKey key;
  Pattern pattern;
  Arguments arguments;
  char* send = nullptr;  // at iteration 0
  char* recv = nullptr;
  std::size_t stride = 0;  // bytes from one iteration's place to the next one's
  std::size_t places = 1;

  void call(std::size_t iteration) {
    const std::size_t at = iteration % places * stride;
    arguments.send = send + at;
    arguments.recv = recv + at;
    collective.run(comm, arguments);
  }
};

Bench::Bench(const Settings& settings, const PerfCollective& collective, Communicator& comm, int place)
    : settings_(settings), collective_(collective), comm_(comm) {
  if (settings.memory == MemoryKind::device) gpu_ = std::make_unique<Gpu>(place, settings.null_stream);
  // Every row's shares are rounded down, so the largest row bounds all.
  buffer_bytes_ = settings.max_bytes;
  const std::size_t extra = settings.unalign * sizeof(double);
  send_ = Memory(buffer_bytes_ + extra, settings.memory);
  recv_ = Memory(buffer_bytes_ + extra, settings.memory);
  // Ranks that have waited for each other until now often share a core; the system spreads them once all are busy. With
  // more ranks than cores it looks but a few times a second whether they are spread evenly.
  const bool crowded = comm_.size() > static_cast<int>(std::thread::hardware_concurrency());
  const std::int64_t settle = crowded ? 200'000'000 : 20'000'000;  // ns
  if (gpu_) {
    // A communicator's first call on device memory is one of all ranks; sends and receives come after it.
    comm_.broadcast(send_.data(), send_.data(), 1, DataType::u8, 0, {.stream = gpu_->stream()});
    finish();
  }
  comm_.barrier();
  for (const std::int64_t start = now_ns(); now_ns() - start < settle;) cpu_relax();
}

double Bench::clock_us() const { return static_cast<double>(settings_.cpu_time ? thread_cpu_ns() : now_ns()) * 1e-3; }

void Bench::finish() {
  if (!gpu_) return;
  gpu_->synchronize();
  std::string text;
  if (const Code code = comm_.status(&text); code != Code::ok) throw Error(code, text);
}

void Bench::fill(char* to, unsigned char value, std::size_t bytes) {
  if (gpu_) {
    gpu_->fill(to, value, bytes);
  } else if (bytes > 0) {
    std::memset(to, value, bytes);
  }
}

std::vector<double> Bench::gather(double mine) {
  std::vector<double> all(static_cast<std::size_t>(comm_.size()));
  comm_.all_gather(&mine, all.data(), 1, DataType::f64);
  return all;
}

double Bench::over_parts(const std::vector<double>& mine) {
  std::vector<double> all(mine.size() * static_cast<std::size_t>(comm_.size()));
  comm_.all_gather(mine.data(), all.data(), mine.size(), DataType::f64);
  return median_of_parts(all, mine.size(), settings_.average);
}

int Bench::choose_iterations(Loop& loop) {
  if (settings_.row_seconds <= 0) return settings_.iters;
  // The first calls are slow and not typical: calls are tried until a tenth of the time has passed.
  double seconds = 0;
  for (std::size_t trial = 3;; trial *= 8) {
    comm_.barrier();
    const std::int64_t start = now_ns();
    for (std::size_t i = 0; i < trial; ++i) loop.call(i);
    finish();
    // Rank 0's word counts: all must run the same number.
    const double spent = gather(static_cast<double>(now_ns() - start) * 1e-9).front();
    seconds = spent / static_cast<double>(trial);
    if (spent > settings_.row_seconds / 10 || trial > kMaxIterations) break;
  }
  const double wanted = settings_.row_seconds / std::max(seconds, 1e-9) / settings_.agg_iters;
  return static_cast<int>(std::clamp(wanted, static_cast<double>(settings_.iters), 1.0 * kMaxIterations));
}

void Bench::check(Loop& loop, Half& half) {
  const std::size_t width = size_of(loop.key.type);
  double wrong = 0;
  for (int i = 0; i < settings_.check; ++i) {
    loop.pattern.set_iteration(static_cast<std::size_t>(i));
    fill(loop.recv, 0xa5, loop.elements.recv * width);  // what was right before must not pass again
    for (const Block& block : collective_.sent(loop.arguments.place, loop.elements.count)) {
      char* send = loop.send + block.offset * width;
      if (gpu_) staged_.resize(std::max(staged_.size(), block.count * width));
      loop.pattern.fill(gpu_ ? staged_.data() : send, block.count, block.source, block.phase);
      if (gpu_) gpu_->upload(send, staged_.data(), block.count * width);
    }
    if (settings_.graph_launches > 0) {
      gpu_->capture([&] { loop.call(0); });
      gpu_->replay();
    } else {
      loop.call(0);
    }
    finish();
    for (const Block& block : collective_.received(loop.arguments.place, loop.elements.count)) {
      const char* recv = loop.recv + block.offset * width;
      if (gpu_) {
        staged_.resize(std::max(staged_.size(), block.count * width));
        gpu_->download(staged_.data(), recv, block.count * width);
        recv = staged_.data();
      }
      wrong += static_cast<double>(loop.pattern.count_wrong(recv, block.count, block.source, block.phase));
    }
  }
  const std::vector<double> all = gather(wrong);
  half.checked = true;
  half.wrong = static_cast<std::size_t>(std::accumulate(all.begin(), all.end(), 0.0));
}

void Bench::time(Loop& loop, Half& half) {
  for (int i = 0; i < settings_.warmup_iters; ++i) loop.call(static_cast<std::size_t>(i));
  finish();
  half.iterations = choose_iterations(loop);
  if (settings_.graph_launches > 0) {
    time_graph(loop, half);
    return;
  }
  const bool each = settings_.per_iter || settings_.percentiles;
  std::vector<double> times;
  if (each) times.reserve(static_cast<std::size_t>(half.iterations));
  const int parts = std::clamp(half.iterations / kLeastOfPart, 1, settings_.parts);
  std::vector<double> of_parts;
  comm_.barrier();
  double begun = clock_us();
  int i = 0;
  for (std::int64_t part = 1; part <= parts; ++part) {
    const int first = i;
    double last = begun;
    for (; i < half.iterations * part / parts; ++i) {
      for (int j = 0; j < settings_.agg_iters; ++j) loop.call(static_cast<std::size_t>(i));
      if (!each) continue;
      finish();
      const double now = clock_us();
      times.push_back((now - last) / settings_.agg_iters);
      last = now;
    }
    finish();
    const double now = clock_us();
    of_parts.push_back((now - begun) / (static_cast<double>(i - first) * settings_.agg_iters));
    begun = now;
  }
  take(half, of_parts, std::move(times));
}

void Bench::time_graph(Loop& loop, Half& half) {
  gpu_->capture([&] {
    for (int i = 0; i < half.iterations; ++i) {
      for (int j = 0; j < settings_.agg_iters; ++j) loop.call(static_cast<std::size_t>(i));
    }
  });
  // The first launch takes the graph to the device.
  gpu_->replay();
  finish();
  const double calls = static_cast<double>(half.iterations) * settings_.agg_iters;
  const bool each = settings_.per_iter || settings_.percentiles;
  std::vector<double> times;
  comm_.barrier();
  const double start = clock_us();
  double last = start;
  for (int i = 0; i < settings_.graph_launches; ++i) {
    gpu_->replay();
    if (each) {
      finish();
      const double now = clock_us();
      times.push_back((now - last) / calls);
      last = now;
    }
  }
  finish();
  take(half, {(clock_us() - start) / (calls * settings_.graph_launches)}, std::move(times));
}

void Bench::take(Half& half, const std::vector<double>& parts, std::vector<double> times) {
  half.measured = true;
  half.algorithm = comm_.explain_last_call().algorithm;
  half.time_us = over_parts(parts);
  if (times.empty()) return;
  times.erase(times.begin(), times.begin() + std::min<std::ptrdiff_t>(settings_.per_iter_skip, std::ssize(times)));
  std::vector<double> slowest(times.size());
  comm_.all_reduce(times.data(), slowest.data(), times.size(), DataType::f64, ReduceOp::max);
  half.spread = spread_of(std::move(slowest));
}

void Bench::run_half(const RowKey& key, const Elements& elements, bool in_place, Half& half) {
  const std::size_t width = size_of(key.type);
  const Place place{.rank = comm_.rank(), .ranks = comm_.size(), .root = key.root};
  Loop loop{.collective = collective_,
            .comm = comm_,
            .elements = elements,
            .key = key,
            .pattern = Pattern(key.type, collective_.reduces() ? key.op : ReduceOp::sum, place.ranks)};
  loop.arguments = {.count = elements.count, .type = key.type, .op = key.op, .place = place};
  loop.arguments.options = {.deterministic = settings_.deterministic,
                            .factor = loop.pattern.factor(place.rank),
                            .algorithm = settings_.algorithm,
                            .stream = gpu_ ? gpu_->stream() : nullptr};
  char* recv = recv_.data() + settings_.unalign * width;
  char* send = in_place ? recv : send_.data() + settings_.unalign * width;
  loop.send = send + (in_place ? collective_.in_place_send(place, elements.count) * width : 0);
  loop.recv = recv + (in_place ? collective_.in_place_recv(place, elements.count) * width : 0);
  const std::size_t bytes = std::max(elements.send, elements.recv) * width;
  if (settings_.cold && bytes > 0) {
    loop.stride = round_up(bytes, 64);
    loop.places = std::max<std::size_t>(buffer_bytes_ / loop.stride, 1);
  }
  // Products of what earlier rows left behind would run into numbers that cores compute slowly.
  fill(send_.data(), 0, buffer_bytes_);
  fill(recv_.data(), 0, buffer_bytes_);

  time(loop, half);
  half.algorithm_bandwidth = half.time_us > 0 ? static_cast<double>(bytes) / (half.time_us * 1e3) : 0;
  half.bus_bandwidth = half.algorithm_bandwidth * collective_.bus_factor(place.ranks);
  if (settings_.check > 0) check(loop, half);
}

Row Bench::measure(const RowKey& key) {
  const std::size_t width = size_of(key.type);
  const Elements elements = collective_.elements(key.bytes / width, comm_.size(), width);
  Row row;
  row.key = key;
  row.size = std::max(elements.send, elements.recv) * width;
  row.count = elements.count;
  if (settings_.out_of_place) run_half(key, elements, false, row.out_of_place);
  if (settings_.in_place && collective_.has_in_place()) run_half(key, elements, true, row.in_place);
  return row;
}

}  // namespace tutti::perf
