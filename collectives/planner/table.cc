#include "collectives/planner/table.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "base/log.h"
#include "base/options.h"
#include "base/parse.h"

namespace tutti::planner {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::json;

constexpr int kForm = 2;
constexpr const char* kOldSlotReuse = "passing_gb_per_s";  // in files of an earlier version
constexpr std::size_t kMostBytes = std::size_t{1} << 20;
constexpr std::size_t kMostCopying = 64;
constexpr double kMost = 1e9;  // of any figure
constexpr double kRoom = 4;    // for so many times the cores that were measured

/// Four digits are more than a measurement has.
double rounded(double value) { return std::stod(fmt::format("{:.4g}", value)); }

Status number(const Json& object, const std::string& where, const char* key, bool may_be_0, double& out) {
  const auto found = object.find(key);
  if (found == object.end()) return invalid_argument(fmt::format("{}has no \"{}\"", where, key));
  const double value = found->is_number() ? found->get<double>() : -1;
  if (!(value > 0 || (may_be_0 && value == 0)) || value > kMost) {
    return invalid_argument(
        fmt::format("{}{} is {}; expected a number {} 0", where, key, found->dump(), may_be_0 ? "from" : "above"));
  }
  out = value;
  return {};
}

Status words(const Json& object, const char* key, std::string& out) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) {
    return invalid_argument(
        fmt::format("{} is {}; expected words", key, found == object.end() ? "missing" : found->type_name()));
  }
  out = found->get<std::string>();
  return {};
}

Status copying_of(const Json& json, std::vector<Copying>& out) {
  const auto found = json.find("copying");
  if (found == json.end() || !found->is_array() || found->size() > kMostCopying) {
    return invalid_argument(fmt::format("copying: expected a list of at most {}", kMostCopying));
  }
  for (const Json& one : *found) {
    const std::string where = fmt::format("copying[{}].", out.size());
    if (!one.is_object()) return invalid_argument(fmt::format("{}: expected an object", where));
    Copying& row = out.emplace_back();
    TUTTI_TRY(number(one, where, "bytes", false, row.bytes));
    TUTTI_TRY(number(one, where, "gb_per_s", false, row.gb_per_s));
    if (out.size() > 1 && row.bytes <= out[out.size() - 2].bytes) {
      return invalid_argument(fmt::format("{}bytes is {}; expected more than in the one before", where, row.bytes));
    }
  }
  return {};
}

}  // namespace

