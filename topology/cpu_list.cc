#include "topology/cpu_list.h"

#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <system_error>

#include "base/parse.h"

namespace tutti::topology {

std::string print_cpus(const CpuList& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += i == last ? fmt::format("{}", cpus[i]) : fmt::format("{}-{}", cpus[i], cpus[last]);
    i = last + 1;
  }
  return text;
}

Result<CpuList> parse_cpus(std::string_view text) {
  const std::string_view whole = text;
  const auto bad = [&] {
    return invalid_argument(fmt::format("{} is not a list of CPUs, such as 0-3,8", quote(whole)));
  };
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  CpuList cpus;
  const auto number = [&](int& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || value < 0 || value >= kMostCpus) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return true;
  };
  while (!text.empty()) {
    int first = 0;
    if (!number(first)) return bad();
    int last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      if (!number(last)) return bad();
    }
    if (last < first || (!cpus.empty() && first <= cpus.back())) return bad();
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (text.empty()) break;
    if (!text.starts_with(',') || text.size() == 1) return bad();
    text.remove_prefix(1);
  }
  return cpus;
}

}  // namespace tutti::topology
