// Finds ranks of FullyShardedDataParallel that are in different steps, before what they gather in one mixes with what
// others reduce in another.
//
// How: the first use of a parameter in a step begins with an exchange of two numbers, the steps begun and the backward
//   passes done, on both communicators: a rank that is still in the backward of the step before meets it in whichever
//   it waits in, and both end with a mismatch at once.
// Bytes: 32 (n-1) for each step. Threads: as tutti::Communicator.
// A step begins with the first write to a shard behind the use of a parameter, which is the optimiser's, or else with
//   zero_grad() of the strategy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tutti/tutti.hpp"

namespace tutti::training {

class StepExchange {
 public:
  StepExchange(Communicator gathers, Communicator reductions);
  ~StepExchange();
  StepExchange(const StepExchange&) = delete;
  StepExchange& operator=(const StepExchange&) = delete;

  void on_zero_grad();
  /// A shard was written to.
  void on_write();
  void end_pass() { ++passes_; }
  /// Collective, where a step has begun since the last time. Errors: mismatch.
  void meet();

 private:
  static constexpr std::size_t kWords = 2;
  struct Way {
    Communicator comm;
    std::vector<std::uint64_t> words;  // of all ranks
    Work work;
  };

  void begin_step();
  std::string difference() const;

  std::array<Way, 2> ways_;
  std::uint64_t steps_ = 0, passes_ = 0;
  bool begun_by_write_ = false;  // so that zero_grad() has nothing to begin
  bool due_ = true;
};

/// Returns `message`, of calls that do not match or that only some ranks made, with what may cause that; added once.
std::string with_reason(const std::string& message);

/// Runs `step`, and adds the reason to a mismatch or a timeout that it throws.
template <class Step>
auto told_with_reason(Step&& step) {
  try {
    return step();
  } catch (const Error& error) {
    if (error.code() != Code::mismatch && error.code() != Code::timeout) throw;
    throw Error(error.code(), with_reason(error.what()));
  }
}

}  // namespace tutti::training
