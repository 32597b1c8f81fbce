// The GPU's limit for the work of a collective, and what a plain host loop takes: see perf/driver/device_limit.h. For
// each size S: one copy of S bytes on the device, and an all_reduce of S bytes among --ranks (2) by copies and an add
// kernel. Options: -b -e -f -i --ranks --time -J, as the benchmarks.
#include "perf/driver/device_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "perf/driver/settings.h"

namespace {

using tutti::perf::DeviceLimit;
using tutti::perf::Exit;
using tutti::perf::Settings;

constexpr double kSeconds = 0.02;  // for a figure, unless --time says more

int measure(const Settings& settings) {
  const int ranks = std::max(settings.ranks, 2);
  const double seconds = settings.row_seconds > 0 ? settings.row_seconds : kSeconds;
  DeviceLimit limit(settings.max_bytes, ranks);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  fmt::print("# {}, {} ranks\n# {:>12s} {:>10s} {:>10s} {:>12s}\n", limit.gpu().name(), ranks, "size", "copy us",
             "GB/s", "host loop us");
  for (const std::size_t bytes : tutti::perf::row_sizes(settings)) {
    if (bytes == 0) continue;
    const double copy = limit.copy_us(bytes, seconds);
    const double loop = limit.loop_us(bytes, seconds);
    // Read and written.
    const double gb_per_s = 2 * static_cast<double>(bytes) / (copy * 1e3);
    fmt::print("{:14d} {:10.2f} {:10.1f} {:12.2f}\n", bytes, copy, gb_per_s, loop);
    rows.push_back({{"size", bytes}, {"copy_us", copy}, {"gb_per_s", gb_per_s}, {"loop_us", loop}});
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
    fmt::print(stderr, "device_limit: {}\n", error.what());
    return static_cast<int>(error.code() == tutti::Code::unsupported ? Exit::unsupported : Exit::system);
  }
}
