// ncclConfig_t: what a program asks of a communicator. Fields that only hint at how NCCL's kernels should work are
// checked as NCCL checks them and then have no effect here; docs/nccl.md says which.
#pragma once

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

}  // namespace tutti::nccl
