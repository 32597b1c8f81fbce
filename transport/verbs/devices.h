// Which ports of which RDMA devices carry the rails of a job. Descriptions in, a choice out, so that machines that we
// do not own can be tested; rail.h makes the descriptions.
//
// How: TUTTI_VERBS_DEVICES ("mlx5_0,mlx5_2:1,mlx5_3@10.1.0.5") names the rails, in its order, and the GID of a RoCE
//   port by its address. Without it the port is taken that has the address by which the job's other ranks reach this
//   host. All active ports of its kind and speed go with it. Where the hosts meet by another network, the fastest
//   active InfiniBand ports are taken, or else the fastest active RoCE ports. Rails are in the order of the devices'
//   names, in which numbers count as such. So rail k is the same cable plan on all hosts. Which of them a pair of
//   processes goes by: topology/rails.h.
//
// A RoCE port needs an entry of its GID table as its source address: of an interface that is up; the job's own address
// before others, RoCE v2 (routed, UDP) before v1 (one Ethernet), IPv4 before IPv6 before link-local. An InfiniBand port
// goes by its LID, which serves inside one subnet.
// Errors: unsupported, when no port can be chosen; invalid_argument, when TUTTI_VERBS_DEVICES names others or too many.
// Threads: pure; any.
// Limits: kMostRails rails.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tutti::transport::verbs {

enum class GidType : std::uint8_t { infiniband, roce_v1, roce_v2 };
const char* name_of(GidType type);

struct Gid {
  int index = 0;  // in the port's table
  GidType type = GidType::roce_v2;
  std::array<std::uint8_t, 16> bytes{};
  std::string interface;  // "eth0"; empty: not known
  bool up = false;        // the interface

  /// "10.9.0.1" for an IPv4 address in its IPv6 form, else "fe80::1".
  std::string address() const;
};

struct Port {
  std::string device;
  int number = 1;
  bool infiniband = false;  // else Ethernet: RoCE
  std::string unopened;     // why its device cannot be opened, of which nothing else is known then; empty: it can
  bool active = false;
  int mtu = 1024;  // bytes
  std::uint16_t lid = 0;
  double gb_per_s = 0;
  std::vector<Gid> gids;

  std::string name() const;  // "rxe0:1"
};

/// A port, and the entry of its GID table; -1: by LID.
struct RailChoice {
  std::size_t port = 0;
  int gid = -1;  // position in Port::gids
};

inline constexpr std::size_t kMostRails = 32;

/// The rails, at least one. `wanted`: of TUTTI_VERBS_DEVICES. `own_ip` may be empty. Errors: unsupported,
/// invalid_argument (of `wanted`; also when it names more than kMostRails), listing what there is.
Result<std::vector<RailChoice>> choose_rails(const std::vector<Port>& ports, std::string_view wanted,
                                             std::string_view own_ip);

/// "rxe0:1 gid 1 (10.9.0.1)", "mlx5_0:1 lid 12".
std::string describe(const Port& port, int gid);
/// One clause for each port: "rxe0:1 (RoCE, active, 10.9.0.1), mlx5_1:1 (InfiniBand, down), mlx5_2:1 (cannot be opened:
/// Permission denied)"; "none".
std::string list(const std::vector<Port>& ports);

}  // namespace tutti::transport::verbs
