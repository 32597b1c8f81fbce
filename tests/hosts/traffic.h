// Bytes on the wire, counted by the kernel at each host's link.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <string>

#include "tests/hosts/job.h"

namespace tutti::testing {

/// Bytes that go over hosts' links in a call, of a message of one.
struct Traffic {
  Collective collective;
  double first;                      // the first host
  double others;                     // any other host
  const char* counted = "tx_bytes";  // or rx_bytes: what comes
};

/// Returns the bytes that have gone over this host's link so far.
inline double counted(const Traffic& traffic) {
  std::ifstream file(std::string("/sys/class/net/eth0/statistics/") + traffic.counted);
  double bytes = 0;
  file >> bytes;
  return bytes;
}

/// Notes what goes over this host's link in `calls` calls. All ranks call it.
inline void count_bytes(const Place& place, Communicator& comm, const Traffic& traffic, int calls,
                        const std::function<void()>& call) {
  // A rank that has left a barrier has no bytes of the calls before it to send; those of the barrier are few.
  comm.barrier();
  const double before = counted(traffic);
  comm.barrier();
  for (int i = 0; i < calls; ++i) call();
  comm.barrier();
  place.note(std::to_string(counted(traffic) - before));
  comm.barrier();
}

/// Checks that it was so much in `calls` calls with messages of `bytes`.
inline void expect_bytes(const Job& job, int hosts, int each, const Traffic& expected, int calls, double bytes) {
  // Frames and their headers (one in 22 bytes of a full one), acknowledgements of what comes, and what a call says
  // besides its data.
  constexpr double kOverhead = 1.10;
  for (int host = 0; host < hosts; ++host) {
    const double messages = std::stod(job.note(host * each)) / calls / bytes;
    const double most = host == 0 ? expected.first : expected.others;
    EXPECT_LE(messages, most * kOverhead + 0.01) << Hosts::name(host);
    if (most == 0) continue;
    EXPECT_GE(messages, most * 0.98) << Hosts::name(host) << ": what was counted cannot be all";
  }
}

}  // namespace tutti::testing
