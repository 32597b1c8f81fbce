// What must be equal on all ranks for their plans to meet, and where it is not.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/job/job_context.h"
#include "transport/transport.h"

namespace tutti {

/// One thing that plans are made from.
struct Setting {
  std::string option;  // that sets it
  std::string value;
};

/// Returns what decides where scratch lies and which plan serves a call: the sizes of windows, the rules, and
/// TUTTI_TOPOLOGY's file value by value ("hosts/1/devices/3/gb_per_s = 50"). What a call's fingerprint covers need not
/// be in here. Errors: as topology::topology_of_process().
Result<std::vector<Setting>> settings_of(const transport::WindowSizes& sizes);

/// Compares them over all ranks: one exchange of a hash. If that differs, more exchanges find the first setting that
/// does. Collective. Errors: mismatch, naming the first rank that differs from rank 0, the option, and its value
/// on the rank that gets the error; what `exchange` returns.
Status compare_settings(const std::vector<Setting>& settings, const Exchange& exchange);

}  // namespace tutti
