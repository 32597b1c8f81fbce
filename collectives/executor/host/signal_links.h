// The signal cells between this rank and its peers, with what has been sent and seen through each.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/transport.h"

namespace tutti::executor {

/// Both directions between this rank and a peer, for one lane and channel.
struct SignalLink {
  transport::SignalCell* in = nullptr;
  transport::SignalCell* out = nullptr;
  const transport::SleepState* sleep = nullptr;  // of the peer
  bool remote = false;
  std::uint64_t seen = 0;
  std::uint64_t sent = 0;
};

class SignalLinks {
 public:
  SignalLinks(transport::Transport& transport, int rank);

  SignalLink& at(int peer, int lane, int channel) {
    return links_[static_cast<std::size_t>(sizes_.signal_index(peer, lane, channel))];
  }
  const SignalLink& first(int peer) const { return links_[static_cast<std::size_t>(sizes_.signal_index(peer, 0, 0))]; }
  bool is_remote(int peer) const { return first(peer).remote; }
  const transport::WindowSizes& sizes() const { return sizes_; }

 private:
  const transport::WindowSizes sizes_;
  std::vector<SignalLink> links_;
};

}  // namespace tutti::executor
