// How far the peers are, as this rank can see it: their records of calls, whether they have closed, their pulses, and
// what remote ranks have answered to a progress query.
//
// Threads: standing() and answered() from any thread; the rest one at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/transport.h"
#include "transport/wire/net_links.h"

namespace tutti::executor {

/// How long a rank of several hosts sleeps at a time while it waits; only the network ends that earlier.
inline constexpr std::chrono::microseconds kNetSleep{500};

class PeerProgress {
 public:
  PeerProgress(transport::Transport& transport, int rank);

  bool is_remote(int rank) const { return net_ != nullptr && net_->is_remote(rank); }
  /// Returns where the record of `call` is, or would be; null: nowhere. What a remote rank has sent in an express cell
  /// is first written into the mirror of its board.
  transport::CallRecord* record_of(int rank, std::uint64_t call) const;
  /// Reads all express cells of a remote rank into the mirror of its board.
  void read_cells(int rank) const;
  /// Whether a remote rank is known to have entered `call` or a later one, so that its record can be compared.
  bool has_announced(int rank, std::uint64_t call) const;
  // For a remote rank these return what it has answered, else what it has announced of calls in which it is a
  // neighbour.
  bool has_entered(int rank, std::uint64_t call) const;
  bool is_inside(int rank, std::uint64_t call) const;
  /// Whether the rank has destroyed its communicator.
  bool has_closed(int rank) const;

  /// Returns where this rank stands, as a word that answered() of a remote rank reads: its latest call, whether it is
  /// in it, and whether it polls.
  std::uint64_t standing() const;
  /// Stores the answer of `rank`. An answer of this rank itself shows that the others have been asked.
  void answered(int rank, std::uint64_t standing) {
    answers_[static_cast<std::size_t>(rank)].store(standing, std::memory_order_release);
  }
  bool has_answered(int rank) const { return answer_of(rank) != kNoAnswer; }
  /// Whether the rank has answered that it polls.
  bool answers_that_it_polls(int rank) const;

  /// The pulse that a rank writes while it waits.
  std::uint64_t pulse_of(int rank) const;
  void beat() { board_.pulse.beats.fetch_add(1, std::memory_order_relaxed); }
  /// Sends this rank's pulse to remote ranks now and then. REQUIRES: there are some.
  void send_pulse(std::int64_t now_ns);

 private:
  static constexpr std::uint64_t kNoAnswer = ~std::uint64_t{0};
  std::uint64_t answer_of(int rank) const {
    return answers_[static_cast<std::size_t>(rank)].load(std::memory_order_acquire);
  }
  /// The express cell in which a remote rank announces `call`.
  transport::ExpressCell& cell_from(int rank, std::uint64_t call) const;

  transport::Transport& transport_;
  transport::NetLinks* const net_;                   // null: all ranks are on this host
  transport::Board& board_;                          // this rank's
  std::byte* const express_;                         // this rank's cells
  std::vector<std::atomic<std::uint64_t>> answers_;  // by rank
  std::atomic<std::int64_t> last_pulse_ns_{0};       // sent to remote ranks
};

}  // namespace tutti::executor
