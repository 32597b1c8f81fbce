// What the ranks did last: read from the boards that every rank writes anyway, its own and those of peers whose memory
// is reachable (also when their process is gone).
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"
#include "collectives/executor/wait/wait.h"
#include "transport/transport.h"

namespace tutti {
class TuttiCommunicator;
}

namespace tutti::flight_recorder {

/// The last `most` calls of one rank as a table, the oldest first.
std::string text_of_rank(const transport::Board& board, const std::string& name, std::size_t most);
/// All calls of all ranks, a table for each.
std::string text(transport::Transport& transport, const executor::RankName& name);
/// {"ranks": [{"rank": 0, "name": ..., "calls": [{"sequence": 7, "call": "all_reduce(...)", ...}]}]}
std::string json(transport::Transport& transport, const executor::RankName& name);

/// Says the failure on standard error in one line, with the own last calls below; all calls of all ranks go to the file
/// that TUTTI_FLIGHT_RECORDER names.
void print_on_failure(const TuttiCommunicator& communicator, const Status& failure);

/// Whether the signal that TUTTI_FLIGHT_SIGNAL names can be had. Errors: invalid_argument; the program handles it
/// itself, or nobody can.
Status check_signal();

/// Communicators that a signal (TUTTI_FLIGHT_SIGNAL) prints, and writes to that file. Thread-safe.
void enlist(const TuttiCommunicator* communicator);
void delist(const TuttiCommunicator* communicator);

}  // namespace tutti::flight_recorder
