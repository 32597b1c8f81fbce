// Where the ranks of the hub's host (hub.h) are reached from other hosts, as far as those who come tell.
#pragma once

#include <string>
#include <vector>

#include "transport/bootstrap/hub_exchanges.h"
#include "transport/sockets/interfaces.h"
#include "transport/sockets/socket.h"

namespace tutti::bootstrap {

class HubAddresses {
 public:
  /// Where a rank on another host has reached this one is where all others do; rank 0 may listen everywhere. One of
  /// this host may have come by an address that means nothing elsewhere, such as that of a bridge of containers. `fd`:
  /// the connection of a rank that has come; `own`: rank 0.
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

  /// When all have come. The ranks of this host have left it to rank 0 to know where others reach them (guest.cc);
  /// where nobody has come from elsewhere, it is where they have come in themselves. `hub`: where rank 0 listens.
  void settle(std::vector<Member>& members, const sockets::Endpoint& hub) {
    Identity& own = members[0].who;
    const bool inside = !reached_inside_.empty() && !sockets::is_loopback(hub.address);
    if (own.address.empty() && inside) take(reached_inside_, own);
    for (Member& member : members) {
      if (!member.who.address.empty() || !sockets::is_own_address(sockets::remote_address_of(member.connection.fd())))
        continue;
      member.who.address = own.address;
      member.who.interface = own.interface;
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
