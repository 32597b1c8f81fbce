// Records what happened when, and writes it in the JSON form that chrome://tracing and Perfetto open
// (TUTTI_TRACE=file; one file per rank, the rank's number appended). One event per call and one per step.
//
// Threads: one at a time. The file is written when the trace is destroyed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/executor/host/record.h"
#include "collectives/plan/plan.h"

namespace tutti::executor {

class StepTrace {
 public:
  /// `path` is the file to write.
  StepTrace(std::string path, int rank);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Times are base/clock.h ticks.
  void step(plan::StepKind kind, int peer, int round, int lane, std::uint64_t begin, std::uint64_t end);
  void call(const CallSnapshot& call, const std::string& algorithm, std::uint64_t end);

 private:
  struct Event {
    std::string name;
    std::string details;
    int lane;
    std::uint64_t begin;
    std::uint64_t end;
  };
  void add(Event event);

  std::string path_;
  int rank_;
  std::vector<Event> events_;
  std::uint64_t dropped_ = 0;
};

}  // namespace tutti::executor
