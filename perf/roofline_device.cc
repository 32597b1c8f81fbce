// The GPU's limit for the work of a collective, and what plain host loops take: see perf/driver/roofline_device.h. For
// each size S: one copy of S bytes on the device, and all_reduce, all_gather and reduce_scatter of S bytes among
// --ranks (2) by copies and an add kernel. Options: -b -e -f -i --ranks --time -J, as the benchmarks.
#include "perf/driver/roofline_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "perf/driver/settings.h"

namespace {

using tutti::perf::Exit;
using tutti::perf::HostLoop;
using tutti::perf::RooflineDevice;
using tutti::perf::Settings;

constexpr double kSeconds = 0.02;  // for a figure, unless --time says more

int measure(const Settings& settings) {
  const int ranks = std::max(settings.ranks, 2);
  const double seconds = settings.row_seconds > 0 ? settings.row_seconds : kSeconds;
  RooflineDevice limit(settings.max_bytes, ranks);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  fmt::print("# {}, {} ranks; host loops in us\n# {:>12s} {:>10s} {:>10s} {:>14s} {:>14s} {:>14s}\n",
             limit.gpu().name(), ranks, "size", "copy us", "GB/s", "all_reduce", "all_gather", "reduce_scatter");
  for (const std::size_t bytes : tutti::perf::row_sizes(settings)) {
    if (bytes == 0) continue;
    const double copy = limit.copy_us(bytes, seconds);
    // Read and written.
    const double gb_per_s = 2 * static_cast<double>(bytes) / (copy * 1e3);
    fmt::print("{:14d} {:10.2f} {:10.1f}", bytes, copy, gb_per_s);
    nlohmann::ordered_json loops = nlohmann::ordered_json::object();
    for (const HostLoop loop : {HostLoop::all_reduce, HostLoop::all_gather, HostLoop::reduce_scatter}) {
      const double us = limit.loop_us(loop, bytes, seconds);
      fmt::print(" {:14.2f}", us);
      if (us > 0) loops[name_of(loop)] = us;
    }
    fmt::print("\n");
    rows.push_back({{"size", bytes}, {"copy_us", copy}, {"gb_per_s", gb_per_s}, {"loop_us", loops}});
  }
  if (settings.json_file.empty()) return 0;
  std::ofstream file(settings.json_file);
  file << nlohmann::ordered_json{{"gpu", limit.gpu().name()}, {"ranks", ranks}, {"results", rows}}.dump(2) << "\n";
  return file.good() ? 0 : static_cast<int>(Exit::system);
}

}  // namespace

int main(int argc, char** argv) {
  const tutti::perf::Parsed parsed = tutti::perf::parse_settings(argc, argv);
  if (parsed.exit) {
    fmt::print(*parsed.exit == Exit::ok ? stdout : stderr, "{}\n", parsed.message);
    return static_cast<int>(*parsed.exit);
  }
  try {
    return measure(parsed.settings);
  } catch (const tutti::Error& error) {
    fmt::print(stderr, "roofline_device: {}\n", error.what());
    return static_cast<int>(error.code() == tutti::Code::unsupported ? Exit::unsupported : Exit::system);
  }
}
