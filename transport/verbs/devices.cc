#include "transport/verbs/devices.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/log.h"
#include "base/parse.h"

namespace tutti::transport::verbs {

namespace {

bool is_ipv4(const Gid& gid) {
  constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  return std::equal(kMapped, kMapped + 12, gid.bytes.begin());
}

bool is_link_local(const Gid& gid) { return gid.bytes[0] == 0xFE && (gid.bytes[1] & 0xC0) == 0x80; }

bool has_address(const Gid& gid, std::string_view ip) { return !ip.empty() && gid.up && gid.address() == ip; }

/// Position of the source address that a RoCE port uses; -1: it has none.
int best_gid(const Port& port, std::string_view own_ip) {
  int best = -1;
  std::tuple<bool, bool, bool, bool> rank_of_best;
  for (std::size_t i = 0; i < port.gids.size(); ++i) {
    const Gid& gid = port.gids[i];
    if (!gid.up || gid.type == GidType::infiniband) continue;
    const std::tuple<bool, bool, bool, bool> rank{has_address(gid, own_ip), !is_link_local(gid),
                                                  gid.type == GidType::roce_v2, is_ipv4(gid)};
    if (best < 0 || rank > rank_of_best) {
      best = static_cast<int>(i);
      rank_of_best = rank;
    }
  }
  return best;
}

/// Empty: the port can be used.
std::string why_not(const Port& port) {
  if (!port.unopened.empty()) return fmt::format("{} cannot be opened: {}", port.name(), port.unopened);
  if (!port.active) return fmt::format("{} is not active", port.name());
  if (port.infiniband && port.lid == 0) return fmt::format("{} has no LID (is a subnet manager running?)", port.name());
  if (!port.infiniband && best_gid(port, "") < 0) {
    return fmt::format("{} has no GID of an interface that is up", port.name());
  }
  return "";
}

/// The port's entry of that address, of an interface that is up.
Result<int> gid_named(const Port& port, std::string_view address) {
  const int gid = port.infiniband ? -1 : best_gid(port, address);
  if (gid >= 0 && has_address(port.gids[static_cast<std::size_t>(gid)], address)) return gid;
  if (port.infiniband) {
    return invalid_argument(port.name() + " is InfiniBand, which goes by its LID and not by an address");
  }
  std::string there;
  for (const Gid& gid : port.gids) {
    if (gid.up) there += fmt::format("{}{} ({})", there.empty() ? "" : ", ", gid.address(), name_of(gid.type));
  }
  return invalid_argument(fmt::format("{} has no GID of that address; expected one of: {}", port.name(), there));
}

RailChoice rail_on(const std::vector<Port>& ports, std::size_t port, std::string_view own_ip) {
  return {port, ports[port].infiniband ? -1 : best_gid(ports[port], own_ip)};
}

Result<std::vector<RailChoice>> rails_by_name(const std::vector<Port>& ports, std::string_view wanted,
                                              std::string_view own_ip) {
  std::vector<RailChoice> rails;
  while (!wanted.empty()) {
    const std::size_t comma = wanted.find(',');
    const std::string_view whole = wanted.substr(0, comma);
    const std::size_t at = whole.find('@');
    const std::string_view word = whole.substr(0, at);
    wanted = comma == std::string_view::npos ? std::string_view() : wanted.substr(comma + 1);
    std::string problem = fmt::format("no port has that name; there are: {}", list(ports));
    std::size_t found = ports.size();
    for (std::size_t p = 0; p < ports.size(); ++p) {
      if (word != ports[p].name() && word != ports[p].device) continue;
      problem = why_not(ports[p]);
      found = p;
      if (problem.empty()) break;
    }
    RailChoice rail{found, -1};
    if (problem.empty() && at != std::string_view::npos) {
      const Result<int> gid = gid_named(ports[found], whole.substr(at + 1));
      problem = gid.status().message();
      if (gid.ok()) rail.gid = gid.value();
    } else if (problem.empty()) {
      rail = rail_on(ports, found, own_ip);
    }
    if (!problem.empty()) {
      return invalid_argument(fmt::format("TUTTI_VERBS_DEVICES: {} cannot be used: {}", quote(whole), problem));
    }
    rails.push_back(rail);
  }
  return rails;
}

/// Orders names as the bus does, numbers as numbers: "mlx5_2" before "mlx5_10", "ibp24s0" before "ibp154s0".
std::string order_of(std::string_view name) {
  constexpr std::size_t kDigits = 20;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::string order;
  for (std::size_t begin = 0, end = 0; begin < name.size(); begin = end) {
    while (end < name.size() && is_digit(name[end])) ++end;
    if (end > begin) {
      order.append(kDigits - std::min(end - begin, kDigits), '0');
    } else {
      ++end;
    }
    order.append(name.substr(begin, end - begin));
  }
  return order;
}

/// Positions of the ports that are like the one that has `own_ip`; where none has it, like the fastest one, of
/// InfiniBand if there is any.
std::vector<std::size_t> rails_by_likeness(const std::vector<Port>& ports, std::string_view own_ip) {
  std::vector<std::size_t> usable;
  for (std::size_t p = 0; p < ports.size(); ++p) {
    if (why_not(ports[p]).empty()) usable.push_back(p);
  }
  if (usable.empty()) return {};
  const auto key = [&](std::size_t p) {
    return std::tuple(order_of(ports[p].device), ports[p].device, ports[p].number);
  };
  std::sort(usable.begin(), usable.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  const auto merit = [&](std::size_t p) {
    const bool has_own = std::any_of(ports[p].gids.begin(), ports[p].gids.end(),
                                     [&](const Gid& gid) { return has_address(gid, own_ip); });
    return std::tuple(has_own, ports[p].infiniband, ports[p].gb_per_s);
  };
  const Port& model = ports[*std::max_element(usable.begin(), usable.end(),
                                              [&](std::size_t a, std::size_t b) { return merit(a) < merit(b); })];
  std::erase_if(usable, [&](std::size_t p) {
    return ports[p].infiniband != model.infiniband || ports[p].gb_per_s != model.gb_per_s;
  });
  return usable;
}

}  // namespace

const char* name_of(GidType type) {
  constexpr const char* kNames[] = {"InfiniBand", "RoCE v1", "RoCE v2"};
  return kNames[static_cast<int>(type)];
}

std::string Gid::address() const {
  char text[INET6_ADDRSTRLEN] = {};
  const bool four = is_ipv4(*this);
  return ::inet_ntop(four ? AF_INET : AF_INET6, bytes.data() + (four ? 12 : 0), text, sizeof text) != nullptr ? text
                                                                                                              : "";
}

std::string Port::name() const { return fmt::format("{}:{}", device, number); }

std::string describe(const Port& port, int gid) {
  if (gid < 0) return fmt::format("{} lid {}", port.name(), port.lid);
  const Gid& chosen = port.gids[static_cast<std::size_t>(gid)];
  return fmt::format("{} gid {} ({})", port.name(), chosen.index, chosen.address());
}

std::string list(const std::vector<Port>& ports) {
  std::string text;
  for (const Port& port : ports) {
    if (!port.unopened.empty()) {
      text += fmt::format("{}{} (cannot be opened: {})", text.empty() ? "" : ", ", port.name(), port.unopened);
      continue;
    }
    const int gid = port.infiniband ? -1 : best_gid(port, "");
    text += fmt::format("{}{} ({}, {}{})", text.empty() ? "" : ", ", port.name(),
                        port.infiniband ? "InfiniBand" : "RoCE", port.active ? "active" : "down",
                        port.infiniband ? fmt::format(", lid {}", port.lid)
                        : gid < 0       ? ", no address of an interface that is up"
                                        : ", " + port.gids[static_cast<std::size_t>(gid)].address());
  }
  return text.empty() ? "none" : text;
}

Result<std::vector<RailChoice>> choose_rails(const std::vector<Port>& ports, std::string_view wanted,
                                             std::string_view own_ip) {
  std::vector<RailChoice> rails;
  if (!wanted.empty()) {
    TUTTI_ASSIGN(rails, rails_by_name(ports, wanted, own_ip));
    if (rails.size() > kMostRails) {
      return invalid_argument(fmt::format("TUTTI_VERBS_DEVICES: {} names {} ports; expected {} at most", quote(wanted),
                                          rails.size(), kMostRails));
    }
  } else {
    for (const std::size_t p : rails_by_likeness(ports, own_ip)) rails.push_back(rail_on(ports, p, own_ip));
  }
  if (rails.empty()) {
    return unsupported(fmt::format("verbs: no RDMA port can be used; there are: {}", list(ports)));
  }
  if (rails.size() > kMostRails) {
    log::info("verbs: {} ports could be rails; the first {} are: {}", rails.size(), kMostRails, list(ports));
    rails.resize(kMostRails);
  }
  return rails;
}

}  // namespace tutti::transport::verbs
