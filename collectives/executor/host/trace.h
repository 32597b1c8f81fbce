// Records what happened when, and writes it in the JSON form that chrome://tracing and ui.perfetto.dev open
// (TUTTI_TRACE=file): one event per call and one per step, in one file per rank and communicator.
//
// In the viewer a rank is a process ("rank 3 (host alpha, pid 4711)"), with a line for the calls and one for each lane.
// Times are those of CLOCK_MONOTONIC, so the ranks of a host fit together: with the files' "traceEvents" put in one
// list a signal of one rank stands above the wait of the other.
//
// Threads: one at a time. The file is made at once and written when the trace is destroyed, that is with its
// communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "collectives/executor/record.h"
#include "collectives/plan/plan.h"

namespace tutti::executor {

/// The rank and communicator that a file is of.
struct FileOwner {
  int rank = 0;               // in the job
  std::string name;           // of that rank
  std::uint64_t comm_id = 0;  // of the communicator; 0: the job's
};

/// The file for this owner. "%r" in the option's value becomes the rank; without it ".rank3" comes before the ending
/// ".json" (which is added when it is missing), and ".comm-<comm_id>" for other communicators than the job's.
std::string rank_path(const std::string& option, const FileOwner& owner);

class StepTrace {
 public:
  /// Makes the file; one that cannot be made is reported at once, and then nothing is recorded. A path that this
  /// process has written to already is not written again: ".2" (".3", ...) is added before its ending.
  StepTrace(const std::string& path, FileOwner owner);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Times are base/clock.h ticks.
  void step(plan::StepKind kind, int peer, int round, int lane, std::uint64_t begin, std::uint64_t end);
  /// A call (or a group of sends and receives) that has ended; the steps since the last one were its own.
  void call(const CallSnapshot& call, const std::string& algorithm);

 private:
  struct StepEvent {
    std::uint64_t begin;
    std::uint64_t end;
    std::int32_t peer;
    std::int32_t round;
    std::int32_t lane;
    plan::StepKind kind;
  };
  struct CallEvent {
    CallSnapshot call;
    std::string algorithm;
    std::size_t steps_end;  // its steps lie before this one
  };
  struct Moment {
    std::uint64_t ticks;
    std::int64_t ns;
  };
  static Moment now();
  void write();

  const FileOwner owner_;
  const Moment begin_;
  std::string path_;
  std::ofstream file_;
  std::vector<StepEvent> steps_;
  std::vector<CallEvent> calls_;
  std::uint64_t dropped_ = 0;
};

}  // namespace tutti::executor
