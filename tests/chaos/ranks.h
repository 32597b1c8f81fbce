// The processes of one scenario: what each rank runs, and what it leaves for the judge.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/chaos/scenario.h"
#include "tutti/tutti.hpp"

namespace tutti::chaos {

struct SystemCall {
  const char* name;
  long number;
};
/// Those that a running job makes, or may make again.
const std::vector<SystemCall>& refusable_calls();

/// In memory that the campaign shares with the rank.
struct Report {
  enum End : int { running, right, told, wrong, other };
  std::atomic<int> end{running};
  std::atomic<int> calls{0};        // begun
  std::atomic<bool> made{false};    // the communicator is there
  std::atomic<std::int64_t> at_ns;  // when it ended
  int code = 0;                     // of the error
  std::array<char, 2000> text{};    // its sentence, or what is wrong
  int descriptors_before = 0, descriptors_after = 0;
  int threads_before = 0, threads_after = 0;
};

inline constexpr int kMostRanks = 4;
using Reports = std::array<Report, kMostRanks>;

/// Starts the ranks; by rank. `job`: a name that no other scenario has.
std::vector<pid_t> start_ranks(const Scenario& scenario, const std::string& job, Reports& reports);

/// The training of a scenario; where the build has LibTorch. Throws tutti::Error, or std::runtime_error for wrong
/// results.
void train(const Scenario& scenario, Communicator comm, Report& report);
/// Before a rank's fault can begin.
void prepare_training();
bool can_train();

}  // namespace tutti::chaos
