// XXH64, seed 0 (Yann Collet, "xxHash fast digest algorithm", specification 0.1.1): tells whether two ranks hold the
// same bytes. Not a defence against an attacker.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tutti::training {

class ByteHash {
 public:
  /// Any alignment. Little-endian machines.
  static std::uint64_t of(const void* data, std::size_t bytes) {
    const auto* at = static_cast<const unsigned char*>(data);
    const unsigned char* const end = at + bytes;
    std::uint64_t hash;
    if (bytes >= 32) {
      std::uint64_t lanes[4] = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
      for (; end - at >= 32; at += 32) {
        for (int i = 0; i < 4; ++i) lanes[i] = absorb(lanes[i], read<std::uint64_t>(at + 8 * i));
      }
      hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
      for (std::uint64_t lane : lanes) hash = (hash ^ absorb(0, lane)) * kPrime1 + kPrime4;
    } else {
      hash = kPrime5;
    }
    hash += bytes;
    for (; end - at >= 8; at += 8) {
      hash = std::rotl(hash ^ absorb(0, read<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
    }
    if (end - at >= 4) {
      hash = std::rotl(hash ^ (read<std::uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
      at += 4;
    }
    for (; at != end; ++at) hash = std::rotl(hash ^ (*at * kPrime5), 11) * kPrime1;
    hash = (hash ^ (hash >> 33)) * kPrime2;
    hash = (hash ^ (hash >> 29)) * kPrime3;
    return hash ^ (hash >> 32);
  }

 private:
  static constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87;
  static constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
  static constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9;
  static constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
  static constexpr std::uint64_t kPrime5 = 0x27D4EB2F165667C5;

  template <class T>
  static std::uint64_t read(const unsigned char* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  static std::uint64_t absorb(std::uint64_t lane, std::uint64_t input) {
    return std::rotl(lane + input * kPrime2, 31) * kPrime1;
  }
};

}  // namespace tutti::training
