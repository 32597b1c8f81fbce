// Where the spaces of a plan begin in this process (PreparedRange::base). There is one table for each half of scratch,
// and one for each express cell of a peer. In an express call, what a peer has published or put lies in its cell.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/executor/host/signal_links.h"
#include "transport/transport.h"

namespace tutti::executor {

class BaseTable {
 public:
  using Bases = std::vector<std::byte*>;

  BaseTable(transport::Transport& transport, const SignalLinks& links, int rank);

  /// The table that call `sequence` uses.
  Bases& of_call(bool express, std::uint64_t sequence) {
    return express ? express_[sequence % express_.size()] : halves_[sequence % 2];
  }
  /// The cell in `receiver`'s window that `sender` writes in call `sequence`.
  transport::ExpressCell& express_cell(int receiver, int sender, std::uint64_t sequence) const {
    return sizes_.express_cell(express_cells_[static_cast<std::size_t>(receiver)], sender, sequence);
  }
  /// Express calls after which a cell is used again.
  std::uint64_t express_calls() const { return express_.size(); }
  /// Returns where this rank's published data lies in an express call.
  std::byte* published() { return published_.data(); }

 private:
  const transport::WindowSizes sizes_;
  Bases halves_[2];
  std::vector<Bases> express_;
  std::vector<std::byte*> express_cells_;  // of each rank's window
  std::vector<std::byte> published_;
};

}  // namespace tutti::executor
