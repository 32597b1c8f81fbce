#include "transport/sockets/interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <optional>

#include "base/options.h"
#include "base/parse.h"
#include "transport/sockets/fd.h"
#include "transport/sockets/socket.h"

namespace tutti::sockets {
namespace {

// An address as its 4 or 16 bytes.
struct Bytes {
  std::array<unsigned char, 16> value{};
  int bits = 0;  // 32 or 128
};

std::optional<Bytes> parse_address(const std::string& text) {
  Bytes bytes;
  if (::inet_pton(AF_INET, text.c_str(), bytes.value.data()) == 1) {
    bytes.bits = 32;
  } else if (::inet_pton(AF_INET6, text.c_str(), bytes.value.data()) == 1) {
    bytes.bits = 128;
  } else {
    return std::nullopt;
  }
  return bytes;
}

bool same_prefix(const Bytes& a, const Bytes& b, int bits) {
  if (a.bits != b.bits) return false;
  for (int i = 0; i < bits; ++i) {
    const auto byte = static_cast<std::size_t>(i / 8);
    if (((a.value[byte] ^ b.value[byte]) >> (7 - i % 8) & 1) != 0) return false;
  }
  return true;
}

bool starts_with_any(const std::string& name, std::initializer_list<const char*> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(), [&](const char* b) { return name.rfind(b, 0) == 0; });
}

bool is_ipv6(const InterfaceAddress& one) { return one.address.find(':') != std::string::npos; }

bool is_link_local(const InterfaceAddress& one) {
  const std::optional<Bytes> bytes = parse_address(one.address);
  if (!bytes) return false;
  return bytes->bits == 32 ? same_prefix(*bytes, *parse_address("169.254.0.0"), 16)
                           : same_prefix(*bytes, *parse_address("fe80::"), 10);
}

/// Worth nothing to others without the number of an interface, which each host has its own of.
bool needs_interface(const InterfaceAddress& one) { return is_ipv6(one) && is_link_local(one); }

/// How far an address is from one that a peer certainly reaches; kNever is not guessed.
enum class AddressPreference { none, some, much, kNever };

AddressPreference doubt_of(const InterfaceAddress& one) {
  if (!one.up || one.loopback || needs_interface(one)) return AddressPreference::kNever;
  if (starts_with_any(one.interface, {"docker", "br-", "virbr", "cni", "flannel", "cali", "lxcbr", "lxdbr", "incusbr",
                                      "podman", "vmnet", "vboxnet", "nerdctl", "kube-", "dummy"})) {
    return AddressPreference::kNever;
  }
  if (!one.carrier) return AddressPreference::much;
  if (starts_with_any(one.interface, {"veth", "tun", "tap", "wg", "tailscale", "ppp"}) || is_link_local(one)) {
    return AddressPreference::some;
  }
  return AddressPreference::none;
}

/// Returns true if an item of TUTTI_INTERFACE means an address. `by_name`: some interface has the item as its whole
/// name.
bool matches(const InterfaceAddress& one, const std::string& item, bool by_name) {
  if (const std::size_t slash = item.find('/'); slash != std::string::npos) {
    const std::optional<Bytes> network = parse_address(item.substr(0, slash));
    const std::optional<Bytes> own = parse_address(one.address);
    return network && own && same_prefix(*network, *own, std::atoi(item.c_str() + slash + 1));
  }
  if (parse_address(item)) return item == one.address;
  return by_name ? one.interface == item : one.interface.rfind(item, 0) == 0;
}

/// The items of TUTTI_INTERFACE. Errors: an empty item, a network that is none.
Result<std::vector<std::string>> items_of(std::string_view list) {
  std::vector<std::string> items;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    const std::string item(list.substr(at, end - at));
    at = end + 1;
    if (item.empty()) {
      return invalid_argument(
          fmt::format("TUTTI_INTERFACE: {} has an empty item; expected names, addresses or networks "
                      "with commas between them",
                      quote(std::string(list))));
    }
    if (const std::size_t slash = item.find('/'); slash != std::string::npos) {
      const std::optional<Bytes> network = parse_address(item.substr(0, slash));
      const Result<std::int64_t> bits = parse_integer(item.substr(slash + 1));
      if (!network || !bits.ok() || bits.value() < 0 || bits.value() > network->bits) {
        return invalid_argument(
            fmt::format("TUTTI_INTERFACE: {} is no network; expected such as 10.7.0.0/16 or fd00:7::/32", quote(item)));
      }
    }
    items.push_back(item);
  }
  return items;
}

