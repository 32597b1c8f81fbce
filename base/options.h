// The one table of all options. Each has an environment name (TUTTI_TIMEOUT for Option::timeout), a type, a default and
// a sentence of help.
//
// How: the environment is read once, at the first use; later changes of it have no effect. An old name of an option is
// read for one release, with one line of warning.
// Errors: an option whose value cannot be read keeps its default. check() returns the error; create() calls it first.
// Threads: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"

namespace tutti {

enum class Option : int {
  timeout,
  deterministic,
  memory_limit,
  algorithm,
  backend,
  log,
  explain,
  trace,
  secret,
  master_addr,
  master_port,
  interface,
  arena,
  scratch,
  selection,
  spin,
  cross_memory,
  flight_recorder,
  flight_signal,
  baseline_path,
  topology,
  network,
  host_id,
  tcp_ports,
  tcp_congestion,
  verbs_devices,
  tuning,
  shared_gpu,
};
inline constexpr int kOptions = 28;

namespace options {

enum class Type { duration, bytes, integer, flag, text, choice };
const char* name_of(Type type);

/// One row of the table, with its present value; for printing.
struct Row {
  Option option{};
  Type type{};
  std::string name;           // "TUTTI_TIMEOUT"
  std::string default_value;  // "300s"
  std::string unit;           // "time", "bytes", "" or the words that a choice allows
  std::string help;
  std::string value;     // as it is in force; what is secret is not shown
  bool changed = false;  // by the environment
};

/// The value of an environment name, or null.
using Lookup = std::function<const char*(const char* name)>;

/// All options, read from `lookup`. Immutable.
class Values {
 public:
  explicit Values(const Lookup& lookup);

  /// The first value that could not be read: "TUTTI_TIMEOUT: 'soon' is not a duration; expected ...".
  const Status& check() const { return status_; }
  /// A sentence for each option that was found under an old name.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // REQUIRES: the option has this type (text also serves choices).
  std::chrono::nanoseconds duration(Option option) const;
  std::uint64_t bytes(Option option) const;
  std::int64_t integer(Option option) const;
  bool flag(Option option) const;
  const std::string& text(Option option) const;

  std::vector<Row> all() const;

 private:
  using Value = std::variant<std::chrono::nanoseconds, std::uint64_t, std::int64_t, bool, std::string>;
  struct Slot {
    Value value;
    bool changed = false;
  };
  static Result<Value> parse(int row, std::string_view text);

  std::vector<Slot> slots_;
  Status status_;
  std::vector<std::string> warnings_;
};

// The process's own options, from its environment.
const Values& process();
inline const Status& check() { return process().check(); }
inline std::chrono::nanoseconds duration(Option option) { return process().duration(option); }
inline std::uint64_t bytes(Option option) { return process().bytes(option); }
inline std::int64_t integer(Option option) { return process().integer(option); }
inline bool flag(Option option) { return process().flag(option); }
inline const std::string& text(Option option) { return process().text(option); }
inline std::vector<Row> all() { return process().all(); }

}  // namespace options
}  // namespace tutti
