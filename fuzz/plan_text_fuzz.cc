// The text form of plans: any text is parsed or refused; what is parsed is printed and must be parsed again as the same
// plan.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "collectives/plan/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto plan = tutti::plan::parse(std::string(reinterpret_cast<const char*>(data), size));
  if (!plan.ok()) return 0;
  const auto again = tutti::plan::parse(tutti::plan::print(plan.value()));
  if (!again.ok() || !(again.value() == plan.value())) std::abort();
  return 0;
}
