// The exchanges of the bootstrap server that are under way: of all ranks (Gather), and of the survivors of a
// communicator (SurvivorExchange).
//
// Errors: an exchange that cannot complete any more fails on all ranks with one sentence. A Status that is returned
// here says that the sender broke the rules.
// Threads: the server's alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/bootstrap/message.h"
#include "transport/bootstrap/ranks.h"

namespace tutti::bootstrap {

class Exchanges {
 public:
  explicit Exchanges(ServerRanks& ranks) : ranks_(ranks) {}

  Status on_gather(int from, Gather gather);
  Status on_survivor_exchange(int from, SurvivorExchange exchange);
  /// The deadline of one rank for exchange `notice.sequence` has passed: fails it, and names who is missing.
  void on_deadline(const DeadlineNotice& notice);

  /// Fails one exchange on all ranks, those that come to it later too. `late`: a rank that has not contributed; or -1.
  void fail(std::uint64_t sequence, Code code, std::string text, int late = -1);
  /// No exchange of all ranks can complete from now on. The first reason counts.
  void fail_all(Status why);
  /// Ends those exchanges of survivors to which every rank that is left has contributed. Called after a rank has gone.
  void finish_survivor_exchanges();

  /// Returns "; rank 2 has not come to exchange 3": a rank that leaves may have given up waiting for others, which are
  /// the ones to name. Empty if no rank is waited for.
  std::string who_is_waited_for() const;

 private:
  struct Open {
    std::vector<std::optional<std::string>> blobs;  // by rank
    int contributed = 0;
  };
  struct OpenSurvivors {
    std::string among;               // a byte for each rank; 0 if any rank takes it for gone
    std::vector<std::string> blobs;  // by rank; empty: not contributed yet
  };

  /// Returns true if exchange `sequence` has failed, after sending its failure to `rank`.
  bool answered_with_failure(int rank, std::uint64_t sequence);
  void finish(std::uint64_t sequence, Open& open);
  /// Returns the lowest rank that is waited for; -1: none.
  int first_missing(const OpenSurvivors& open) const;

  ServerRanks& ranks_;
  std::map<std::uint64_t, Open> open_;
  std::map<std::uint64_t, OpenSurvivors> open_survivors_;
  std::set<std::uint64_t> finished_survivors_;
  std::map<std::uint64_t, GatherFailed> failed_;
  std::optional<Status> gone_;  // why no exchange of all ranks can complete any more
};

}  // namespace tutti::bootstrap
