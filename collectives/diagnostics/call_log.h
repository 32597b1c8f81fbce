// What the last call of a communicator was, for explain_last_call(), TUTTI_EXPLAIN and TUTTI_TRACE.
//
// Threads: the thread that runs calls, one at a time; last() when none runs.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "collectives/executor/host/trace.h"
#include "collectives/executor/prepared.h"
#include "collectives/executor/record.h"
#include "tutti/tutti.hpp"

namespace tutti {

class CallLog {
 public:
  /// `owner` names the file of TUTTI_TRACE, which is made at once.
  explicit CallLog(executor::FileOwner owner);

  /// Returns whether report() does anything.
  bool is_watched() const { return explain_ || trace_; }
  /// Null: nothing is traced.
  executor::StepTrace* trace() const { return trace_.get(); }

  // What the last call was. Each replaces what was there.
  /// No plan has served it.
  void record_none() { path_ = Path::none; }
  /// A plan has served it on host memory. One comparison where it is that of the call before.
  void record_host(const std::shared_ptr<const executor::Prepared>& plan) {
    path_ = Path::host;
    if (plan_ != plan) plan_ = plan;
  }
  /// Kernels have served it. `explanation` stays until the next call.
  void record_kernels(const Explanation* explanation) {
    path_ = Path::kernels;
    kernels_ = explanation;
  }
  /// The NIC has served it.
  void record_gdr(int lanes) {
    path_ = Path::gdr;
    lanes_ = lanes;
  }
  /// Records the fragments, after the host's or the NIC's call for each. `how`: more about it, as a sentence's end.
  void record_fragments(std::size_t count, std::string how) {
    if (path_ == Path::host) path_ = Path::staged;
    fragments_ = static_cast<int>(count);
    how_ = std::move(how);
  }

  Explanation last() const;
  /// Returns whether the last call went through pinned memory.
  bool is_staged() const { return path_ == Path::staged; }

  /// Writes the call to the trace, and to standard error where TUTTI_EXPLAIN is set.
  void report(const executor::CallSnapshot& call, const std::string& algorithm, const std::string& how) const;
  void report(const executor::CallSnapshot& call, const executor::Prepared& plan) const;

 private:
  enum class Path { none, host, kernels, staged, gdr };

  const bool explain_;
  const int world_rank_;
  std::unique_ptr<executor::StepTrace> trace_;
  Path path_ = Path::none;
  std::shared_ptr<const executor::Prepared> plan_;
  const Explanation* kernels_ = nullptr;
  int lanes_ = 0;
  int fragments_ = 0;
  std::string how_;
};

}  // namespace tutti
