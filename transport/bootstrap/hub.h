// The meeting place, at rank 0: lets the job's ranks in and keeps strangers out, hands exchanges round, and tells
// everybody about failures. One loop around poll(); nothing in it blocks, so that no stranger and no slow rank delays
// another.
#pragma once

#include <memory>

#include "base/status.h"
#include "transport/bootstrap/local_rank.h"
#include "transport/bootstrap/secret.h"
#include "transport/sockets/socket.h"

namespace tutti::bootstrap {

/// Until `local` (which is rank 0) is asked to leave or to stop. Runs on its own thread. Nobody new is let in once all
/// ranks are here: the listener is closed then.
void serve_hub(LocalRank& local, std::unique_ptr<sockets::Listener> listener, const Secret& secret);

/// In its place, where rank 0 cannot serve: tells those who come within 1.5 s, each of which then fails with `why`.
void turn_away(LocalRank& local, std::unique_ptr<sockets::Listener> listener, const Secret& secret, const Status& why);

}  // namespace tutti::bootstrap
