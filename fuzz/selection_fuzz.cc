// The rules of TUTTI_SELECTION: any text is read or refused; what is read chooses algorithms that can serve, and
// printed it reads as the same rules.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "collectives/planner/selection.h"

namespace {

using tutti::planner::Demand;
using tutti::planner::Selection;

void choose(const Selection& selection, const Demand& demand) {
  const auto choice = selection.choose(demand);
  // The built-in rules alone serve every call, so more rules cannot leave one without an algorithm.
  if (!choice.ok() || !tutti::planner::why_not(*choice.value().algorithm, demand).empty()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string built_in = Selection::with_rules("").value().print();
  const auto selection = Selection::with_rules({reinterpret_cast<const char*>(data), size});
  if (!selection.ok()) return 0;
  const std::string printed = selection.value().print();
  if (!printed.starts_with(built_in)) std::abort();
  const auto again = Selection::with_rules(printed.substr(built_in.size()));
  if (!again.ok() || again.value().print() != printed) std::abort();
  for (int collective = 0; collective < tutti::kCollectives; ++collective) {
    Demand demand;
    demand.collective = static_cast<tutti::Collective>(collective);
    if (demand.collective == tutti::Collective::send_recv) continue;
    for (const int ranks : {2, 7}) {
      for (const std::size_t bytes : {std::size_t{0}, std::size_t{5000}, std::size_t{1} << 30}) {
        for (int bits = 0; bits < 16; ++bits) {
          demand.ranks = ranks;
          demand.bytes = bytes;
          demand.deterministic = (bits & 1) != 0;
          demand.buffers_open = (bits & 2) != 0;
          demand.in_place = (bits & 4) != 0;
          demand.plain = !demand.buffers_open || (bits & 8) != 0;
          choose(selection.value(), demand);
        }
      }
    }
  }
  return 0;
}
