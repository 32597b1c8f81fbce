// Text from outside (options, command lines) to values: sizes, durations, whole numbers, yes/no. Pure functions.
// Errors: invalid_argument, a sentence with the text and what was expected. The caller adds where the text is from.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tutti {

/// "0", "512", "4K", "4KiB", "1.5G", "2MB": powers of 1024 (K, M, G, T; upper or lower case). Whole bytes, below 2^63.
Result<std::uint64_t> parse_bytes(std::string_view text);

/// "300", "300s", "1.5ms", "100us", "20ns", "5min", "2h". A plain number is seconds. Never negative, below 100 years.
Result<std::chrono::nanoseconds> parse_duration(std::string_view text);

/// A whole decimal number, with an optional minus.
Result<std::int64_t> parse_integer(std::string_view text);

/// "1", "on", "yes", "true" and "0", "off", "no", "false".
Result<bool> parse_flag(std::string_view text);

/// Returns the shortest form that parses back to the same value: 4194304 is "4M", 1000 is "1000".
std::string print_bytes(std::uint64_t bytes);
/// Returns the shortest form of a duration that parses back to the same value: "300s", "100us", "0s".
std::string print_duration(std::chrono::nanoseconds duration);

/// Returns `text` in quotes for an error sentence: control characters become '?', long text is cut.
std::string quote(std::string_view text);

}  // namespace tutti
