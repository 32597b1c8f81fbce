#include "transport/verbs/address.h"

#include <fmt/format.h>

#include <cstring>

namespace tutti::transport::verbs {

namespace {

struct Header {
  char magic[4] = {'T', 'V', 'B', '2'};
  std::uint32_t rails = 0;
  std::uint32_t ranks = 0;
  std::uint32_t lanes = 0;
};

template <class T>
void append(std::string& text, const T* values, std::size_t count) {
  text.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

}  // namespace

std::string text_of(const Address& address) {
  Header header;
  header.rails = static_cast<std::uint32_t>(address.rails.size());
  header.ranks = static_cast<std::uint32_t>(address.pairs.size() / address.lanes);
  header.lanes = static_cast<std::uint32_t>(address.lanes);
  std::string text;
  append(text, &header, 1);
  append(text, address.rails.data(), address.rails.size());
  append(text, address.pairs.data(), address.pairs.size());
  return text;
}

Result<Address> address_of(std::string_view text, int ranks, std::size_t lanes, std::string_view who) {
  const Header ours;
  Header header;
  if (text.size() >= sizeof header) std::memcpy(&header, text.data(), sizeof header);
  const std::size_t rails = header.rails;
  if (text.size() < sizeof header || std::memcmp(header.magic, ours.magic, sizeof ours.magic) != 0 || rails == 0 ||
      rails > kMostRails) {
    return invalid_argument(
        fmt::format("verbs: what {} gives as its address is none of this version ({} bytes)", who, text.size()));
  }
  const std::size_t pairs = static_cast<std::size_t>(ranks) * lanes;
  const std::size_t expected = sizeof header + rails * sizeof(RailEnd) + pairs * sizeof(std::uint32_t);
  if (header.ranks != static_cast<std::uint32_t>(ranks) || header.lanes != lanes || text.size() != expected) {
    return invalid_argument(
        fmt::format("verbs: the address of {} is for {} ranks, {} lanes and has {} bytes; {} ranks, {} lanes and {} "
                    "bytes were expected",
                    who, header.ranks, header.lanes, text.size(), ranks, lanes, expected));
  }
  Address address{std::vector<RailEnd>(rails), lanes, std::vector<std::uint32_t>(pairs)};
  std::memcpy(address.rails.data(), text.data() + sizeof header, rails * sizeof(RailEnd));
  std::memcpy(address.pairs.data(), text.data() + sizeof header + rails * sizeof(RailEnd),
              pairs * sizeof(std::uint32_t));
  for (const RailEnd& end : address.rails) {
    if (end.infiniband <= 1 && end.gid_type <= GidType::roce_v2) continue;
    return invalid_argument(fmt::format("verbs: the address of {} has a rail of an unknown kind ({}, {})", who,
                                        end.infiniband, static_cast<int>(end.gid_type)));
  }
  return address;
}

}  // namespace tutti::transport::verbs
