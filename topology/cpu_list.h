// The kernel's way to write sets of CPUs: "0-3,8,10-11".
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "topology/topology.h"

namespace tutti::topology {

/// The largest CPU number that a list may hold is one less.
inline constexpr int kMostCpus = 65536;

std::string print_cpus(const CpuList& cpus);
/// Ascending order, spaces and a newline at the end allowed; the empty list is "". Errors: invalid_argument, quoting
/// the text.
Result<CpuList> parse_cpus(std::string_view text);

}  // namespace tutti::topology