using Addresses = std::vector<InterfaceAddress>;

Addresses meant_by(const Addresses& all, const std::string& item) {
  const bool by_name = std::any_of(all.begin(), all.end(), [&](const auto& one) { return one.interface == item; });
  Addresses meant;
  std::copy_if(all.begin(), all.end(), std::back_inserter(meant),
               [&](const InterfaceAddress& one) { return one.up && matches(one, item, by_name); });
  return meant;
}

const InterfaceAddress* with_address(const Addresses& some, const std::string& address) {
  const auto found = std::find_if(some.begin(), some.end(), [&](const auto& one) { return one.address == address; });
  return found == some.end() ? nullptr : &*found;
}

/// The least doubtful; of equal ones that of the default route, then one of the kind (IPv4 or IPv6) that the bootstrap
/// server has, then IPv4, then the first.
const InterfaceAddress* best_of(const Addresses& some, const Routes& routes) {
  const bool ipv6 = routes.to_peers.find(':') != std::string::npos;
  const auto rank = [&](const InterfaceAddress& one) {
    return std::array<int, 3>{static_cast<int>(doubt_of(one)), one.address == routes.by_default ? 0 : 1,
                              is_ipv6(one) == ipv6 ? 0 : 1};
  };
  const auto found =
      std::min_element(some.begin(), some.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  return found == some.end() ? nullptr : &*found;
}

/// An address of this host from which it would send to `address`; empty without a route.
std::string source_towards(const sockaddr* to, socklen_t size) {
  const Fd fd(::socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), to, size) != 0) return {};
  sockaddr_storage own{};
  socklen_t own_size = sizeof own;
  char host[NI_MAXHOST] = {};
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &own_size) != 0) return {};
  if (::getnameinfo(reinterpret_cast<sockaddr*>(&own), own_size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) {
    return {};
  }
  return host;
}

/// Returns the source towards `address`, which is numeric, with a scope where it needs one.
std::string source_towards(const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (::getaddrinfo(address.c_str(), "9", &hints, &list) != 0) return {};
  const std::string source = source_towards(list->ai_addr, list->ai_addrlen);
  ::freeaddrinfo(list);
  return source;
}

/// Returns the source towards several addresses, see routes_to().
std::string source_towards(const std::vector<std::string>& addresses) {
  const Result<Addresses> here = list_addresses();
  std::string least_doubtful;
  std::optional<AddressPreference> least;
  for (const std::string& address : addresses) {
    const std::string source = source_towards(address);
    if (source.empty()) continue;
    if (!is_own_address(address)) return source;
    const InterfaceAddress* one = here.ok() ? with_address(here.value(), source) : nullptr;
    const AddressPreference doubt = one == nullptr ? AddressPreference::kNever : doubt_of(*one);
    if (least && *least <= doubt) continue;
    least = doubt;
    least_doubtful = source;
  }
  return least_doubtful;
}

}  // namespace

Result<Addresses> list_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return system_error("cannot list the network interfaces", errno);
  Addresses all;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char text[INET6_ADDRSTRLEN] = {};
    const void* bytes = family == AF_INET
                            ? static_cast<const void*>(&reinterpret_cast<sockaddr_in*>(entry->ifa_addr)->sin_addr)
                            : static_cast<const void*>(&reinterpret_cast<sockaddr_in6*>(entry->ifa_addr)->sin6_addr);
    if (::inet_ntop(family, bytes, text, sizeof text) == nullptr) continue;
    const unsigned flags = entry->ifa_flags;
    all.push_back(
        {entry->ifa_name, text, (flags & IFF_UP) != 0, (flags & IFF_LOOPBACK) != 0, (flags & IFF_RUNNING) != 0});
  }
  ::freeifaddrs(list);
  return all;
}

