// The bootstrap server, at rank 0: lets the job's ranks in, carries their exchanges, and reports failures to all ranks.
//
// How: one loop around poll(). Nothing in it blocks, so no slow rank and no unauthenticated peer delays another one.
// Threads: the loop runs on a thread of its own.
#pragma once

#include <memory>

#include "base/status.h"
#include "transport/bootstrap/endpoint.h"
#include "transport/bootstrap/secret.h"
#include "transport/sockets/socket.h"

namespace tutti::bootstrap {

/// Serves until `local`, which is rank 0, is asked to leave or to stop. The listener is closed once all ranks have
/// joined.
void run_server(BootstrapEndpoint& local, std::unique_ptr<sockets::Listener> listener, const Secret& secret);

/// Replaces run_server() where rank 0 cannot serve: each rank that comes within 1.5 s fails with `why`.
void refuse_all(BootstrapEndpoint& local, std::unique_ptr<sockets::Listener> listener, const Secret& secret,
                const Status& why);

}  // namespace tutti::bootstrap
