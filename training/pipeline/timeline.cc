#include "training/pipeline/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>

namespace tutti::training {
namespace {

constexpr std::size_t kFields = 5;  // kind, stage, micro-batch, start, end

double first_start(const Timeline& timeline) {
  double first = std::numeric_limits<double>::infinity();
  for (const auto& rank : timeline) {
    for (const TimedAction& timed : rank) {
      if (!is_transfer(timed.action.kind)) first = std::min(first, timed.start);
    }
  }
  return first;
}

std::string ranks_json(const Timeline& timeline) {
  const double zero = first_start(timeline);
  std::string text = "[";
  for (std::size_t r = 0; r < timeline.size(); ++r) {
    text += r == 0 ? "\n  [" : ",\n  [";
    bool first = true;
    for (const auto& [action, start, end] : timeline[r]) {
      if (is_transfer(action.kind)) continue;
      text += fmt::format("{}[\"{}\",{},{},{:.9f},{:.9f}]", first ? "" : ",", name_of(action.kind), action.stage,
                          action.micro_batch, start - zero, end - zero);
      first = false;
    }
    text += "]";
  }
  return text + "]";
}

}  // namespace

Timeline gather_timeline(const std::vector<TimedAction>& mine, Communicator communicator) {
  const auto size = static_cast<std::size_t>(communicator.size());
  const std::uint64_t count = mine.size();
  std::vector<std::uint64_t> counts(size);
  communicator.all_gather(&count, counts.data(), 1, DataType::u64);
  const std::size_t most = *std::max_element(counts.begin(), counts.end());
  Timeline timeline(size);
  if (most == 0) return timeline;
  std::vector<double> sent(most * kFields), all(size * most * kFields);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const auto& [action, start, end] = mine[i];
    const std::array<double, kFields> fields{static_cast<double>(action.kind), static_cast<double>(action.stage),
                                             static_cast<double>(action.micro_batch), start, end};
    std::copy(fields.begin(), fields.end(), sent.begin() + static_cast<std::ptrdiff_t>(i * kFields));
  }
  communicator.all_gather(sent.data(), all.data(), sent.size(), DataType::f64);
  for (std::size_t r = 0; r < size; ++r) {
    for (std::size_t i = 0; i < counts[r]; ++i) {
      const double* f = &all[(r * most + i) * kFields];
      const Action action{static_cast<ActionKind>(f[0]), static_cast<int>(f[1]), static_cast<int>(f[2])};
      timeline[r].push_back({action, f[3], f[4]});
    }
  }
  return timeline;
}

Costs measured_costs(const Timeline& measured) {
  struct Sum {
    double seconds = 0;
    double count = 0;
    double mean() const { return seconds / count; }
  };
  std::array<Sum, kActionKinds> kinds;
  std::map<int, std::array<Sum, kActionKinds>> stages;
  for (const auto& rank : measured) {
    for (const auto& [action, start, end] : rank) {
      if (is_transfer(action.kind)) continue;
      const auto kind = static_cast<std::size_t>(action.kind);
      for (Sum* sum : {&kinds[kind], &stages[action.stage][kind]}) {
        sum->seconds += end - start;
        sum->count += 1;
      }
    }
  }
  Costs costs;
  const std::array<double*, 4> means{&costs.forward, &costs.backward, &costs.backward_input, &costs.backward_weight};
  for (std::size_t kind = 0; kind < means.size(); ++kind) {
    if (kinds[kind].count > 0) *means[kind] = kinds[kind].mean();
  }
  for (const auto& [stage, sums] : stages) {
    double own = 0, expected = 0;  // of one micro-batch
    for (std::size_t kind = 0; kind < means.size(); ++kind) {
      if (sums[kind].count == 0) continue;
      own += sums[kind].mean();
      expected += kinds[kind].mean();
    }
    if (stage != static_cast<int>(costs.stage_factor.size())) return costs;  // not a whole timeline
    costs.stage_factor.push_back(expected > 0 ? own / expected : 1);
  }
  return costs;
}

double makespan_of(const Timeline& timeline) {
  const double first = first_start(timeline);
  double last = first;
  for (const auto& rank : timeline) {
    for (const TimedAction& timed : rank) {
      if (!is_transfer(timed.action.kind)) last = std::max(last, timed.end);
    }
  }
  return last - first;
}

std::vector<double> idle_of(const Timeline& timeline) {
  const double total = makespan_of(timeline);
  std::vector<double> idle;
  for (const auto& rank : timeline) {
    double busy = 0;
    for (const TimedAction& timed : rank) busy += is_transfer(timed.action.kind) ? 0 : timed.end - timed.start;
    idle.push_back(1 - busy / total);
  }
  return idle;
}

std::string timeline_json(const Schedule& schedule, const Timeline& measured, const Timeline& simulated) {
  return fmt::format(
      "{{\"schedule\": \"{}\", \"ranks\": {}, \"stages\": {}, \"micro_batches\": {},\n\"measured\": {},\n"
      "\"simulated\": {}}}\n",
      schedule.name, schedule.ranks, schedule.stages, schedule.micro_batches, ranks_json(measured),
      ranks_json(simulated));
}

void write_timeline(const std::string& path, const Schedule& schedule, const Timeline& measured,
                    const Timeline& simulated) {
  std::ofstream file(path);
  file << timeline_json(schedule, measured, simulated);
  file.close();
  if (!file) throw Error(Code::system, fmt::format("write_timeline: cannot write '{}'", path));
}

}  // namespace tutti::training
