// The parts that run the calls of one rank on host memory. A call goes through entry.enter(), walker.run() and
// entry.leave(). The parts share the signal cells, the addresses of spaces, and the call's number and tag.
//
// Errors: any failure of a call is final for the communicator.
// Threads: one at a time.
#pragma once

#include <optional>

#include "collectives/executor/host/base_table.h"
#include "collectives/executor/host/call_entry.h"
#include "collectives/executor/host/net_steps.h"
#include "collectives/executor/host/plan_walker.h"
#include "collectives/executor/host/signal_links.h"
#include "collectives/executor/wait/health.h"
#include "collectives/executor/wait/wait.h"
#include "transport/transport.h"

namespace tutti::executor {

struct HostExecutor {
  HostExecutor(transport::Transport& transport, Waiter& waiter, Health& health, int rank)
      : links(transport, rank),
        bases(transport, links, rank),
        entry(transport, waiter, links, bases, rank),
        net(transport.net_links() == nullptr
                ? std::nullopt
                : std::make_optional<NetSteps>(transport, waiter, entry, links, bases, rank)),
        walker(transport, waiter, health, entry, links, bases, net ? &*net : nullptr, rank) {}
  HostExecutor(const HostExecutor&) = delete;  // the parts refer to each other
  HostExecutor& operator=(const HostExecutor&) = delete;

  SignalLinks links;
  BaseTable bases;
  CallEntry entry;
  std::optional<NetSteps> net;  // none: all ranks are on this host
  PlanWalker walker;
};

}  // namespace tutti::executor
