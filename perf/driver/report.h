// The table on standard output (nccl-tests' columns, then the algorithm) and the JSON file (its keys, without the
// environment). Only rank 0 reports.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "perf/driver/measure.h"
#include "perf/driver/settings.h"

namespace tutti::perf {

/// A rank as the head of the table shows it. Trivially copyable: ranks exchange it as bytes.
struct Member {
  int rank = 0;
  int pid = 0;
  char host[64] = {};
  char gpu[64] = {};  // empty: it works on host memory
};

struct Summary {
  std::size_t wrong = 0;
  double average_bus_bandwidth = 0;  // over both halves of all rows
  bool bandwidth_ok = true;          // not below the floor of NCCL_TESTS_MIN_BW (0.9 of it)
};
/// `floor` in GB/s; 0: none.
Summary summarize(const std::vector<Row>& rows, double floor);

class Report {
 public:
  Report(const Settings& settings, const PerfCollective& collective, std::vector<Member> members, std::string command);

  void print_head() const;
  void print_row(const Row& row);
  /// Something that belongs between rows: "# <text>".
  void print_note(const std::string& text);
  void print_foot(const Summary& summary, std::size_t scratch_bytes) const;
  /// Writes the JSON file if one was asked for. Returns false if it could not be written.
  bool write_json(const Summary& summary, const std::string& experiment) const;

  const std::vector<Row>& rows() const { return rows_; }

 private:
  std::string half_text(const Half& half) const;

  const Settings& settings_;
  const PerfCollective& collective_;
  const std::vector<Member> members_;
  const std::string command_;
  const std::string start_time_;
  std::vector<Row> rows_;
  std::vector<std::string> notes_;
};

/// Returns `value` with 2, 1 or 0 digits after the point so that it fits into `width`, else as 1.2e+09.
std::string fitted(double value, std::size_t width);

}  // namespace tutti::perf
