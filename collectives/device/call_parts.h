// The parts of a communicator that device paths use. All outlive the paths.
#pragma once

#include "collectives/calls/comm_context.h"
#include "collectives/calls/control_gather.h"
#include "collectives/calls/count_exchange.h"
#include "collectives/calls/host_path.h"
#include "collectives/calls/p2p_queue.h"
#include "collectives/diagnostics/call_log.h"

namespace tutti {

struct CallParts {
  CommContext& context;
  HostPath& host;
  ControlGather& gather;
  CountExchange& counts;
  P2pQueue& p2p;
  CallLog& log;
};

}  // namespace tutti
