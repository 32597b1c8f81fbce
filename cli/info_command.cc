// tutti info: what this build has and what this machine offers.
#include <fmt/format.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/parse.h"
#include "cli/commands.h"
#include "cli/cross_memory.h"
#include "cli/features.h"
#include "cli/topology_command.h"
#include "collectives/baseline/baseline.h"
#include "collectives/device/multi_host/gdr_trial.h"
#include "collectives/job/networks.h"
#include "collectives/reduce/reduce.h"
#include "topology/discover.h"
#include "topology/gpus.h"
#include "topology/text.h"
#include "transport/shm/arena.h"
#include "transport/sockets/interfaces.h"
#include "transport/verbs/verbs.h"
#include "tutti/tutti.hpp"

namespace tutti::cli {
namespace {

using Json = nlohmann::ordered_json;

/// The word in brackets of a file such as "always [madvise] never"; empty when there is no such file.
std::string chosen_word(const char* path) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    if (word.size() > 2 && word.front() == '[') return word.substr(1, word.size() - 2);
  }
  return {};
}

Json shm_json() {
  Json json;
  const Result<transport::Arena*> arena = transport::Arena::process();
  json["available"] = arena.ok();
  if (!arena.ok()) {
    json["why_not"] = arena.status().message();
    return json;
  }
  json["arena_bytes"] = arena.value()->bytes();
  json["arena_size_by"] = arena.value()->why();
  const std::string& preferred = options::text(Option::cross_memory);
  const CrossMemory cross = try_cross_memory();
  std::string why_not;
  if (!cross.allowed) {
    why_not = cross.why;
  } else if (preferred == "off") {
    why_not = "TUTTI_CROSS_MEMORY is off";
  }
  json["cross_memory"] = why_not.empty();
  if (!why_not.empty()) json["cross_memory_why_not"] = why_not;
  return json;
}

/// Prints the address that this host gives to its peers.
Json network_json() {
  Json json;
  const Result<sockets::OwnAddress> own = sockets::own_address(sockets::routes_to(options::text(Option::master_addr)));
  const Result<std::vector<sockets::InterfaceAddress>> all = sockets::list_addresses();
  if (!own.ok() || own.value().address.empty()) {
    json["why_not"] = own.ok() ? "this host has no address that others reach" : own.status().message();
  } else {
    json["address"] = own.value().address;
    json["interface"] = own.value().interface;
    json["chosen_by"] = own.value().why;
  }
  json["interfaces"] = all.ok() ? sockets::describe_addresses(all.value()) : all.status().message();
  return json;
}

/// Tries each network between hosts and prints the result.
Json networks_json(const Json& address) {
  Json json;
  for (const TriedWire& tried : try_wires(address.value("address", ""))) {
    Json& one = json[tried.name] = {{"available", tried.status.ok()}};
    if (tried.status.ok()) {
      one["devices"] = tried.info.devices;
      one["gb_per_s"] = tried.info.gb_per_s;
    } else {
      one["why_not"] = tried.status.message();
    }
  }
  const Result<std::string> ports = transport::VerbsWire::devices();
  if (ports.ok()) json["verbs"]["ports"] = ports.value();
  return json;
}

Json gpus_json() {
  Json json;
  const Result<topology::Gpus> found = topology::discover_gpus();
  json["available"] = found.ok();
  if (!found.ok()) {
    json["why_not"] = found.status().message();
    return json;
  }
  const topology::Gpus& gpus = found.value();
  if (!gpus.without_nvml.empty()) json["without_nvml"] = gpus.without_nvml;
  for (const topology::Gpu& gpu : gpus.gpus) {
    json["gpus"].push_back({{"name", gpu.name},
                            {"pci", gpu.pci},
                            {"uuid", gpu.uuid},
                            {"capability", gpu.capability},
                            {"multiprocessors", gpu.multiprocessors},
                            {"bytes", gpu.bytes},
                            {"numa_node", gpu.numa_node},
                            {"nvlinks", gpu.nvlinks},
                            {"links_to_switches", gpu.links_to_switches}});
  }
  json["pairs"] = Json::array();
  for (const topology::GpuPair& pair : gpus.pairs) {
    json["pairs"].push_back({{"a", pair.a},
                             {"b", pair.b},
                             {"peer_access", pair.peer_access},
                             {"nvlinks", pair.nvlinks},
                             {"nvswitch", pair.nvswitch},
                             {"pcie", topology::name_of(pair.path)}});
  }
  return json;
}

