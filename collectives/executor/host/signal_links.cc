#include "collectives/executor/host/signal_links.h"

#include "collectives/plan/plan.h"
#include "transport/wire/net_links.h"

namespace tutti::executor {

SignalLinks::SignalLinks(transport::Transport& transport, int rank)
    : sizes_(transport.sizes()), links_(transport.sizes().signal_cells()) {
  const transport::NetLinks* net = transport.net_links();
  for (int peer = 0; peer < sizes_.ranks; ++peer) {
    for (int lane = 0; lane < sizes_.lanes; ++lane) {
      for (int channel = 0; channel < plan::kChannels; ++channel) {
        SignalLink& l = at(peer, lane, channel);
        l.in = &transport.window(rank).signals[sizes_.signal_index(peer, lane, channel)];
        l.out = &transport.window(peer).signals[sizes_.signal_index(rank, lane, channel)];
        l.sleep = &transport.window(peer).board->sleep;
        l.remote = net != nullptr && net->is_remote(peer);
      }
    }
  }
}

}  // namespace tutti::executor