std::string print(const Table& table) {
  const Constants& constants = table.constants;
  nlohmann::ordered_json json;
  json["tutti_costs"] = kForm;
  json["measured_on"] = table.measured_on;
  json["date"] = table.date;
  json["version"] = table.version;
  json["ranks"] = table.ranks;
  json["call_us"] = rounded(constants.call_us);
  json["step_us"] = rounded(constants.step_us);
  json["put_us"] = rounded(constants.put_us);
  json["switch_us"] = rounded(constants.switch_us);
  json["signal_us"] = rounded(table.signal_us);
  json["reduce_gb_per_s"] = rounded(constants.reduce_gb_per_s);
  json["slot_reuse_gb_per_s"] = rounded(constants.slot_reuse_gb_per_s);
  json["copying"] = nlohmann::ordered_json::array();
  for (const Copying& one : constants.copying) {
    json["copying"].push_back({{"bytes", one.bytes}, {"gb_per_s", rounded(one.gb_per_s)}});
  }
  json["network"] = {{"gb_per_s", rounded(table.network_gb_per_s)},
                     {"latency_us", rounded(table.network_us)},
                     {"message_us", rounded(constants.message_us)},
                     {"message_gb_per_s", rounded(constants.message_gb_per_s)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Table> parse_table(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return invalid_argument("not a JSON object");
  double form = 0;
  TUTTI_TRY(number(json, "", "tutti_costs", false, form));
  if (form != kForm) return invalid_argument(fmt::format("tutti_costs is {}; this build reads {}", form, kForm));
  Table table;
  TUTTI_TRY(words(json, "measured_on", table.measured_on));
  TUTTI_TRY(words(json, "date", table.date));
  TUTTI_TRY(words(json, "version", table.version));
  double ranks = 0;
  TUTTI_TRY(number(json, "", "ranks", false, ranks));
  table.ranks = static_cast<int>(ranks);
  Constants& constants = table.constants;
  TUTTI_TRY(number(json, "", "call_us", true, constants.call_us));
  TUTTI_TRY(number(json, "", "step_us", true, constants.step_us));
  TUTTI_TRY(number(json, "", "put_us", true, constants.put_us));
  TUTTI_TRY(number(json, "", "switch_us", true, constants.switch_us));
  TUTTI_TRY(number(json, "", "signal_us", true, table.signal_us));
  TUTTI_TRY(number(json, "", "reduce_gb_per_s", true, constants.reduce_gb_per_s));
  const char* reuse = json.contains(kOldSlotReuse) ? kOldSlotReuse : "slot_reuse_gb_per_s";
  TUTTI_TRY(number(json, "", reuse, true, constants.slot_reuse_gb_per_s));
  TUTTI_TRY(copying_of(json, constants.copying));
  const auto network = json.find("network");
  if (network == json.end() || !network->is_object()) return invalid_argument("network: expected an object");
  TUTTI_TRY(number(*network, "network.", "gb_per_s", true, table.network_gb_per_s));
  TUTTI_TRY(number(*network, "network.", "latency_us", true, table.network_us));
  TUTTI_TRY(number(*network, "network.", "message_us", true, constants.message_us));
  TUTTI_TRY(number(*network, "network.", "message_gb_per_s", true, constants.message_gb_per_s));
  return table;
}

topology::Assumed assumed_by(const Table& table) {
  topology::Assumed assumed;
  // From a rank to its core, to the cache, to the other core, to the other rank: graph.h knows no more of a signal.
  if (table.signal_us > 0) assumed.core_latency_us = assumed.cache_latency_us = table.signal_us / 4;
  // The cores were measured together, so what their memory leaves to each is in what it copies. How many more it could
  // serve has not been measured.
  if (!table.constants.copying.empty()) {
    const double room = kRoom * std::max(table.ranks, 1) * table.constants.copying.back().gb_per_s;
    assumed.cache_gb_per_s = std::max(assumed.cache_gb_per_s, room);
    assumed.memory_gb_per_s = std::max(assumed.memory_gb_per_s, room);
  }
  return assumed;
}

void apply(const Table& table, topology::Topology& topology) {
  using topology::PlaceKind;
  if (!table.constants.copying.empty()) {
    for (topology::Host& host : topology.hosts) host.core_gb_per_s = table.constants.copying.back().gb_per_s;
  }
  if (table.network_gb_per_s <= 0) return;
  const auto host_of = [](const topology::Link& link) {  // of one that leaves a host, else -1
    const bool to_switch = (link.a.kind == PlaceKind::network) != (link.b.kind == PlaceKind::network);
    return !to_switch ? -1 : link.a.kind == PlaceKind::network ? link.b.host : link.a.host;
  };
  std::vector<int> links(topology.hosts.size(), 0);
  for (const topology::Link& link : topology.links) {
    if (const int host = host_of(link); host >= 0) ++links[static_cast<std::size_t>(host)];
  }
  for (topology::Link& link : topology.links) {
    const int host = host_of(link);
    if (host < 0) continue;
    link.gb_per_s = table.network_gb_per_s / links[static_cast<std::size_t>(host)];
    link.latency_us = table.network_us / 2;  // to the switch
  }
}

std::string table_name(const topology::Host& host, const std::string& network) {
  std::string name = fmt::format("{} {} cores {}", host.cpu_model, host.cores.size(), network);
  std::string slug;
  for (const char c : name) {
    const auto letter = static_cast<unsigned char>(c);
    if (std::isalnum(letter) != 0) {
      slug += static_cast<char>(std::tolower(letter));
    } else if (!slug.empty() && slug.back() != '-') {
      slug += '-';
    }
  }
  while (!slug.empty() && slug.back() == '-') slug.pop_back();
  constexpr std::size_t kMostLetters = 200;
  return slug.substr(0, kMostLetters) + ".json";
}

std::string table_folder() {
  // An empty or a relative path has no defined meaning.
  const auto folder = [](const char* name) {
    const char* path = std::getenv(name);
    return path != nullptr && *path == '/' ? std::string(path) : std::string();
  };
  if (const std::string cache = folder("XDG_CACHE_HOME"); !cache.empty()) return cache + "/tutti";
  const std::string home = folder("HOME");
  return home.empty() ? home : home + "/.cache/tutti";
}

Result<std::optional<FoundTable>> find_table(const std::string& name) {
  const std::string& named = options::text(Option::tuning);
  if (named == "off") return std::optional<FoundTable>();
  if (!named.empty()) {
    Result<Table> table = read_table(named);
    if (!table.ok()) return Status(table.status().code(), "TUTTI_TUNING: " + table.status().message());
    return std::optional(FoundTable{named, table.take()});
  }
  const std::string folder = table_folder();
  const std::string path = folder + "/" + name;
  std::error_code error;
  if (folder.empty() || !fs::exists(path, error)) return std::optional<FoundTable>();
  Result<Table> table = read_table(path);
  if (table.ok()) return std::optional(FoundTable{path, table.take()});
  static const bool said = [&] {
    log::error("{}; goes on without it: 'tutti tune' writes it anew", table.status().message());
    return true;
  }();
  (void)said;
  return std::optional<FoundTable>();
}

Result<Table> read_table(const std::string& path) {
  std::error_code error;
  const bool is_file = fs::is_regular_file(path, error) && fs::file_size(path, error) <= kMostBytes;
  std::ifstream file(path);
  if (!is_file || !file) {
    return Status(Code::system,
                  fmt::format("{} is not a file of at most {} bytes that can be read; 'tutti tune' writes "
                              "one",
                              quote(path), kMostBytes));
  }
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  Result<Table> table = parse_table(text);
  if (!table.ok()) return invalid_argument(fmt::format("{}: {}", path, table.status().message()));
  return table;
}

Status write_table(const Table& table, const std::string& path) {
  const auto failed = [&](const std::string& why) {
    return Status(Code::system, fmt::format("cannot write {}: {}", quote(path), why));
  };
  std::error_code error;
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) return failed(error.message());
  errno = 0;
  const std::string draft = fmt::format("{}.{}", path, getpid());
  std::ofstream file(draft);
  file << print(table);
  file.close();
  if (!file) {
    error.assign(errno != 0 ? errno : EIO, std::generic_category());
  } else {
    fs::rename(draft, path, error);
  }
  if (!error) return {};
  std::error_code ignored;
  fs::remove(draft, ignored);
  return failed(error.message());
}

}  // namespace tutti::planner