/// Tries device memory between hosts with the first GPU and prints the result.
Json gpu_direct_json(const Json& address) {
  const Status tried = try_gpu_direct(0, address.value("address", ""));
  Json json = {{"available", tried.ok()}};
  if (!tried.ok()) json["why_not"] = tried.message();
  return json;
}

Json memory_json() {
  return {{"huge_pages", chosen_word("/sys/kernel/mm/transparent_hugepage/enabled")},
          {"huge_pages_of_shared_memory", chosen_word("/sys/kernel/mm/transparent_hugepage/shmem_enabled")}};
}

Json all_json(const topology::Topology& topology) {
  Json json;
  json["version"] = version();
  for (const Feature& feature : features())
    json["built_in"][feature.name] = {{"state", feature.state}, {"why", feature.why}};
  json["reductions"] = reduce::isa();
  json["transports"]["inproc"] = {{"available", true}};
  json["transports"]["shm"] = shm_json();
  json["network"] = network_json();
  json["networks"] = networks_json(json["network"]);
  for (const char* name : {"openmpi", "mpich", "gloo"}) json["baselines"][name] = baseline_is_installed(name);
  json["memory"] = memory_json();
  json["gpus"] = gpus_json();
  json["gpu_direct"] = gpu_direct_json(json["network"]);
  json["usable_cpus"] = topology::usable_cpus({});
  json["cpu_quota"] = topology::cpu_quota();
  json["topology"] = Json::parse(topology::print(topology));
  return json;
}

void print_gpus(const Json& all) {
  if (!all["available"].get<bool>()) {
    fmt::print("\nGPUs: none ({})\n", all["why_not"].get<std::string>());
    return;
  }
  fmt::print("\nGPUs\n");
  int number = 0;
  for (const Json& gpu : all["gpus"]) {
    const int node = gpu["numa_node"].get<int>();
    const int links = gpu["nvlinks"].get<int>();
    const int switched = gpu["links_to_switches"].get<int>();
    fmt::print("  {}: {} at {}, sm_{}, {} multiprocessors, {:.1f} GiB{}{}{}\n", number++,
               gpu["name"].get<std::string>(), gpu["pci"].get<std::string>(), gpu["capability"].get<int>(),
               gpu["multiprocessors"].get<int>(), static_cast<double>(gpu["bytes"].get<std::uint64_t>()) / (1 << 30),
               node < 0 ? "" : fmt::format(", NUMA node {}", node),
               links == 0 ? "" : fmt::format(", {} NVLinks", links),
               switched == 0 ? "" : fmt::format(", {} of them to switches", switched));
  }
  for (const Json& pair : all["pairs"]) {
    const int links = pair["nvlinks"].get<int>();
    fmt::print("  {} and {}: {}{}{}, PCIe over {}\n", pair["a"].get<int>(), pair["b"].get<int>(),
               pair["peer_access"].get<bool>() ? "peer access" : "no peer access",
               links == 0 ? "" : fmt::format(", {} NVLinks", links), pair["nvswitch"].get<bool>() ? ", NVSwitch" : "",
               pair["pcie"].get<std::string>());
  }
  if (all.contains("without_nvml")) {
    fmt::print("  NVLinks and PCIe paths are not known: {}\n", all["without_nvml"].get<std::string>());
  }
}

