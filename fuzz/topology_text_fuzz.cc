// The text form of topologies: any text is read or refused; what is read makes sense, and printed it reads as the same.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "topology/cpu_list.h"
#include "topology/text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto cpus = tutti::topology::parse_cpus(text); cpus.ok()) {
    const auto again = tutti::topology::parse_cpus(tutti::topology::print_cpus(cpus.value()));
    if (!again.ok() || again.value() != cpus.value()) std::abort();
  }
  const auto topology = tutti::topology::parse(text);
  if (!topology.ok()) return 0;
  if (!tutti::topology::check(topology.value()).ok()) std::abort();
  const auto again = tutti::topology::parse(tutti::topology::print(topology.value()));
  if (!again.ok() || !(again.value() == topology.value())) std::abort();
  return 0;
}
