// ncclCollConfig_t: what a program asks of one call of a collective. Hints at how NCCL's kernels should work have no
// effect here, as in ncclConfig_t; docs/nccl.md says which.
#pragma once

#include <string>

#include "nccl/abi.h"
#include "nccl/errors.h"
#include "tutti/tutti.hpp"

namespace tutti::nccl {

/// This library's options in the list `ext`.
inline constexpr int kVendor = 0x545554;  // "TUT"
inline constexpr int kDeterministic = 1;  // val.i: 0 or 1

struct CallConfig {
  std::string algorithm;  // as in CallOptions
  bool deterministic = false;
};

/// Reads `given` (null: nothing is asked for) into `config`. `function`: for the sentence.
/// Of names that are not forced, those that `collective` has.
/// Errors: ncclInvalidArgument (not made by NCCL_COLLCONFIG_INITIALIZER, a value out of range, a selection that is not
/// understood and forced), ncclInvalidUsage (an event to be recorded).
Outcome read_call_config(const char* function, Collective collective, const ncclCollConfig_t* given,
                         CallConfig& config);

}  // namespace tutti::nccl
