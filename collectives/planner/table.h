// Measured costs: what `tutti tune` writes, and the cost model (cost.h) takes instead of assumptions.
//
//   { "tutti_costs": 2, "measured_on": "AMD EPYC, 2 cores", "date": "2026-11-22 07:00 UTC", "version": "0.1.0",
//   "ranks": 2,
//     "call_us": 0.1, "step_us": 0.03, "put_us": 0.3, "switch_us": 1.5, "signal_us": 0.2,
//     "reduce_gb_per_s": 80, "slot_reuse_gb_per_s": 9,
//     "copying": [ {"bytes": 65536, "gb_per_s": 20}, {"bytes": 33554432, "gb_per_s": 6} ],
//     "network": {"gb_per_s": 1.2, "latency_us": 20, "message_us": 4, "message_gb_per_s": 3} }
//
// How: one file for each kind of host, and one for each network between such hosts, in the folder tutti of the user's
//   caches (XDG_CACHE_HOME, else .cache at home). The option TUTTI_TUNING names another file, or is "off".
// Errors: invalid_argument names the key of a bad table; system names a file that cannot be read or written.
// Threads: any.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "collectives/planner/cost.h"
#include "topology/graph.h"

namespace tutti::planner {

struct Table {
  std::string measured_on;  // in words
  std::string date;
  std::string version;
  int ranks = 0;  // that were measured
  Constants constants;
  double signal_us = 0;         // from a rank to another one of its host; 0: not measured
  double network_gb_per_s = 0;  // of a host, each way; 0: not measured
  double network_us = 0;        // from a rank to one of another host
  friend bool operator==(const Table&, const Table&) = default;
};

std::string print(const Table& table);
/// Errors: invalid_argument, naming the key: "copying[1].gb_per_s is -1; expected a number above 0".
Result<Table> parse_table(std::string_view text);

/// Returns the graph's assumptions with those that the table knows better.
topology::Assumed assumed_by(const Table& table);
/// Puts what was measured into the hosts, and into the links to switches: all hosts and all networks are taken as those
/// that were measured. The bandwidth of a host's links is that of the network in equal parts.
void apply(const Table& table, topology::Topology& topology);

/// The file of such a host, or of the network `network` (in words; empty: none) between such: "amd-epyc-2-cores.json".
std::string table_name(const topology::Host& host, const std::string& network);
/// Returns the folder of tables; empty: the environment names no home.
std::string table_folder();

struct FoundTable {
  std::string path;
  Table table;
};

/// The one that TUTTI_TUNING names; else the one of this name in table_folder(), and where that is damaged one line on
/// standard error and none. Errors: system or invalid_argument, naming the file, of one that TUTTI_TUNING names.
Result<std::optional<FoundTable>> find_table(const std::string& name);
/// Errors: system, when the file cannot be read; invalid_argument, as parse_table(), with the file's name.
Result<Table> read_table(const std::string& path);
/// Writes the file, and its folder where there is none. A reader never finds half of it. Errors: system.
Status write_table(const Table& table, const std::string& path);

}  // namespace tutti::planner
