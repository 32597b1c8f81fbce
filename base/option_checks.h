// Checks of numbers on command lines. CLI11's own checks print 300 digits and accept "nan".
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>

#include "base/parse.h"

namespace tutti {

/// Accepts whole numbers from `least` to `most`.
inline CLI::Validator whole_number(std::int64_t least, std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  const bool open = most == std::numeric_limits<std::int64_t>::max();
  const std::string range = open ? fmt::format("{} or more", least) : fmt::format("{} to {}", least, most);
  return {[=](std::string& text) {
            const Result<std::int64_t> value = parse_integer(text);
            if (value.ok() && value.value() >= least && value.value() <= most) return std::string();
            return fmt::format("{} is not a whole number of {}", quote(text), range);
          },
          ""};
}

/// Accepts finite numbers of 0 or more; `above`: of more than 0.
inline CLI::Validator finite_number(bool above) {
  return {[=](std::string& text) {
            char* end = nullptr;
            const double value = std::strtod(text.c_str(), &end);
            const bool number = !text.empty() && *end == '\0' && std::isfinite(value);
            if (number && (above ? value > 0 : value >= 0)) return std::string();
            return fmt::format("{} is not a number {}", quote(text), above ? "above 0" : "of 0 or more");
          },
          ""};
}

}  // namespace tutti
