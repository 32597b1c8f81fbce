#include "collectives/job/stable_hash.h"

#include <sodium.h>

#include <array>
#include <cstddef>

#include "base/check.h"

namespace tutti {

std::uint64_t stable_hash(std::string_view text) {
  static const bool ready = sodium_init() >= 0;
  TUTTI_CHECK(ready);
  constexpr std::array<unsigned char, crypto_shorthash_KEYBYTES> kKey{};
  std::array<unsigned char, crypto_shorthash_BYTES> bytes{};
  crypto_shorthash(bytes.data(), reinterpret_cast<const unsigned char*>(text.data()), text.size(), kKey.data());
  std::uint64_t number = 0;  // as SipHash is written, on any machine
  for (std::size_t i = bytes.size(); i-- > 0;) number = number << 8 | bytes[i];
  return number;
}

}  // namespace tutti
