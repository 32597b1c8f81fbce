// A client of the bootstrap server, which every rank but 0 is: how it joins, and its loop afterwards.
#pragma once

#include <chrono>

#include "base/status.h"
#include "transport/bootstrap/connection.h"
#include "transport/bootstrap/endpoint.h"
#include "transport/bootstrap/secret.h"
#include "transport/sockets/socket.h"

namespace tutti::bootstrap {

/// An open connection, both ends of which have proven themselves.
struct Joined {
  Connection connection;
  Identity server;
};

/// Connects to the server, again and again until `deadline`, since rank 0 may start last. Errors: timeout (names rank 0
/// and what was seen last), and at once: invalid_argument (another secret, a rank that is here already, another size).
Result<Joined> join(const BootstrapEndpoint& local, const sockets::Endpoint& server, const Secret& secret,
                    BootstrapEndpoint::Clock::time_point deadline, std::chrono::milliseconds limit);

/// Serves until `local` is asked to leave or to stop. Runs on its own thread.
void run_client(BootstrapEndpoint& local, Joined joined);

/// Replaces run_client() where this rank cannot go on: sends the server the reason, and says goodbye.
void report_and_leave(const BootstrapEndpoint& local, Joined& joined, const Status& why);

}  // namespace tutti::bootstrap
