// The one function that a baseline plug-in exports. Plug-in and program are built together: C++ types cross the border,
// exceptions do not.
#pragma once

#include <memory>

#include "base/status.h"
#include "collectives/baseline/baseline.h"
#include "collectives/communicator_interface.h"

namespace tutti {

inline constexpr const char* kOpenBaselineSymbol = "tutti_baseline_open";
/// Sets `communicator`, or `status` to what went wrong.
using OpenBaseline = void(const BaselineSettings& settings, std::shared_ptr<CommunicatorInterface>& communicator,
                          Status& status);

}  // namespace tutti

extern "C" __attribute__((visibility("default"))) tutti::OpenBaseline tutti_baseline_open;
