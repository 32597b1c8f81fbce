// How a rank reaches ranks on other hosts: what it has written in its draft of their windows (transport.h), or has in
// memory of its own, is put into their windows, and signalled.
//
//   TUTTI_TRY(links.put(rank, lane, slot_in_draft, from, bytes, ticket));   // `from` is read until settled(ticket)
//   TUTTI_TRY(links.signal(rank, lane, cell_in_draft, count, tag, Push::now));
//
// Places in a far window are named by where they lie in the draft. Order, holding back and errors are those of a Wire
// (wire.h). Threads: as the Transport that it belongs to.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "transport/transport.h"
#include "transport/wire/wire.h"

namespace tutti::transport {

class FarLinks {
 public:
  virtual ~FarLinks() = default;

  virtual bool far(int rank) const = 0;
  virtual const WireInfo& info() const = 0;
  /// What goes to far ranks, and their numbers there: for memory that is no window.
  virtual Wire& wire() = 0;
  virtual int member(int rank) const = 0;
  /// Whether this rank has written anything to it in this communicator; any thread. If not, the first thing may make a
  /// connection.
  virtual bool has_written_to(int rank) const = 0;
  /// The draft of the mirror of this rank's board that `rank` has. REQUIRES: far(rank), as all that follow.
  virtual Board& mirror_at(int rank) = 0;

  virtual Status put(int rank, int lane, const void* to, const void* from, std::size_t bytes, Ticket& ticket) = 0;
  /// Sixteen bytes: `count`, and `tag` behind it, which may be seen a moment later.
  virtual Status signal(int rank, int lane, const void* to, std::uint64_t count, std::uint64_t tag, Push push) = 0;
  /// Up to Wire::kMostNoteBytes, in lane 0; may be seen in part. `from` is free at once.
  virtual Status note(int rank, const void* to, const void* from, std::size_t bytes, Push push) = 0;
  /// Ok, or why `rank` cannot be reached any more.
  virtual Status broken(int rank) = 0;
  /// Whether the bootstrap server is there, which tells when a far rank has died. If not, broken() is all that does.
  virtual bool hears_of_deaths() = 0;
  /// Writes a failure into all far ranks' mirrors of this rank's board, for where the bootstrap server does not tell
  /// it. Once; any thread. Stays until it has left, for a tenth of a second at most.
  virtual void tell(Code code, const std::string& sentence) = 0;

  /// progress(), for who waits for what comes from `rank`.
  virtual bool progress_for(int rank) = 0;

  // Of all far ranks.
  virtual bool settled(Ticket ticket) = 0;
  virtual Status post() = 0;
  virtual bool idle() = 0;
  virtual bool progress() = 0;
  virtual void doze(std::chrono::nanoseconds most) = 0;
};

/// The board of the first rank of this host, which all of its ranks share: it has the failure.
inline Board& shared_board(Transport& transport) {
  const FarLinks* far = transport.far_links();
  int first = 0;
  while (far != nullptr && far->far(first)) ++first;
  return *transport.window(first).board;
}

}  // namespace tutti::transport
