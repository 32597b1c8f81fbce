// How a rank reaches ranks on other hosts ("remote ranks"): it writes into its shadows of their windows (transport.h),
// or into memory of its own, and puts that into their windows, with signals behind it.
//
//   TUTTI_TRY(links.put(rank, lane, slot_in_shadow, from, bytes, ticket));   // `from` is read until completed(ticket)
//   TUTTI_TRY(links.signal(rank, lane, cell_in_shadow, count, tag, Flush::now));
//
// Places in a remote window are named by where they lie in the shadow. Order, holding back and errors: as for a Wire.
// Threads: as for the Transport that it belongs to.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "transport/transport.h"
#include "transport/wire/wire.h"

namespace tutti::transport {

class NetLinks {
 public:
  virtual ~NetLinks() = default;

  virtual bool is_remote(int rank) const = 0;
  virtual const WireInfo& info() const = 0;
  /// The wire that serves the remote ranks, and their ranks there: for memory that is no window.
  virtual Wire& wire() = 0;
  virtual int world_rank(int rank) const = 0;
  /// Returns true if this rank has written anything to `rank` in this communicator. If not, the first write may make a
  /// connection. Threads: any.
  virtual bool has_written_to(int rank) const = 0;
  /// Returns the shadow of the mirror of this rank's board that `rank` has. REQUIRES: is_remote(rank), here and below.
  virtual Board& mirror_at(int rank) = 0;

  virtual Status put(int rank, int lane, const void* to, const void* from, std::size_t bytes, Ticket& ticket) = 0;
  /// Writes sixteen bytes: `count`, and `tag` behind it, which may be seen a moment later.
  virtual Status signal(int rank, int lane, const void* to, std::uint64_t count, std::uint64_t tag, Flush flush) = 0;
  /// Writes up to Wire::kMostInlineBytes, in lane 0. They may be seen in part. `from` is free at once.
  virtual Status put_inline(int rank, const void* to, const void* from, std::size_t bytes, Flush flush) = 0;
  /// Returns ok, or why `rank` cannot be reached any more.
  virtual Status broken(int rank) = 0;
  /// Returns true while the bootstrap server runs, which reports the deaths of remote ranks. Without it broken() is all
  /// that does.
  virtual bool server_reports_deaths() = 0;
  /// Writes a failure into the mirrors of this rank's board at all remote ranks, where the server does not report it.
  /// Called once, from any thread. Waits until it has left, for a tenth of a second at most.
  virtual void announce_failure(Code code, const std::string& sentence) = 0;

  /// progress() for a caller that waits for `rank`.
  virtual bool progress_for(int rank) = 0;

  // For all remote ranks together.
  virtual bool completed(Ticket ticket) = 0;
  virtual Status flush() = 0;
  virtual bool idle() = 0;
  virtual bool progress() = 0;
  virtual void sleep(std::chrono::nanoseconds most) = 0;
};

/// Returns the board of the first rank of this host, which all of its ranks share: it has the failure.
inline Board& shared_board(Transport& transport) {
  const NetLinks* links = transport.net_links();
  int first = 0;
  while (links != nullptr && links->is_remote(first)) ++first;
  return *transport.window(first).board;
}

}  // namespace tutti::transport
