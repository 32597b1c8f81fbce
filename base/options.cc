#include "base/options.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "base/parse.h"

namespace tutti::options {
namespace {

struct Definition {
  Option option;
  const char* name;
  Type type;
  const char* default_value;
  const char* choices;  // words separated by '|'; an empty word allows the empty value
  const char* help;
};

constexpr std::array<Definition, kOptions> kTable{{
    {Option::timeout, "TUTTI_TIMEOUT", Type::duration, "300s", "",
     "Longest time of any wait, the creation of a communicator included; then the call fails."},
    {Option::deterministic, "TUTTI_DETERMINISTIC", Type::flag, "0", "",
     "Give the same bits for every algorithm, lane count, placement of ranks and kind of memory."},
    {Option::memory_limit, "TUTTI_MEMORY_LIMIT", Type::bytes, "0", "",
     "Most bytes of each kind of memory (host, pinned, GPU) per rank and communicator; 0: no limit."},
    {Option::algorithm, "TUTTI_ALGORITHM", Type::text, "", "",
     "Name of the algorithm for all calls that it can serve; empty: the planner chooses."},
    {Option::backend, "TUTTI_BACKEND", Type::choice, "tutti", "tutti|openmpi|mpich|gloo|nccl",
     "Library that runs the collectives: Tutti itself or a baseline."},
    {Option::log, "TUTTI_LOG", Type::choice, "", "|info|debug",
     "What is written on standard error in addition to failures; empty: nothing."},
    {Option::explain, "TUTTI_EXPLAIN", Type::flag, "0", "",
     "Print for each call which algorithm ran, on how many lanes, and why."},
    {Option::trace, "TUTTI_TRACE", Type::text, "", "",
     "File for a trace of calls and steps in the form of Chrome and Perfetto; %r becomes the rank."},
    {Option::secret, "TUTTI_SECRET", Type::text, "", "",
     "The job's secret, the same on all ranks; empty: derived from the job's number and the user."},
    {Option::master_addr, "TUTTI_MASTER_ADDR", Type::text, "", "",
     "Name or address of the host where rank 0 listens; empty: what the launcher says."},
    {Option::master_port, "TUTTI_MASTER_PORT", Type::integer, "0", "",
     "TCP port where rank 0 listens; 0: what the launcher says, else derived from the job."},
    {Option::interface, "TUTTI_INTERFACE", Type::text, "", "",
     "Address of this host that other hosts use. A list of interfaces (eth0,ib0), addresses or networks (10.7.0.0/16); "
     "the first one that this host has counts. ^ before the list excludes its entries. Empty: the address that leads "
     "to the other hosts."},
    {Option::arena, "TUTTI_ARENA", Type::bytes, "0", "",
     "Bytes of address space reserved for registered memory; 0: the machine's memory, or less where a limit or a "
     "cgroup allows less ('tutti info' says how much, and why)."},
    {Option::scratch, "TUTTI_SCRATCH", Type::bytes, "2M", "",
     "Bytes of slots per rank and communicator; total memory is a little over twice this. Four times as much in jobs "
     "of several hosts."},
    {Option::selection, "TUTTI_SELECTION", Type::text, "", "",
     "Rules 'collective ranks bytes algorithm; ...', added after the built-in ones, such as 'all_reduce * 0-8K "
     "one_shot'."},
    {Option::spin, "TUTTI_SPIN", Type::duration, "100us", "", "How long a wait spins before it yields its core."},
    {Option::cross_memory, "TUTTI_CROSS_MEMORY", Type::choice, "auto", "auto|on|off",
     "Cross-memory attach, by which the kernel copies between processes, for memory that is not registered. auto: "
     "where it is permitted and a trial at start-up finds it faster than staging; on: where it is permitted."},
    {Option::flight_recorder, "TUTTI_FLIGHT_RECORDER", Type::text, "", "",
     "File for the last calls of every rank, as JSON, written after a failure or TUTTI_FLIGHT_SIGNAL; the rank's "
     "number becomes part of the name."},
    {Option::flight_signal, "TUTTI_FLIGHT_SIGNAL", Type::integer, "0", "",
     "Number of a signal that prints the last calls on standard error (see TUTTI_FLIGHT_RECORDER); 0: none."},
    {Option::baseline_path, "TUTTI_BASELINE_PATH", Type::text, "", "",
     "Folder of the baselines' plug-ins; empty: ../lib, relative to the program's folder."},
    {Option::topology, "TUTTI_TOPOLOGY", Type::text, "", "",
     "File that describes hosts, links and the places of ranks, the same on all ranks; empty: what is found."},
    {Option::network, "TUTTI_NETWORK", Type::choice, "auto", "auto|verbs|tcp|ucx",
     "Network between hosts; auto: verbs where there is an RDMA device, else tcp."},
    {Option::host_id, "TUTTI_HOST_ID", Type::text, "", "",
     "Host id. Ranks with different values use the network even on one machine (to emulate several hosts)."},
    {Option::tcp_ports, "TUTTI_TCP_PORTS", Type::text, "", "",
     "Range of ports where TUTTI_NETWORK=tcp listens, such as '29500-29600', one for each process of a host; empty: "
     "the kernel chooses."},
    {Option::tcp_congestion, "TUTTI_TCP_CONGESTION", Type::text, "", "",
     "TCP's congestion control for TUTTI_NETWORK=tcp, such as cubic; empty: the kernel's default, but reno in place of "
     "bbr for hosts that answer within 1 ms."},
    {Option::verbs_devices, "TUTTI_VERBS_DEVICES", Type::text, "", "",
     "RDMA devices of this host that verbs uses as rails, in this order, such as 'mlx5_0,mlx5_2:1'; its ranks share "
     "them. '@10.1.0.5' behind a RoCE port chooses its address. Empty: those that lead to the other hosts."},
    {Option::tuning, "TUTTI_TUNING", Type::text, "", "",
     "File of measured costs, as 'tutti tune' writes it, on the host of rank 0; off: none; empty: the user's file for "
     "this kind of host or network."},
    {Option::shared_gpu, "TUTTI_SHARED_GPU", Type::choice, "auto", "auto|kernels|streams",
     "What waits for peers where processes share a GPU: kernels, which must fit on it side by side, or the streams "
     "between kernels; auto: kernels under MPS, else streams."},
}};

constexpr bool table_is_in_order() {
  for (int i = 0; i < kOptions; ++i) {
    if (static_cast<int>(kTable[static_cast<std::size_t>(i)].option) != i) return false;
  }
  return true;
}
static_assert(table_is_in_order(), "rows of kTable stand in the order of enum Option");

/// Names that options had before; read until the release after the one that renamed them.
struct Renamed {
  Option option;
  const char* old_name;
};
constexpr Renamed kRenamed[] = {{Option::host_id, "TUTTI_HOST"}, {Option::baseline_path, "TUTTI_BASELINES"}};

/// The text of an option and the name under which it was found; null: not set. An empty variable counts as not set,
/// because that is how shells and launchers clear one.
struct Found {
  const char* name;
  const char* text;
};
Found find(const Definition& definition, const Lookup& lookup) {
  const auto set = [&](const char* name) {
    const char* text = lookup(name);
    return text != nullptr && *text != '\0' ? text : nullptr;
  };
  if (const char* text = set(definition.name)) return {definition.name, text};
  for (const Renamed& renamed : kRenamed) {
    if (renamed.option != definition.option) continue;
    if (const char* text = set(renamed.old_name)) return {renamed.old_name, text};
  }
  return {definition.name, nullptr};
}

bool is_choice(std::string_view choices, std::string_view word) {
  for (;;) {
    const std::size_t bar = choices.find('|');
    if (choices.substr(0, bar) == word) return true;
    if (bar == std::string_view::npos) return false;
    choices.remove_prefix(bar + 1);
  }
}

const char* unit_of(const Definition& definition) {
  switch (definition.type) {
    case Type::duration: return "time";
    case Type::bytes: return "bytes";
    case Type::choice: return definition.choices;
    case Type::integer:
    case Type::flag:
    case Type::text: return "";
  }
  return "";
}

}  // namespace

const char* name_of(Type type) {
  constexpr const char* names[] = {"duration", "bytes", "integer", "flag", "text", "choice"};
  return names[static_cast<int>(type)];
}

Result<Values::Value> Values::parse(int row, std::string_view text) {
  const Definition& definition = kTable[static_cast<std::size_t>(row)];
  switch (definition.type) {
    case Type::duration: {
      TUTTI_ASSIGN(const auto value, parse_duration(text));
      return Value(value);
    }
    case Type::bytes: {
      TUTTI_ASSIGN(const auto value, parse_bytes(text));
      return Value(value);
    }
    case Type::integer: {
      TUTTI_ASSIGN(const auto value, parse_integer(text));
      return Value(value);
    }
    case Type::flag: {
      TUTTI_ASSIGN(const auto value, parse_flag(text));
      return Value(value);
    }
    case Type::choice:
      if (!is_choice(definition.choices, text)) {
        return invalid_argument(fmt::format("{} is not one of {}", quote(text), definition.choices));
      }
      return Value(std::string(text));
    case Type::text: return Value(std::string(text));
  }
  return invalid_argument("unknown type of option");
}

Values::Values(const Lookup& lookup) {
  for (int i = 0; i < kOptions; ++i) {
    const Definition& definition = kTable[static_cast<std::size_t>(i)];
    Result<Value> fallback = parse(i, definition.default_value);
    TUTTI_CHECK(fallback.ok());
    Slot slot{fallback.take(), false};
    if (const Found found = find(definition, lookup); found.text != nullptr) {
      Result<Value> given = parse(i, found.text);
      if (given.ok()) {
        slot = {given.take(), true};
      } else if (status_.ok()) {
        status_ = invalid_argument(fmt::format("{}: {}", found.name, given.status().message()));
      }
      if (found.name != definition.name) {
        warnings_.push_back(fmt::format("{} is now {}; the old name is read until 0.3", found.name, definition.name));
      }
    }
    slots_.push_back(std::move(slot));
  }
}

std::chrono::nanoseconds Values::duration(Option option) const {
  return std::get<std::chrono::nanoseconds>(slots_[static_cast<std::size_t>(option)].value);
}

std::uint64_t Values::bytes(Option option) const {
  return std::get<std::uint64_t>(slots_[static_cast<std::size_t>(option)].value);
}

std::int64_t Values::integer(Option option) const {
  return std::get<std::int64_t>(slots_[static_cast<std::size_t>(option)].value);
}

bool Values::flag(Option option) const { return std::get<bool>(slots_[static_cast<std::size_t>(option)].value); }

const std::string& Values::text(Option option) const {
  return std::get<std::string>(slots_[static_cast<std::size_t>(option)].value);
}

std::vector<Row> Values::all() const {
  std::vector<Row> rows;
  for (const Definition& definition : kTable) {
    const Slot& slot = slots_[static_cast<std::size_t>(definition.option)];
    Row row{definition.option,
            definition.type,
            definition.name,
            definition.default_value,
            unit_of(definition),
            definition.help,
            "",
            slot.changed};
    switch (definition.type) {
      case Type::duration: row.value = print_duration(duration(definition.option)); break;
      case Type::bytes: row.value = print_bytes(bytes(definition.option)); break;
      case Type::integer: row.value = fmt::format("{}", integer(definition.option)); break;
      case Type::flag: row.value = std::string(flag(definition.option) ? "1" : "0"); break;
      case Type::text:
      case Type::choice: row.value = text(definition.option); break;
    }
    if (definition.option == Option::secret && slot.changed) row.value = std::string("(set, not shown)");
    rows.push_back(std::move(row));
  }
  return rows;
}

const Values& process() {
  static const Values values = [] {
    Values read([](const char* name) { return std::getenv(name); });
    // Not by the log, which asks for options itself.
    for (const std::string& warning : read.warnings()) fmt::print(stderr, "tutti: {}\n", warning);
    return read;
  }();
  return values;
}

}  // namespace tutti::options