std::string interface_of(const std::string& address) {
  const std::optional<Bytes> wanted = parse_address(address.substr(0, address.find('%')));
  const Result<Addresses> all = list_addresses();
  if (!wanted || !all.ok()) return "";
  for (const InterfaceAddress& one : all.value()) {
    const std::optional<Bytes> has = parse_address(one.address);
    if (has && same_prefix(*has, *wanted, wanted->bits)) return one.interface.substr(0, one.interface.find(':'));
  }
  return "";
}

bool is_own_address(const std::string& address) { return is_loopback(address) || !interface_of(address).empty(); }

Routes routes_to(const std::string& peers) {
  // Addresses for documentation, which no host has a route of its own to.
  Routes routes{source_towards(addresses_of(peers)), source_towards(std::string("198.51.100.1"))};
  if (routes.by_default.empty()) routes.by_default = source_towards(std::string("2001:db8::1"));
  return routes;
}

Result<OwnAddress> choose_address(const Addresses& all, std::string_view wanted, const Routes& routes,
                                  std::string_view host) {
  const bool exclude = !wanted.empty() && wanted[0] == '^';
  Addresses left = all;
  std::erase_if(left, needs_interface);
  if (!wanted.empty()) {
    TUTTI_ASSIGN(const std::vector<std::string> items, items_of(exclude ? wanted.substr(1) : wanted));
    bool link_local = false;
    for (const std::string& item : items) {
      Addresses meant = meant_by(all, item);
      link_local = std::erase_if(meant, needs_interface) > 0 || link_local;
      if (!exclude && meant.empty()) continue;
      if (!exclude) {
        const InterfaceAddress* one = with_address(meant, routes.to_peers);
        if (one == nullptr) one = best_of(meant, routes);
        return OwnAddress{one->address, one->interface, kByOption};
      }
      std::erase_if(left, [&](const auto& one) { return with_address(meant, one.address) != nullptr; });
    }
    if (!exclude) {
      return invalid_argument(fmt::format(
          "TUTTI_INTERFACE: host {} has none of {} that is up{}; it has {}", host, quote(std::string(wanted)),
          link_local ? " (link-local addresses of IPv6 do not count)" : "", describe_addresses(all)));
    }
  }
  if (const InterfaceAddress* one = with_address(left, routes.to_peers); one != nullptr && !one->loopback) {
    return OwnAddress{one->address, one->interface, "the route to the bootstrap server"};
  }
  const InterfaceAddress* one = best_of(left, routes);
  if (one != nullptr && doubt_of(*one) != AddressPreference::kNever) {
    return OwnAddress{one->address, one->interface, one->address == routes.by_default ? "the default route" : "order"};
  }
  if (exclude) {
    return invalid_argument(
        fmt::format("TUTTI_INTERFACE: {} leaves host {} no address that its peers could reach; it has "
                    "{}",
                    quote(std::string(wanted)), host, describe_addresses(all)));
  }
  return OwnAddress{};
}

Result<OwnAddress> own_address(const Routes& routes) {
  TUTTI_ASSIGN(const Addresses all, list_addresses());
  return choose_address(all, options::text(Option::interface), routes, host_name());
}

Result<OwnAddress> own_address_at(const std::string& source) {
  Routes routes = routes_to({});
  routes.to_peers = source;
  return own_address(routes);
}

std::string describe_addresses(const Addresses& all) {
  std::string text;
  std::vector<std::string> told;
  for (const InterfaceAddress& one : all) {
    if (!one.up || std::count(told.begin(), told.end(), one.interface) > 0) continue;
    told.push_back(one.interface);
    std::string addresses;
    for (const InterfaceAddress& other : all) {
      if (other.interface != one.interface || needs_interface(other)) continue;
      addresses += (addresses.empty() ? "" : ", ") + other.address;
    }
    if (!addresses.empty()) text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", one.interface, addresses);
  }
  return text.empty() ? "no address" : text;
}

bool is_loopback(std::string_view address) {
  return address == "localhost" || address == "::1" || address.substr(0, 4) == "127.";
}

}  // namespace tutti::sockets
