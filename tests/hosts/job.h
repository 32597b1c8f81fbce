// The ranks of one job on several hosts, as processes that may be killed and stopped (tests/failure/processes.h).
#pragma once

#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/failure/processes.h"
#include "tests/hosts/hosts.h"

namespace tutti::testing {

/// `each` ranks on every host, host by host, with the environment of a launcher: TUTTI_RANK and its like, and the first
/// host's address as the bootstrap server.
class Job : public Processes {
 public:
  Job(const Hosts& hosts, int each, const Body& body, const std::vector<Setting>& environment = {})
      : Processes(hosts.count() * each, on_hosts(hosts, each, body), environment), each_(each) {}

  int host_of(int rank) const { return rank / each_; }
  std::vector<int> ranks_of(int host) const {
    std::vector<int> ranks;
    for (int r = host * each_; r < (host + 1) * each_; ++r) ranks.push_back(r);
    return ranks;
  }
  /// Notes of the rank's body.
  std::string note(int rank) const { return slot(rank).notes; }
  /// To all its processes. Returns when the last was sent, in now_ns().
  std::int64_t signal_host(int host, int number) const {
    std::int64_t sent = 0;
    for (const int rank : ranks_of(host)) sent = signal(rank, number);
    return sent;
  }
  /// "rank 1 (host beta, pid 4711)", as errors name it.
  std::string name(int rank) const {
    return "rank " + std::to_string(rank) + " (host " + Hosts::name(host_of(rank)) + ", pid " +
           std::to_string(pid(rank)) + ")";
  }

 private:
  static Body on_hosts(const Hosts& hosts, int each, const Body& body) {
    static int jobs = 0;
    const std::string job = std::to_string(::getpid()) + "." + std::to_string(++jobs);
    const int size = hosts.count() * each;
    return [&hosts, each, body, job, size](const Place& place) {
      hosts.enter(place.rank() / each);
      const Setting settings[] = {{"TUTTI_JOB", job},
                                  {"TUTTI_RANK", std::to_string(place.rank())},
                                  {"TUTTI_SIZE", std::to_string(size)},
                                  {"TUTTI_LOCAL_RANK", std::to_string(place.rank() % each)},
                                  {"TUTTI_LOCAL_SIZE", std::to_string(each)},
                                  {"TUTTI_MASTER_ADDR", Hosts::address(0)}};
      for (const auto& [name, value] : settings) ::setenv(name.c_str(), value.c_str(), 1);
      body(place);
    };
  }

  const int each_;
};

}  // namespace tutti::testing
