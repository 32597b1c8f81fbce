// For bodies of ranks, where a failed expectation must end the rank: throws with the place and the condition.
#pragma once

#include <stdexcept>
#include <string>

#define MUST(condition)                                                                               \
  do {                                                                                                \
    if (!(condition)) throw std::runtime_error("line " + std::to_string(__LINE__) + ": " #condition); \
  } while (false)
