#include "collectives/executor/host/trace.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/log.h"

namespace tutti::executor {

namespace {

constexpr std::size_t kMostEvents = 1'000'000;  // about 100 MB; what comes later is counted, not kept

const char* name_of(plan::StepKind kind) {
  constexpr const char* names[] = {"open", "put", "copy", "reduce", "signal", "wait"};
  return names[static_cast<int>(kind)];
}

}  // namespace

StepTrace::StepTrace(std::string path, int rank) : path_(std::move(path)), rank_(rank) {}

void StepTrace::add(Event event) {
  if (events_.size() < kMostEvents) {
    events_.push_back(std::move(event));
  } else {
    ++dropped_;
  }
}

void StepTrace::step(plan::StepKind kind, int peer, int round, int lane, std::uint64_t begin, std::uint64_t end) {
  add({name_of(kind), peer < 0 ? fmt::format("round {}", round) : fmt::format("round {}, peer {}", round, peer), lane,
       begin, end});
}

void StepTrace::call(const CallSnapshot& call, const std::string& algorithm, std::uint64_t end) {
  add({call.text(), fmt::format("call {}, {}", call.sequence, algorithm), -1, call.entered, end});
}

StepTrace::~StepTrace() {
  nlohmann::json events = nlohmann::json::array();
  events.push_back(
      {{"name", "process_name"}, {"ph", "M"}, {"pid", rank_}, {"args", {{"name", fmt::format("rank {}", rank_)}}}});
  for (const Event& event : events_) {
    const double begin = static_cast<double>(ns_of_ticks(event.begin)) / 1e3;
    const double end = static_cast<double>(ns_of_ticks(event.end)) / 1e3;
    events.push_back({{"name", event.name},
                      {"ph", "X"},
                      {"pid", rank_},
                      {"tid", event.lane + 1},  // calls on line 0, lanes below
                      {"ts", begin},
                      {"dur", end - begin},
                      {"args", {{"details", event.details}}}});
  }
  std::ofstream file(path_);
  file << nlohmann::json{{"traceEvents", events}, {"displayTimeUnit", "ns"}}.dump() << '\n';
  if (!file) log::error("cannot write the trace to {}", path_);
  if (dropped_ > 0) log::error("the trace {} lacks its last {} events; it holds {}", path_, dropped_, kMostEvents);
}

}  // namespace tutti::executor
