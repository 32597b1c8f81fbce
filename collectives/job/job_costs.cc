#include "collectives/job/job_costs.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/log.h"
#include "topology/discover.h"

namespace tutti {

namespace {

std::string found_here(const std::string& network) {
  const Result<topology::Host> host = topology::discover_host();
  if (!host.ok()) return failed(host.status());
  const auto table = planner::find_table(planner::table_name(host.value(), network));
  if (!table.ok()) return failed(table.status());
  if (!table.value()) return {};
  log::debug("measured costs from {}", table.value()->path);
  return kFound + planner::print(table.value()->table);
}

}  // namespace

std::string network_words(const transport::WireInfo& wire, const topology::Topology& job) {
  return fmt::format("{} {}{}", wire.name, wire.devices, topology::ranks_share_cores(job) ? " shared cores" : "");
}

Result<std::optional<planner::Table>> exchange_table(bootstrap::Bootstrap& bootstrap, const transport::WireInfo& wire,
                                                     const topology::Topology& job) {
  TUTTI_ASSIGN(const std::vector<std::string> all,
               bootstrap.all_gather(bootstrap.rank() == 0 ? found_here(network_words(wire, job)) : std::string()));
  const std::string& text = all.front();
  if (text.empty()) return std::optional<planner::Table>();
  if (text.front() == kFailed) {
    const Status told = failure_in(text);
    return Status(told.code(), fmt::format("{}: {}", bootstrap::name_of(0, bootstrap.roster()[0]), told.message()));
  }
  TUTTI_ASSIGN(planner::Table table, planner::parse_table(text));
  return std::optional(std::move(table));
}

}  // namespace tutti
