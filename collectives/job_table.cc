#include "collectives/job_table.h"

#include <fmt/format.h>

#include "base/log.h"
#include "topology/discover.h"

namespace tutti {

namespace {

std::string found_here(const transport::WireInfo& wire) {
  const Result<topology::Host> host = topology::discover_host();
  if (!host.ok()) return kFailed + host.status().message();
  const auto table = planner::find_table(planner::table_name(host.value(), network_words(wire)));
  if (!table.ok()) return kFailed + table.status().message();
  if (!table.value()) return {};
  log::debug("measured costs from {}", table.value()->path);
  return kFound + planner::print(table.value()->table);
}

}  // namespace

std::string network_words(const transport::WireInfo& wire) { return wire.name + ' ' + wire.devices; }

Result<std::optional<planner::Table>> exchange_table(bootstrap::Bootstrap& bootstrap, const transport::WireInfo& wire) {
  TUTTI_ASSIGN(const std::vector<std::string> all,
               bootstrap.all_gather(bootstrap.rank() == 0 ? found_here(wire) : std::string()));
  const std::string& text = all.front();
  if (text.empty()) return std::optional<planner::Table>();
  if (text.front() == kFailed) {
    return invalid_argument(fmt::format("{}: {}", bootstrap::name_of(0, bootstrap.roster()[0]), text.substr(1)));
  }
  TUTTI_ASSIGN(planner::Table table, planner::parse_table(text));
  return std::optional(std::move(table));
}

}  // namespace tutti
