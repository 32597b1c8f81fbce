// For tests of ranks that count as being on other hosts (TUTTI_HOST_ID).
#pragma once

#include <sched.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tests/collectives/must.h"
#include "tests/collectives/processes.h"

namespace tutti::testing {

/// The word for the host of each rank.
using Hosts = std::vector<std::string>;
inline const Hosts kEightHosts{"a", "b", "c", "d", "e", "f", "g", "h"};

/// Returns the text that `call` throws; "no error".
inline std::string error_in(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

inline void sum_up(Communicator& comm) {
  int sum = 1;
  comm.all_reduce(&sum, &sum, 1, DataType::i32);
  MUST(sum == comm.size());
}

/// Rank 0 hosts the bootstrap server; the others go on without it, and without it hear of each other's failures. Theirs
/// is a communicator of their own, which rank 0 leaves them; by then it has ended.
inline Communicator without_rank_zero(Communicator& comm) {
  std::vector<int> pids(static_cast<std::size_t>(comm.size()));
  const int own = ::getpid();
  comm.all_gather(&own, pids.data(), 1, DataType::i32);
  Communicator rest = comm.split(comm.rank() == 0 ? 1 : 0, 0);
  if (comm.rank() == 0) return rest;
  sum_up(rest);
  while (::kill(pids[0], 0) == 0) sched_yield();  // until its parent has seen it end
  return rest;
}

}  // namespace tutti::testing
