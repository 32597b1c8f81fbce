// A number for a text that is the same on all hosts of a job, whatever compiler and standard library each was built
// with; std::hash need not be. No protection against an attacker.
#pragma once

#include <cstdint>
#include <string_view>

namespace tutti {

/// SipHash-2-4 (Aumasson, Bernstein 2012) with a key of zeros, by libsodium. Any thread.
std::uint64_t stable_hash(std::string_view text);

}  // namespace tutti