void print_text(const Json& all, const topology::Topology& topology) {
  fmt::print("tutti {}\n\nbuilt in\n", version());
  for (const Feature& feature : features()) fmt::print("  {:<14} {:<4} {}\n", feature.name, feature.state, feature.why);
  fmt::print("\nreductions: {}\n\ntransports\n  inproc: on (ranks are threads of one process)\n", reduce::isa());
  const Json& shm = all["transports"]["shm"];
  if (shm["available"].get<bool>()) {
    fmt::print("  shm: on (ranks are processes of one host; registered memory up to {} a rank, by {})\n",
               print_bytes(shm["arena_bytes"].get<std::uint64_t>()), shm["arena_size_by"].get<std::string>());
    const bool cross = shm["cross_memory"].get<bool>();
    fmt::print("    cross-memory access to plain memory: {}\n",
               cross ? "on (allowed; TUTTI_CROSS_MEMORY=auto uses it where the ranks find it faster than staging)"
                     : "off (" + shm["cross_memory_why_not"].get<std::string>() + "); such memory is staged");
  } else {
    fmt::print("  shm: off ({})\n", shm["why_not"].get<std::string>());
  }
  const Json& network = all["network"];
  if (network.contains("address")) {
    fmt::print("\naddress that other hosts are told: {} on {} (by {})\n", network["address"].get<std::string>(),
               network["interface"].get<std::string>(), network["chosen_by"].get<std::string>());
  } else {
    fmt::print("\naddress that other hosts are told: none ({})\n", network["why_not"].get<std::string>());
  }
  fmt::print("  interfaces: {}\n", network["interfaces"].get<std::string>());
  fmt::print("\nnetworks between hosts (TUTTI_NETWORK={})\n", options::text(Option::network));
  for (const auto& [name, one] : all["networks"].items()) {
    const bool on = one["available"].get<bool>();
    fmt::print(
        "  {}: {}\n", name,
        on ? "on, over " + one["devices"].get<std::string>() : "off (" + one["why_not"].get<std::string>() + ")");
    if (one.contains("ports")) fmt::print("    ports: {}\n", one["ports"].get<std::string>());
  }
  fmt::print("\nbaselines\n");
  for (const auto& [name, found] : all["baselines"].items()) {
    fmt::print("  {}: {}\n", name, found.get<bool>() ? "found" : "not found");
  }
  const auto shown = [](const Json& word) {
    return word.get<std::string>().empty() ? "not told" : word.get<std::string>();
  };
  fmt::print("\nhuge pages: {}, of shared memory: {}\n", shown(all["memory"]["huge_pages"]),
             shown(all["memory"]["huge_pages_of_shared_memory"]));
  print_gpus(all["gpus"]);
  const Json& direct = all["gpu_direct"];
  fmt::print("device memory between hosts: {}\n",
             direct["available"].get<bool>()
                 ? "from GPU to GPU by verbs (GPUDirect); what is added goes through pinned memory"
                 : "through pinned memory (no GPUDirect: " + direct["why_not"].get<std::string>() + ")");
  const double quota = topology::cpu_quota();
  fmt::print("\nCPUs that this process may use: {}{}\n\ntopology{}\n", topology::usable_cpus({}),
             quota > 0 ? fmt::format(" (its control group pays for {:.2f})", quota) : "",
             options::text(Option::topology).empty() ? "" : " (from " + options::text(Option::topology) + ")");
  print_topology(topology);
}

struct Settings {
  bool json = false;
};

int show(const Settings& settings) {
  Status status = options::check();
  const Result<topology::Topology> topology = topology::topology_of_process();
  if (status.ok()) status = topology.status();
  if (!status.ok()) {
    fmt::print(stderr, "tutti info: {}\n", status.message());
    return 2;
  }
  const Json all = all_json(topology.value());
  if (settings.json) {
    fmt::print("{}\n", all.dump(2));
  } else {
    print_text(all, topology.value());
  }
  return 0;
}

}  // namespace

void add_info(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<Settings>();
  CLI::App* command = app.add_subcommand("info", "Version, what was built in, transports, baselines, topology");
  command->add_flag("--json", settings->json, "as JSON");
  command->callback([settings, &exit_code] { exit_code = show(*settings); });
}

}  // namespace tutti::cli
