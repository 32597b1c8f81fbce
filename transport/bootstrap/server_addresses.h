// Where other hosts reach the ranks of the server's host (server.h), as learnt from the connections that they make.
#pragma once

#include <string>
#include <vector>

#include "transport/bootstrap/ranks.h"
#include "transport/sockets/interfaces.h"
#include "transport/sockets/socket.h"

namespace tutti::bootstrap {

class ServerAddresses {
 public:
  /// Learns from the connection `fd` of a rank that has joined. A rank on another host has reached rank 0 (`own`) at an
  /// address that serves all others; rank 0 itself may listen on all. A rank on this host may have come by an address
  /// that means nothing elsewhere, such as that of a bridge of containers.
  void learn(int fd, Identity& own) {
    if (!own.address.empty()) return;
    const std::string here = sockets::local_address_of(fd);
    if (sockets::is_own_address(sockets::remote_address_of(fd))) {
      reached_inside_ = here;
    } else if (!here.empty()) {
      take(here, own);
      if (own.address.empty()) own.interface = sockets::interface_of(here);
    }
  }

  /// Called when all ranks have joined: gives the ranks of this host their address, which they have left to rank 0
  /// (client.cc). If no rank has come from another host, it is the address by which they have come themselves.
  /// `server`: where rank 0 listens.
  void settle(std::vector<ServerRank>& ranks, const sockets::Endpoint& server) {
    Identity& own = ranks[0].who;
    const bool inside = !reached_inside_.empty() && !sockets::is_loopback(server.address);
    if (own.address.empty() && inside) take(reached_inside_, own);
    for (ServerRank& rank : ranks) {
      if (!rank.who.address.empty()) continue;
      if (!sockets::is_own_address(sockets::remote_address_of(rank.connection.fd()))) continue;
      rank.who.address = own.address;
      rank.who.interface = own.interface;
    }
  }

 private:
  static void take(const std::string& here, Identity& own) {
    const Result<sockets::OwnAddress> address = sockets::own_address_at(here);
    if (!address.ok()) return;  // Bootstrap::connect has tried it before
    own.address = address.value().address;
    own.interface = address.value().interface;
  }

  std::string reached_inside_;  // this host's address by which one of its own ranks has come
};

}  // namespace tutti::bootstrap
