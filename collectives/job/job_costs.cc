#include "collectives/job/job_costs.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/log.h"
#include "topology/discover.h"
#include "transport/bootstrap/agree.h"

namespace tutti {

namespace {

Result<std::string> found_here(const std::string& network) {
  const Result<topology::Host> host = topology::discover_host();
  if (!host.ok()) return host.status();
  const auto table = planner::find_table(planner::table_name(host.value(), network));
  if (!table.ok()) return table.status();
  if (!table.value()) return std::string();
  log::debug("measured costs from {}", table.value()->path);
  return planner::print(table.value()->table);
}

}  // namespace

std::string network_words(const transport::WireInfo& wire, const topology::Topology& job) {
  return fmt::format("{} {}{}", wire.name, wire.devices, topology::ranks_share_cores(job) ? " shared cores" : "");
}

Result<std::optional<planner::Table>> exchange_table(bootstrap::Bootstrap& bootstrap, const transport::WireInfo& wire,
                                                     const topology::Topology& job) {
  TUTTI_ASSIGN(
      const std::vector<std::string> all,
      bootstrap::agree_all(bootstrap, bootstrap.rank() == 0 ? found_here(network_words(wire, job)) : std::string()));
  const std::string& text = all.front();
  if (text.empty()) return std::optional<planner::Table>();
  TUTTI_ASSIGN(planner::Table table, planner::parse_table(text));
  return std::optional(std::move(table));
}

}  // namespace tutti
