// For tests: another NVML in the place of the machine's.
#pragma once

#include "topology/nvml.h"

namespace tutti::topology {

/// From now on this table is NVML; null: the machine's own again.
void set_nvml_for_tests(const Nvml* table);

}  // namespace tutti::topology
