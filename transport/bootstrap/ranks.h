// The job's ranks as the bootstrap server sees them: which have joined, and how a frame reaches them.
// Threads: the server's alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/log.h"
#include "transport/bootstrap/connection.h"
#include "transport/bootstrap/endpoint.h"
#include "transport/bootstrap/message.h"

namespace tutti::bootstrap {

enum class Presence { absent, here, left, dead };

struct ServerRank {
  Presence presence = Presence::absent;
  Connection connection;  // never open for rank 0
  Identity who;
};

class ServerRanks {
 public:
  explicit ServerRanks(BootstrapEndpoint& local) : local_(local), all_(static_cast<std::size_t>(local.size())) {
    all_[0].presence = Presence::here;
    all_[0].who = local.own();
  }

  int size() const { return local_.size(); }
  ServerRank& operator[](int rank) { return all_[static_cast<std::size_t>(rank)]; }
  const ServerRank& operator[](int rank) const { return all_[static_cast<std::size_t>(rank)]; }
  std::vector<ServerRank>& all() { return all_; }
  const std::vector<ServerRank>& all() const { return all_; }

  /// Returns the ranks with that presence, in order.
  std::vector<int> that_are(Presence presence) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < size(); ++rank) {
      if ((*this)[rank].presence == presence) ranks.push_back(rank);
    }
    return ranks;
  }
  bool some_are(Presence presence) const {
    return std::any_of(all_.begin(), all_.end(), [&](const ServerRank& rank) { return rank.presence == presence; });
  }

  /// Sends a frame to a rank that is here; ignores others.
  void send(int to, const Frame& frame) {
    ServerRank& rank = (*this)[to];
    if (rank.presence != Presence::here) return;
    if (to != 0) return rank.connection.send(encode_frame(frame.type, frame.payload));
    const Status status = local_.deliver(frame);
    if (!status.ok()) log::error("the bootstrap server broke its own rules: {}", status.message());
  }
  /// Sends to all ranks but `except`; -1: to all.
  void broadcast(int except, const Frame& frame) {
    for (int rank = 0; rank < size(); ++rank) {
      if (rank != except) send(rank, frame);
    }
  }

 private:
  BootstrapEndpoint& local_;
  std::vector<ServerRank> all_;
};

}  // namespace tutti::bootstrap
