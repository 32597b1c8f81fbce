// What the build found: the configure summary, compiled in. features() is in a file that CMake writes (tutti_summary).
#pragma once

#include <span>

namespace tutti::cli {

struct Feature {
  const char* name;
  const char* state;  // "on" or "off"
  const char* why;
};

std::span<const Feature> features();

}  // namespace tutti::cli
