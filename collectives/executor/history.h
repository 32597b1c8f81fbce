// What ties a call to all calls before it. Host and device compute the same, so this file includes nothing.
#pragma once

#include <cstdint>

namespace tutti::executor {

/// Returns a record's fingerprint: that of the call, and of all calls before it. Two ranks that ever made different
/// calls differ from then on, and find out whenever one sees the other's record.
constexpr std::uint64_t history_of(std::uint64_t before, std::uint64_t fingerprint) {
  // A multiplication keeps the order of the calls in it; the fingerprints are mixed well already.
  return before * 0x9E3779B97F4A7C15ULL + fingerprint;
}

/// The tag that signals of this call carry.
constexpr std::uint64_t tag_of(std::uint64_t history, std::uint64_t sequence) {
  return history ^ (sequence * 0x9E3779B97F4A7C15ULL);
}

}  // namespace tutti::executor
