// What a process tells its peers so that they can connect: its rails, and the queue pairs for each rank, one for each
// rail that the two go by (topology/rails.h), but not more than lanes. Pure.
//
//   "TVB2" | rails | ranks | lanes        four 32-bit words
//   RailEnd, for each rail
//   numbers of the queue pairs for rank 0, as many as there are lanes, then for rank 1, ...   32 bits each; 0: none
//
// All in the byte order of the hosts, which are of one kind.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/status.h"
#include "transport/verbs/devices.h"

namespace tutti::transport::verbs {

/// One end of a rail, as its peers must know it.
struct RailEnd {
  std::array<std::uint8_t, 16> gid{};
  std::uint32_t first_packet = 0;  // sequence number, of all connections
  std::int32_t mtu = 0;            // bytes
  std::uint16_t lid = 0;
  std::uint8_t infiniband = 0;  // 1: InfiniBand, by LID; 0: RoCE, by GID
  GidType gid_type = GidType::roce_v2;
};
static_assert(sizeof(RailEnd) == 28 && std::is_trivially_copyable_v<RailEnd>);

struct Address {
  std::vector<RailEnd> rails;
  std::size_t lanes = 1;
  std::vector<std::uint32_t> pairs;  // rank * lanes + lane

  std::uint32_t pair(int rank, std::size_t lane) const { return pairs[static_cast<std::size_t>(rank) * lanes + lane]; }
};

std::string text_of(const Address& address);
/// Errors: invalid_argument, naming `who` has sent it.
Result<Address> address_of(std::string_view text, int ranks, std::size_t lanes, std::string_view who);

}  // namespace tutti::transport::verbs
