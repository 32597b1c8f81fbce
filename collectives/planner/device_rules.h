// What the selection rules say otherwise for device memory; behind the built-in ones (default_rules.h). Until they have
// been measured on a GPU they follow from what is known of its memory: a signal between kernels costs a microsecond or
// two, bytes next to nothing below some 64 KiB. So one exchange with all data along, as long as that fits.
#pragma once

#include <string_view>

namespace tutti::planner {

inline constexpr std::string_view kDeviceRules = R"(
all_reduce     *     0-32K    one_shot
reduce_scatter *     0-32K    linear
all_gather     *     0-64K    one_shot
broadcast      *     0-32K    one_shot
reduce         *     0-32K    one_shot
all_to_all     *     0-64K    pairwise
gather         *     0-64K    one_shot
scatter        *     0-64K    linear
)";

}  // namespace tutti::planner
