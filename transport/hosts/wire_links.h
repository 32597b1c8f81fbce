// The remote ranks of a communicator, reached by a wire: their shadows here, their mirrors, and their regions.
//
// What a remote rank writes lies in this rank's exposed memory: its window, and behind it a mirror of every remote
// rank's board. Each remote rank has a shadow here with the same layout (transport.h), which takes address space but no
// memory where nothing is written (shadow_bytes()).
//
// Threads: as for the Transport that it belongs to; has_written_to() and announce_failure(): any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/even_share.h"
#include "base/pages.h"
#include "transport/transport.h"
#include "transport/wire/net_links.h"
#include "transport/wire/wire.h"

namespace tutti::transport {

/// Returns where the mirror of `rank`'s board begins in the memory that a rank exposes, behind its window.
inline std::size_t mirror_offset(const WindowSizes& sizes, int rank) {
  return round_up(sizes.bytes(), kCacheLine) + static_cast<std::size_t>(rank) * sizeof(Board);
}
inline std::size_t exposed_bytes(const WindowSizes& sizes) { return mirror_offset(sizes, sizes.ranks); }

/// The mirror of `rank`'s board in the exposed memory `own`.
inline Board& mirror_of(std::byte* own, const WindowSizes& sizes, int rank) {
  return *reinterpret_cast<Board*>(own + mirror_offset(sizes, rank));
}

/// The cell by which a remote rank announces that it has sent its last in this lane: signals of lanes do not wait for
/// each other.
inline std::atomic<std::uint64_t>& last_in(Board& board, int lane) { return board.survivors.alive[2 * lane]; }

/// Returns what a rank writes at most into its shadow of a remote window, in pages: the mailbox to it, the express
/// cells, and a failure. Other places of a shadow are only named.
std::size_t shadow_bytes(const WindowSizes& sizes);

class WireLinks final : public NetLinks {
 public:
  struct Setup {
    int rank = 0;
    WindowSizes sizes;
    std::shared_ptr<Wire> wire;
    std::vector<int> world_ranks;        // by rank
    std::vector<bool> remote;            // by rank
    std::byte* own = nullptr;            // exposed_bytes() that the wire exposes
    std::function<bool()> server_alive;  // the bootstrap server
  };
  explicit WireLinks(Setup setup);
  /// Detaches the regions.
  ~WireLinks() override;

  /// Maps the shadow of `rank` and attaches its region by its key. Returns its window. Errors: memory_limit, those of
  /// Wire::attach().
  Result<Window> attach(int rank, const std::string& key);
  /// Writes to `rank` that this rank has left, if it is attached. `pulse`: this rank's; null: it never joined.
  void send_leave_notice(int rank, const Pulse* pulse);

  const std::vector<int>& remote_world_ranks() const { return remote_world_ranks_; }
  /// Returns the shadow, which the wire may read after this object's end.
  std::shared_ptr<std::byte> shadow(int rank) const { return peers_[static_cast<std::size_t>(rank)].shadow; }

  bool is_remote(int rank) const override { return peers_[static_cast<std::size_t>(rank)].remote; }
  const WireInfo& info() const override { return wire_->info(); }
  Wire& wire() override { return *wire_; }
  int world_rank(int rank) const override { return setup_.world_ranks[static_cast<std::size_t>(rank)]; }
  bool has_written_to(int rank) const override {
    return peers_[static_cast<std::size_t>(rank)].written_to.load(std::memory_order_relaxed);
  }
  Board& mirror_at(int rank) override;
  Status put(int rank, int lane, const void* to, const void* from, std::size_t bytes, Ticket& ticket) override;
  Status signal(int rank, int lane, const void* to, std::uint64_t count, std::uint64_t tag, Flush flush) override;
  Status put_inline(int rank, const void* to, const void* from, std::size_t bytes, Flush flush) override;
  Status broken(int rank) override { return wire_->broken(world_rank(rank)); }
  bool server_reports_deaths() override { return setup_.server_alive(); }
  void announce_failure(Code code, const std::string& sentence) override;
  bool completed(Ticket ticket) override { return wire_->completed(ticket); }
  Status flush() override { return wire_->flush(); }
  bool idle() override { return wire_->idle(remote_world_ranks_); }
  bool progress() override { return wire_->progress(); }
  bool progress_for(int rank) override { return wire_->progress_for(world_rank(rank)); }
  void sleep(std::chrono::nanoseconds most) override { wire_->sleep(most); }

 private:
  struct Peer {
    bool remote = false;
    std::shared_ptr<std::byte> shadow;  // null: the rank is local, or not attached
    Region region = 0;
    std::atomic<bool> written_to{false};
  };

  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  /// Returns the region of what is written to `rank`.
  Region region_of(int rank) {
    peer(rank).written_to.store(true, std::memory_order_relaxed);
    return peer(rank).region;
  }
  std::size_t offset_of(int rank, const void* in_shadow) {
    return static_cast<std::size_t>(static_cast<const std::byte*>(in_shadow) - peer(rank).shadow.get());
  }

  const Setup setup_;
  const std::shared_ptr<Wire> wire_ = setup_.wire;
  std::vector<Peer> peers_;
  std::vector<int> remote_world_ranks_;  // constant after creation
};

}  // namespace tutti::transport
