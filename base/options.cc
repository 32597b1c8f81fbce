#include "base/options.h"

#include <fmt/format.h>

#include <array>
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
     "Deadline of every wait, the creation of a communicator included."},
    {Option::deterministic, "TUTTI_DETERMINISTIC", Type::flag, "0", "",
     "Same bits for every algorithm, lane count, placement and kind of memory."},
    {Option::memory_limit, "TUTTI_MEMORY_LIMIT", Type::bytes, "0", "",
     "Memory of each kind (host, pinned, GPU) that one communicator may take per rank; 0: no limit."},
    {Option::algorithm, "TUTTI_ALGORITHM", Type::text, "", "",
     "Use this row of the algorithm table wherever it can serve; empty: the planner chooses."},
    {Option::backend, "TUTTI_BACKEND", Type::choice, "tutti", "tutti|openmpi|mpich|gloo|nccl",
     "What runs the collectives: Tutti itself or a baseline."},
    {Option::log, "TUTTI_LOG", Type::choice, "", "|info|debug",
     "What is told on standard error beside failures; empty: nothing."},
    {Option::explain, "TUTTI_EXPLAIN", Type::flag, "0", "",
     "Tell for each call which algorithm ran, on how many lanes, and why."},
    {Option::trace, "TUTTI_TRACE", Type::text, "", "",
     "Write calls and steps to this file in the trace form of Chrome and Perfetto; %r becomes the rank."},
    {Option::secret, "TUTTI_SECRET", Type::text, "", "",
     "The job's secret, equal on all ranks; empty: derived from the job's number and the user."},
    {Option::master_addr, "TUTTI_MASTER_ADDR", Type::text, "", "",
     "Host name or address where rank 0 waits for the others; empty: the launcher's."},
    {Option::master_port, "TUTTI_MASTER_PORT", Type::integer, "0", "",
     "TCP port where rank 0 waits for the others; 0: the launcher's."},
    {Option::interface, "TUTTI_INTERFACE", Type::text, "", "",
     "Which address other hosts are told: interfaces (eth0,ib), addresses or networks (10.7.0.0/16), the first that is "
     "here; ^ before them leaves them out; empty: the one that leads to the other hosts."},
    {Option::arena, "TUTTI_ARENA", Type::bytes, "0", "",
     "Address space reserved for registered memory; 0: the machine's memory, or less where a limit or a cgroup allows "
     "less "
     "(tutti info says what was chosen, and why)."},
    {Option::scratch, "TUTTI_SCRATCH", Type::bytes, "2M", "",
     "What may be under way through the memory of one rank in one communicator, which takes somewhat more than twice "
     "that; between hosts four times as much."},
    {Option::selection, "TUTTI_SELECTION", Type::text, "", "",
     "Rules 'collective ranks bytes algorithm; ...' behind the built-in ones, such as 'all_reduce * 0-8K one_shot'."},
    {Option::spin, "TUTTI_SPIN", Type::duration, "100us", "", "How long a wait spins before it gives its core away."},
    {Option::cross_memory, "TUTTI_CROSS_MEMORY", Type::choice, "auto", "auto|on|off",
     "Let the kernel copy between processes for memory that is not registered; auto: where that is allowed and faster "
     "than staging, tried at start-up; on: where it is allowed."},
    {Option::flight_recorder, "TUTTI_FLIGHT_RECORDER", Type::text, "", "",
     "File (a rank's number is put in) to which a failure, or TUTTI_FLIGHT_SIGNAL, writes the last calls of every rank "
     "as JSON."},
    {Option::flight_signal, "TUTTI_FLIGHT_SIGNAL", Type::integer, "0", "",
     "Number of a signal that prints the last calls on standard error (see TUTTI_FLIGHT_RECORDER); 0: none."},
    {Option::baselines, "TUTTI_BASELINES", Type::text, "", "",
     "Folder of the baselines' plug-ins; empty: ../lib beside the program."},
    {Option::topology, "TUTTI_TOPOLOGY", Type::text, "", "",
     "File that describes hosts, links and where ranks are, the same on all ranks; empty: what is found."},
    {Option::network, "TUTTI_NETWORK", Type::choice, "auto", "auto|verbs|tcp|ucx",
     "What goes between hosts; auto: verbs where there is an RDMA device, else tcp."},
    {Option::host, "TUTTI_HOST", Type::text, "", "",
     "Ranks with different words here go by the network even where they could share memory; to try several hosts on "
     "one."},
    {Option::tcp_ports, "TUTTI_TCP_PORTS", Type::text, "", "",
     "Ports at which TUTTI_NETWORK=tcp listens, such as '29500-29600', one for each process of a host; empty: the "
     "kernel chooses."},
    {Option::tcp_congestion, "TUTTI_TCP_CONGESTION", Type::text, "", "",
     "TCP's congestion control for TUTTI_NETWORK=tcp, such as cubic; empty: the kernel's own, but reno in place of bbr "
     "to hosts that answer within a millisecond."},
    {Option::verbs_devices, "TUTTI_VERBS_DEVICES", Type::text, "", "",
     "RDMA devices of this host that verbs uses as its rails, in this order, such as 'mlx5_0,mlx5_2:1', and that its "
     "ranks share; '@10.1.0.5' behind a RoCE port chooses its address; empty: those that lead to the other hosts."},
    {Option::tuning, "TUTTI_TUNING", Type::text, "", "",
     "File of measured costs, as 'tutti tune' writes it, on the host of rank 0; off: none; empty: that of this kind of "
     "host or network in the user's caches."},
    {Option::shared_gpu, "TUTTI_SHARED_GPU", Type::choice, "auto", "auto|kernels|streams",
     "Who waits for the peers where processes share a GPU: kernels, which must find room on it side by side, or the "
     "streams between them; auto: kernels under MPS."},
}};

constexpr bool table_is_in_order() {
  for (int i = 0; i < kOptions; ++i) {
    if (static_cast<int>(kTable[static_cast<std::size_t>(i)].option) != i) return false;
  }
  return true;
}
static_assert(table_is_in_order(), "rows of kTable stand in the order of enum Option");

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
    // An empty variable counts as not set: that is how shells and launchers clear one.
    if (const char* text = lookup(definition.name); text != nullptr && *text != '\0') {
      Result<Value> given = parse(i, text);
      if (given.ok()) {
        slot = {given.take(), true};
      } else if (status_.ok()) {
        status_ = invalid_argument(fmt::format("{}: {}", definition.name, given.status().message()));
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
  static const Values values([](const char* name) { return std::getenv(name); });
  return values;
}

}  // namespace tutti::options
