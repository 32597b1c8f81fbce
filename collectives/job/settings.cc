#include "collectives/job/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>

#include "base/options.h"
#include "collectives/job/stable_hash.h"
#include "topology/discover.h"
#include "topology/text.h"

namespace tutti {

namespace {

std::uint64_t hash_of(const std::vector<Setting>& settings, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < std::min(count, settings.size()); ++i) {
    text += settings[i].option + ' ' + settings[i].value + '\n';
  }
  return stable_hash(text);
}

}  // namespace

Result<std::vector<Setting>> settings_of(const transport::WindowSizes& sizes) {
  std::vector<Setting> settings{
      {"TUTTI_SCRATCH or TUTTI_MEMORY_LIMIT",
       fmt::format("windows of {}, {} and {} bytes", sizes.scratch_half, sizes.published_half, sizes.mailbox)},
      {"TUTTI_SELECTION", options::text(Option::selection)}};
  const char* topology = "TUTTI_TOPOLOGY";
  if (!options::text(Option::topology).empty()) {
    TUTTI_ASSIGN(const topology::Topology t, topology::topology_of_process());
    const auto values = nlohmann::json::parse(topology::print(t)).flatten();
    for (const auto& [path, value] : values.items()) {
      settings.push_back({topology, fmt::format("{} = {}", path.substr(1), value.dump())});
    }
  }
  settings.push_back({topology, "nothing more"});
  return settings;
}

Status compare_settings(const std::vector<Setting>& settings, const Exchange& exchange) {
  TUTTI_ASSIGN(const Words all, exchange({hash_of(settings, settings.size())}));
  const auto other = std::find_if(all.begin(), all.end(), [&](std::uint64_t hash) { return hash != all[0]; });
  if (other == all.end()) return {};
  // Every rank sees the same hashes, so all take the same turns. The first `same` settings of that rank are those of
  // rank 0, its first `different` ones are not.
  const auto rank = static_cast<std::size_t>(other - all.begin());
  TUTTI_ASSIGN(const Words counts, exchange({settings.size()}));
  std::size_t same = 0;
  std::size_t different = *std::max_element(counts.begin(), counts.end());
  while (different - same > 1) {
    const std::size_t middle = (same + different) / 2;
    TUTTI_ASSIGN(const Words hashes, exchange({hash_of(settings, middle)}));
    (hashes[rank] == hashes[0] ? same : different) = middle;
  }
  const Setting& here = settings[std::min(same, settings.size() - 1)];
  return Status(Code::mismatch, fmt::format("rank {} was started with another {} than rank 0; expected the same on all "
                                            "ranks. The first difference is where this rank has '{}'",
                                            rank, here.option, here.value));
}

}  // namespace tutti
