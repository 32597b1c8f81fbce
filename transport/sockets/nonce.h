// A number that is used once: names of Unix sockets, and what the proofs of a connection are bound to.
#pragma once

#include <array>

namespace tutti::sockets {

using Nonce = std::array<unsigned char, 32>;

/// Returns 32 bytes of the system's random numbers.
Nonce random_nonce();

}  // namespace tutti::sockets
