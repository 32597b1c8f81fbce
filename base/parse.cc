#include "base/parse.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <optional>
#include <system_error>

namespace tutti {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t factor;
};

constexpr std::array<Unit, 6> kDurationUnits{{{"h", 3'600'000'000'000},
                                              {"min", 60'000'000'000},
                                              {"s", 1'000'000'000},
                                              {"ms", 1'000'000},
                                              {"us", 1'000},
                                              {"ns", 1}}};

constexpr double kLargestDuration = 100.0 * 365 * 24 * 3.6e12;  // 100 years in ns; fits 63 bits
constexpr double kLargestBytes = 9223372036854774784.0;         // the largest double below 2^63

/// A plain decimal number without sign, exponent, "inf" or "nan"; takes it off the front of `text`.
std::optional<double> take_number(std::string_view& text) {
  std::size_t length = 0;
  bool point = false;
  bool digit = false;
  while (length < text.size()) {
    const char c = text[length];
    if (c >= '0' && c <= '9') {
      digit = true;
    } else if (c == '.' && !point) {
      point = true;
    } else {
      break;
    }
    ++length;
  }
  double value = 0;
  if (!digit) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + length, value, std::chars_format::fixed);
  if (error != std::errc{} || end != text.data() + length) return std::nullopt;
  text.remove_prefix(length);
  return value;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool same_word(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (lower(a[i]) != lower(b[i])) return false;
  }
  return true;
}

/// 1024^k for "", "B", "K", "KB", "KiB", ...; 0 for anything else.
double byte_factor(std::string_view unit) {
  if (unit.empty() || same_word(unit, "b")) return 1;
  const std::string_view tail = unit.substr(1);
  if (!tail.empty() && !same_word(tail, "b") && !same_word(tail, "ib")) return 0;
  constexpr std::string_view kLetters = "kmgt";
  const std::size_t power = kLetters.find(lower(unit[0]));
  return power == std::string_view::npos ? 0 : std::ldexp(1.0, 10 * static_cast<int>(power + 1));
}

}  // namespace

std::string quote(std::string_view text) {
  constexpr std::size_t kLongestQuote = 80;
  std::string result = "'";
  for (const char c : text.substr(0, kLongestQuote)) result += c >= 0x20 && c < 0x7f ? c : '?';
  return result + (text.size() > kLongestQuote ? "...'" : "'");
}

Result<std::uint64_t> parse_bytes(std::string_view text) {
  std::string_view rest = trimmed(text);
  // Whole numbers go their own way: a double would round those past 2^53.
  std::uint64_t whole = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), whole);
  if (error == std::errc{} && end == rest.data() + rest.size() && whole >> 63 == 0) return whole;
  if (const auto number = take_number(rest)) {
    const double bytes = *number * byte_factor(trimmed(rest));
    const bool known_unit = byte_factor(trimmed(rest)) != 0;
    if (known_unit && bytes <= kLargestBytes && bytes == std::floor(bytes)) return static_cast<std::uint64_t>(bytes);
  }
  return invalid_argument(fmt::format("{} is not a size; expected bytes, as in 512, 64K, 4M or 1G", quote(text)));
}

Result<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  std::string_view rest = trimmed(text);
  if (const auto number = take_number(rest)) {
    rest = trimmed(rest);
    for (const Unit& unit : kDurationUnits) {
      if (rest != unit.name && !(rest.empty() && unit.name == "s")) continue;
      const double ns = *number * static_cast<double>(unit.factor);
      if (ns <= kLargestDuration) return std::chrono::nanoseconds(std::llround(ns));
      return invalid_argument(fmt::format("{} is too long; expected 100 years at most", quote(text)));
    }
  }
  return invalid_argument(
      fmt::format("{} is not a duration; expected a number with ns, us, ms, s, min or h, as in 300s", quote(text)));
}

Result<std::int64_t> parse_integer(std::string_view text) {
  const std::string_view rest = trimmed(text);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (!rest.empty() && error == std::errc{} && end == rest.data() + rest.size()) return value;
  return invalid_argument(fmt::format("{} is not a whole number", quote(text)));
}

Result<bool> parse_flag(std::string_view text) {
  const std::string_view rest = trimmed(text);
  for (const char* word : {"1", "on", "yes", "true"}) {
    if (same_word(rest, word)) return true;
  }
  for (const char* word : {"0", "off", "no", "false"}) {
    if (same_word(rest, word)) return false;
  }
  return invalid_argument(fmt::format("{} is neither yes nor no; expected 1 or 0", quote(text)));
}

std::string print_bytes(std::uint64_t bytes) {
  constexpr std::string_view kLetters = "KMGT";
  std::string_view unit;
  for (std::size_t i = 0; i < kLetters.size() && bytes != 0 && bytes % 1024 == 0; ++i) {
    bytes /= 1024;
    unit = kLetters.substr(i, 1);
  }
  return fmt::format("{}{}", bytes, unit);
}

std::string print_duration(std::chrono::nanoseconds duration) {
  const std::int64_t ns = duration.count();
  for (const Unit& unit : kDurationUnits) {
    // Seconds read better than hours and minutes in error sentences: "within 300s".
    if (unit.name == "h" || unit.name == "min") continue;
    if (ns % unit.factor == 0) return fmt::format("{}{}", ns / unit.factor, unit.name);
  }
  return fmt::format("{}ns", ns);
}

}  // namespace tutti
