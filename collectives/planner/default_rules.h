// The built-in selection rules. Measured on two cores with shared memory; what was measured is in perf/README.md.
// Of several that match, the last one that can serve is taken: so the first of each collective is what serves always
// (through scratch), then what reads and writes the callers' buffers directly, then what is quickest for small
// messages.
#pragma once

#include <string_view>

namespace tutti::planner {

inline constexpr std::string_view kDefaultRules = R"(
all_reduce     * *      staged_two_shot
all_reduce     * *      two_shot
all_reduce     * 0-8K   one_shot plain
all_reduce     * 512K-inf staged_two_shot plain
all_reduce     * 0-1K   one_shot

reduce_scatter * *      staged_direct
reduce_scatter * *      direct
reduce_scatter * 0-8K   one_shot plain
reduce_scatter * 0-2K   one_shot

all_gather     * *      ring
all_gather     * *      direct
all_gather     * 0-8K   one_shot

broadcast      * *      chain
broadcast      * *      direct
broadcast      * 0-8K   one_shot

reduce         * *      one_shot
reduce         * *      direct
reduce         * 0-8K   one_shot

all_to_all     * *      pairwise
all_to_all     * *      direct
all_to_all     * 0-8K   one_shot

gather         * *      linear
gather         * *      direct
gather         * 0-8K   one_shot

scatter        * *      linear
scatter        * *      direct
scatter        * 0-8K   one_shot

barrier        * *      dissemination
)";

}  // namespace tutti::planner
