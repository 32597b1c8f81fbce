// The built-in selection rules. Measured on two cores with shared memory; what was measured is in perf/findings.md.
// Of several that match, the last one that can serve is taken. So the order of each collective is: what serves always,
// by puts alone; what links with load and store do better; what reads and writes the callers' buffers directly; plain
// buffers; small messages.
#pragma once

#include <string_view>

namespace tutti::planner {

inline constexpr std::string_view kDefaultRules = R"(
all_reduce     *     *        put_two_shot
all_reduce     *     *        two_shot
all_reduce     *     0-8K     one_shot         plain
all_reduce     *     *        published_two_shot staged
all_reduce     2     *        one_shot         staged
all_reduce     3-8   0-32K    one_shot         staged
all_reduce     *     0-1K     one_shot

reduce_scatter *     *        linear
reduce_scatter *     *        direct
reduce_scatter 3-inf 0-8K     one_shot
reduce_scatter *     0-1K     linear

all_gather     *     *        ring
all_gather     *     *        one_shot
all_gather     *     *        direct
all_gather     3-inf 0-8K     one_shot
all_gather     *     0-4K     one_shot

broadcast      *     *        chain
broadcast      *     *        one_shot
broadcast      *     *        direct
broadcast      3-inf 0-16K    one_shot
broadcast      *     0-4K     one_shot

reduce         *     *        linear
reduce         *     *        chain
reduce         *     *        one_shot
reduce         *     *        direct
reduce         3-inf 512K-inf chain            staged
reduce         3-inf 0-8K     one_shot
reduce         *     0-4K     one_shot

all_to_all     *     *        linear
all_to_all     *     *        direct
all_to_all     3-inf 0-8K     linear
all_to_all     2     0-1K     linear

all_to_allv    *     *        linear
all_to_allv    *     *        direct
all_to_allv    3-inf 0-8K     linear
all_to_allv    2     0-1K     linear

gather         *     *        linear
gather         *     *        one_shot
gather         *     *        direct
gather         *     0-8K     one_shot

scatter        *     *        linear
scatter        *     *        direct
scatter        *     0-8K     linear

barrier        *     *        dissemination
)";

}  // namespace tutti::planner
