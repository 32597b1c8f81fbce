// ncclConfig_t: what a program asks of a communicator. Fields that only hint at how NCCL's kernels should work are
// checked as NCCL checks them and then have no effect here; docs/nccl.md says which.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "nccl/abi.h"
#include "nccl/errors.h"

namespace tutti::nccl {

struct Config {
  bool blocking = true;
  std::string name;  // commName; in errors
};

/// Reads `given` (null: `inherited`) into `config`. `function`: for the sentence.
/// Errors: ncclInvalidArgument (not made by NCCL_CONFIG_INITIALIZER, a value out of range), ncclInvalidUsage (a network
/// by name: Tutti chooses its own).
Outcome read_config(const char* function, const ncclConfig_t* given, const Config& inherited, Config& config);

/// Copies as much of a struct as both the program's header and this library know; the rest of `known` stays as it is.
/// `least`: bytes of its first version. Errors: ncclInvalidArgument (not made by `initializer`).
template <class Struct>
Outcome read_struct(const char* function, const char* initializer, const Struct& given, std::size_t least,
                    Struct& known) {
  if (given.magic != kApiMagic || given.size < least) {
    return {ncclInvalidArgument, fmt::format("{}: config was not made by {} (its magic is {:#x}, its size {})",
                                             function, initializer, given.magic, given.size)};
  }
  std::memcpy(&known, &given, std::min(given.size, sizeof(known)));
  return {};
}

}  // namespace tutti::nccl
