#include "perf/driver/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <array>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

namespace tutti::perf {
namespace {

using nlohmann::ordered_json;

std::string time_of_day() { return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(std::time(nullptr))); }

const char* op_column(const PerfCollective& collective, const Row& row) {
  return collective.reduces() ? column_name(row.key.op) : "none";
}

int root_column(const PerfCollective& collective, const Row& row) { return collective.rooted() ? row.key.root : -1; }

const Half& measured(const Row& row) { return row.out_of_place.measured ? row.out_of_place : row.in_place; }

const char* algorithm_of(const Row& row) {
  return measured(row).algorithm.empty() ? "-" : measured(row).algorithm.c_str();
}

ordered_json half_json(const Settings& settings, const Half& half) {
  if (!half.measured) return nullptr;
  ordered_json json;
  json[settings.cpu_time ? "cpu_time" : "time"] = half.time_us;
  json["alg_bw"] = half.algorithm_bandwidth;
  json["bus_bw"] = half.bus_bandwidth;
  json["nwrong"] = half.checked ? ordered_json(half.wrong) : ordered_json("N/A");
  return json;
}

ordered_json spread_json(const Settings& settings, const Spread& spread) {
  return {{"skipped_iterations", settings.per_iter_skip},
          {"min_us", spread.min},
          {"max_us", spread.max},
          {"avg_us", spread.mean},
          {"p50_us", spread.p50},
          {"p95_us", spread.p95},
          {"p99_us", spread.p99},
          {"stdev_us", spread.stdev},
          {"cv_pct", spread.mean > 0 ? 100 * spread.stdev / spread.mean : 0},
          {"per_process_max_times_us", spread.times_us}};
}

ordered_json row_json(const Settings& settings, const PerfCollective& collective, const Row& row,
                      const std::string& experiment) {
  ordered_json json = {{"size", row.size},
                       {"count", row.count},
                       {"type", column_name(row.key.type)},
                       {"redop", op_column(collective, row)},
                       {"root", root_column(collective, row)},
                       {"out_of_place", half_json(settings, row.out_of_place)},
                       {"in_place", half_json(settings, row.in_place)}};
  if (!row.out_of_place.spread.times_us.empty()) {
    json["out_of_place_per_iter"] = spread_json(settings, row.out_of_place.spread);
  }
  if (!row.in_place.spread.times_us.empty()) json["in_place_per_iter"] = spread_json(settings, row.in_place.spread);
  json["actual_iterations"] = measured(row).iterations;
  json["experiment_name"] = experiment;
  json["algorithm"] = algorithm_of(row);
  return json;
}

}  // namespace

std::string fitted(double value, std::size_t width) {
  for (const int digits : {2, 1, 0}) {
    std::string text = fmt::format("{:.{}f}", value, digits);
    if (text.size() <= width) return text;
  }
  return fmt::format("{:.1e}", value);
}

Summary summarize(const std::vector<Row>& rows, double floor) {
  Summary summary;
  double sum = 0;
  int halves = 0;
  for (const Row& row : rows) {
    for (const Half* half : {&row.out_of_place, &row.in_place}) {
      if (!half->measured) continue;
      summary.wrong += half->wrong;
      sum += half->bus_bandwidth;
      ++halves;
    }
  }
  summary.average_bus_bandwidth = halves > 0 ? sum / halves : 0;
  summary.bandwidth_ok = floor <= 0 || summary.average_bus_bandwidth >= 0.9 * floor;
  return summary;
}

Report::Report(const Settings& settings, const PerfCollective& collective, std::vector<Member> members,
               std::string command)
    : settings_(settings),
      collective_(collective),
      members_(std::move(members)),
      command_(std::move(command)),
      start_time_(time_of_day()) {}

void Report::print_head() const {
  const Settings& s = settings_;
  fmt::print("# tutti-perf version {} collective={} backend={} memory={}{}\n", version(), collective_.name(), s.backend,
             name_of(s.memory), s.deterministic ? " deterministic" : "");
  fmt::print("# Collective test starting: {}\n", start_time_);
  fmt::print(
      "# nThread {} nGpus {} minBytes {} maxBytes {} step: {}({}) warmup iters: {} iters: {} agg iters: {} validation: "
      "{} graph: {} unalign: {}\n#\n",
      s.threads, s.memory == MemoryKind::device ? 1 : 0, s.min_bytes, s.max_bytes,
      s.step_factor > 1 ? static_cast<std::size_t>(s.step_factor) : s.step_bytes,
      s.step_factor > 1 ? "factor" : "bytes", s.warmup_iters, s.iters, s.agg_iters, s.check, s.graph_launches,
      s.unalign);
  fmt::print("# Using devices\n");
  for (const Member& member : members_) {
    fmt::print("#  Rank {:2d} Group {:2d} Pid {:6d} on {:>10s} device {:2d} [{}] {}\n", member.rank, 0, member.pid,
               member.host, member.rank, member.gpu[0] == 0 ? "cpu" : member.gpu, s.backend);
  }
  std::string names, units, blanks;
  for (int half = 0; half < 2; ++half) {
    names +=
        fmt::format("  {:>7s}  {:>6s}  {:>6s}  {:>6s}", s.cpu_time ? "cputime" : "time", "algbw", "busbw", "#wrong");
    units += fmt::format("  {:>7s}  {:>6s}  {:>6s}  {:>6s}", "(us)", "(GB/s)", "(GB/s)", "");
    const auto add = [&](const char* name, const char* unit) {
      names += fmt::format("  {:>7s}", name);
      units += fmt::format("  {:>7s}", unit);
    };
    if (s.percentiles) {
      for (const char* name : {"p50", "p99"}) add(name, "(us)");
    }
    if (s.per_iter) {
      for (const char* name : {"i_min", "i_max", "i_p99"}) add(name, "(us)");
      add("i_cv%", "");
    }
    if (half == 0) blanks = std::string(names.size() > 20 ? names.size() - 20 : 0, ' ');
  }
  fmt::print("#\n# {:>55s}{:>20s}{}{:>20s}\n", "", "out-of-place", blanks, "in-place");
  fmt::print("# {:>10s}  {:>12s}  {:>8s}  {:>6s}  {:>6s}{}  {}\n", "size", "count", "type", "redop", "root", names,
             "algorithm");
  fmt::print("# {:>10s}  {:>12s}  {:>8s}  {:>6s}  {:>6s}{}\n", "(B)", "(elements)", "", "", "", units);
  std::fflush(stdout);
}

