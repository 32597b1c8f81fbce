// What the ranks did last. It is read from the boards that every rank writes anyway: its own, and those of peers whose
// memory is reachable, also when a peer's process is gone.
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"
#include "collectives/executor/host/trace.h"
#include "collectives/executor/wait/wait.h"
#include "transport/transport.h"

namespace tutti {

/// The recorder of one rank's communicator. The signal of TUTTI_FLIGHT_SIGNAL prints it while it exists.
/// Threads: any; made and destroyed by one.
class FlightRecorder {
 public:
  /// `transport` outlives the recorder; `owner` names its files.
  FlightRecorder(transport::Transport& transport, int rank, executor::RankName name, executor::FileOwner owner);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  /// Returns this rank's last `most` calls as a table, the oldest first.
  std::string last_calls(std::size_t most) const;
  /// Returns all calls of all ranks, a table for each.
  std::string text() const;
  /// Returns {"ranks": [{"rank": 0, "name": ..., "calls": [{"sequence": 7, "call": "all_reduce(...)", ...}]}]}.
  std::string json() const;
  /// Prints the failure on standard error in one line, with this rank's last calls below, and writes the file.
  void print_on_failure(const Status& failure) const;
  /// Writes json() to the file that TUTTI_FLIGHT_RECORDER names; does nothing where it names none.
  void write_file() const;

 private:
  /// Null for ranks of other hosts, of which only parts are known here; they have recorders of their own.
  const transport::Board* board_of(int rank) const;

  transport::Transport& transport_;
  const int rank_;
  const executor::RankName name_;
  const executor::FileOwner owner_;
};

/// Checks that the signal which TUTTI_FLIGHT_SIGNAL names can be handled. Errors: invalid_argument (the program handles
/// it itself, or no program can).
Status check_flight_signal();

}  // namespace tutti
