// Which of a host's addresses its peers on other hosts are told.
//
// TUTTI_INTERFACE decides where it is set: a comma-separated list, whose first item that this host has is taken, so
// that one value serves hosts that differ. A '^' before the list leaves out what it names. An item is an interface's
// name ("eth0"), the beginning of names ("eth"; a whole name means that one alone), an address ("10.7.0.2"), or a
// network ("10.7.0.0/16", "fd00:7::/32").
// Without it three addresses are tried. First comes that from which this host reaches the bootstrap server (on rank 0's
// host that at which the others reach it, see bootstrap/server_addresses.h). Where that is not known, or is of this
// host alone, that of the default route is taken; else the first.
// Never guessed are loopback, interfaces that are down, IPv6 link-local addresses (worth nothing without the number of
// an interface), and bridges for containers and virtual machines (docker0, br-*, virbr0, ...). Every host has those
// bridges with the same address. Tunnels, ends of veth pairs and IPv4 link-local addresses are guessed only where there
// is nothing else.
// Errors: system, when the kernel does not list its addresses; invalid_argument, when nothing here is wanted.
// Threads: any. choose_address() and describe_addresses() are pure; the others ask the system.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tutti::sockets {

/// One address of one interface.
struct InterfaceAddress {
  std::string interface;
  std::string address;  // numeric; IPv6 without a scope
  bool up = true;
  bool loopback = false;
  bool carrier = true;  // the kernel tells it a moment late
};

/// Addresses of this host from which it sends to others, as its routes have it; empty where there is no route.
struct Routes {
  std::string to_peers;  // to the bootstrap server
  std::string by_default;
};

struct OwnAddress {
  std::string address;    // empty: this host has none that another could reach
  std::string interface;  // that has it
  std::string why;        // kByOption, "the route to the bootstrap server", "the default route", "order"
};
inline constexpr const char* kByOption = "TUTTI_INTERFACE";

/// Returns them in the order of the kernel. Errors: system.
Result<std::vector<InterfaceAddress>> list_addresses();
/// The interface that has the address, which is numeric and may have a scope; empty: none. Of an address with a label
/// ("eth0:1") it is the interface that the label is of.
std::string interface_of(const std::string& address);
/// Returns true if the address, numeric, is one of this host's: a peer that connects from there is on it. Loopback is.
bool is_own_address(const std::string& address);

/// `peers`: as the `address` of an Endpoint; empty, or the name of a Unix socket: not known. Of several addresses the
/// first of another host counts; where all are this host's own, the one that others reach most likely. Sends nothing,
/// but may wait for the resolution of names.
Routes routes_to(const std::string& peers);

/// `wanted`: as TUTTI_INTERFACE; `host`: this one's name, for errors. Errors: invalid_argument (nothing here is wanted;
/// names what there is).
Result<OwnAddress> choose_address(const std::vector<InterfaceAddress>& all, std::string_view wanted,
                                  const Routes& routes, std::string_view host);

/// Returns this process's, by TUTTI_INTERFACE and the routes. Errors: system, invalid_argument.
Result<OwnAddress> own_address(const Routes& routes);
/// Returns it where connections to peers leave from, or come in at, `source`; empty: not known.
Result<OwnAddress> own_address_at(const std::string& source);

/// "eth0 (10.7.0.2, fd00::2), lo (127.0.0.1)"; "no address" when there is none. Leaves out what is down.
std::string describe_addresses(const std::vector<InterfaceAddress>& all);

/// "127.0.0.1", "::1", "localhost" and the like, which no other host reaches.
bool is_loopback(std::string_view address);

}  // namespace tutti::sockets