std::string Report::half_text(const Half& half) const {
  const auto number = [&](double value, std::size_t width) { return half.measured ? fitted(value, width) : "N/A"; };
  std::string text = fmt::format("  {:>7s}  {:>6s}  {:>6s}", number(half.time_us, 7),
                                 number(half.algorithm_bandwidth, 6), number(half.bus_bandwidth, 6));
  text += half.checked ? fmt::format("  {:6g}", static_cast<double>(half.wrong)) : fmt::format("  {:>6s}", "N/A");
  const Spread& spread = half.spread;
  if (settings_.percentiles) text += fmt::format("  {:>7s}  {:>7s}", number(spread.p50, 7), number(spread.p99, 7));
  if (settings_.per_iter) {
    text += fmt::format("  {:>7s}  {:>7s}  {:>7s}  {:>7s}", number(spread.min, 7), number(spread.max, 7),
                        number(spread.p99, 7), number(spread.mean > 0 ? 100 * spread.stdev / spread.mean : 0, 7));
  }
  return text;
}

void Report::print_row(const Row& row) {
  rows_.push_back(row);
  fmt::print("{:12d}  {:12d}  {:>8s}  {:>6s}  {:6d}{}{}  {}{}\n", row.size, row.count, column_name(row.key.type),
             op_column(collective_, row), root_column(collective_, row), half_text(row.out_of_place),
             half_text(row.in_place), algorithm_of(row),
             settings_.timestamps ? fmt::format("  {:>19s}", time_of_day()) : "");
  std::fflush(stdout);
}

void Report::print_note(const std::string& text) {
  notes_.push_back(text);
  fmt::print("# {}\n", text);
  std::fflush(stdout);
}

void Report::print_foot(const Summary& summary, std::size_t scratch_bytes) const {
  fmt::print("# {:<20s} : {} {}\n", "Out of bounds values", summary.wrong, summary.wrong == 0 ? "OK" : "FAILED");
  fmt::print("# {:<20s} : {:g} {}\n", "Avg bus bandwidth", summary.average_bus_bandwidth,
             summary.bandwidth_ok ? "OK" : "FAILED");
  if (settings_.report_memory) fmt::print("# {:<20s} : {} bytes on rank 0\n", "Memory usage", scratch_bytes);
  fmt::print("#\n# Collective test concluded: {}\n", collective_.name());
  std::fflush(stdout);
}

bool Report::write_json(const Summary& summary, const std::string& experiment) const {
  const Settings& s = settings_;
  if (s.json_file.empty()) return true;
  ordered_json devices = ordered_json::array();
  for (const Member& member : members_) {
    devices.push_back({{"rank", member.rank},
                       {"group", 0},
                       {"pid", member.pid},
                       {"hostname", member.host},
                       {"device", member.rank},
                       {"device_hex", nullptr},
                       {"device_info", "cpu"}});
  }
  ordered_json config = {
      {"nthreads", s.threads}, {"ngpus", 0}, {"minimum_bytes", s.min_bytes}, {"maximum_bytes", s.max_bytes}};
  if (s.step_factor > 1) {
    config["step_factor"] = s.step_factor;
  } else {
    config["step_bytes"] = s.step_bytes;
  }
  config.update({{"warmup_iters", s.warmup_iters},
                 {"iterations", s.iters},
                 {"aggregated_iterations", s.agg_iters},
                 {"validation", s.check},
                 {"graph", s.graph_launches},
                 {"blocking_collectives", true},
                 {"per_iter_timing", s.per_iter || s.percentiles},
                 {"per_iter_skip", s.per_iter_skip},
                 {"parallel_init", s.parallel_init != 0},
                 {"backend", s.backend},
                 {"memory", name_of(s.memory)},
                 {"algorithm", s.algorithm},
                 {"deterministic", s.deterministic},
                 {"cold", s.cold},
                 {"ranks", members_.size()},
                 {"devices", devices}});
  ordered_json results = ordered_json::array();
  for (const Row& row : rows_) results.push_back(row_json(s, collective_, row, experiment));
  const ordered_json json = {
      {"version", 3},
      {"start_time", start_time_},
      {"args", command_},
      {"tutti_version", version()},
      {"collective", collective_.name()},
      {"config", config},
      {"results", results},
      {"out_of_bounds", {{"count", summary.wrong}, {"okay", summary.wrong == 0}}},
      {"average_bus_bandwidth", {{"bandwidth", summary.average_bus_bandwidth}, {"okay", summary.bandwidth_ok}}},
      {"errors", notes_},
      {"end_time", time_of_day()}};
  std::ofstream file(s.json_file);
  file << json.dump(2) << '\n';
  return static_cast<bool>(file.flush());
}

}  // namespace tutti::perf
