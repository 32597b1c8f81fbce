// A rank other than 0 at the meeting: how it gets in, and its loop afterwards.
#pragma once

#include <chrono>

#include "base/status.h"
#include "transport/bootstrap/connection.h"
#include "transport/bootstrap/local_rank.h"
#include "transport/bootstrap/secret.h"
#include "transport/sockets/socket.h"

namespace tutti::bootstrap {

/// An open connection whose both ends have proven themselves.
struct Entered {
  Connection connection;
  Identity hub;
};

/// Connects to the hub, again and again until `deadline`, since rank 0 may start last. Errors: timeout (names rank 0
/// and what was seen last), and at once: invalid_argument (another secret, a rank that is here already, another size).
Result<Entered> enter(const LocalRank& local, const sockets::Endpoint& hub, const Secret& secret,
                      LocalRank::Clock::time_point deadline, std::chrono::milliseconds limit);

/// Until `local` is asked to leave or to stop. Runs on its own thread.
void serve_guest(LocalRank& local, Entered entered);

/// In its place, where this rank cannot go on: tells the hub why, and says goodbye.
void excuse_guest(const LocalRank& local, Entered& entered, const Status& why);

}  // namespace tutti::bootstrap
