// Ranks on several hosts: those of the own host by shared memory (a transport that is given), the others by a wire.
//
// What a far rank writes lies in this rank's exposed memory: its window, and behind it a mirror of every far rank's
// board. Of each far rank there is a draft with the same layout (transport.h), which takes address space but no memory
// where nothing is written (draft_bytes()).
//
// A wire may connect two processes when one first writes to the other. So nothing is written only to tell that a rank
// is there, or has done its part: leave notices go by the wire to whom something else has been written, and to others
// by the bootstrap server, as long as that is there.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/even_share.h"
#include "base/pages.h"
#include "transport/transport.h"
#include "transport/wire/net_links.h"
#include "transport/wire/wire.h"

namespace tutti::transport {

/// Where the mirror of `rank`'s board begins in the memory that a rank exposes, behind its window.
inline std::size_t mirror_offset(const WindowSizes& sizes, int rank) {
  return round_up(sizes.bytes(), kCacheLine) + static_cast<std::size_t>(rank) * sizeof(Board);
}
inline std::size_t exposed_bytes(const WindowSizes& sizes) { return mirror_offset(sizes, sizes.ranks); }

/// What a rank writes at most into its draft of a far rank's window, in pages: the mailbox to it, the express cells,
/// and a failure. Else a draft only names places.
inline std::size_t draft_bytes(const WindowSizes& sizes) {
  std::size_t bytes = 0;
  for (const std::size_t part : {sizes.mailbox, sizes.express_offset(1, 0), offsetof(Board, pulse)}) {
    bytes += round_up(part, page_bytes()) + page_bytes();  // it need not begin with a page
  }
  return bytes;
}

/// Records the leave notices that the bootstrap server passes on: those of other ranks that have not come by the wire,
/// and this rank's own, which says that the server has passed it on. Any thread.
class LeaveMarks {
 public:
  /// `own`: as in Setup.
  LeaveMarks(std::byte* own, const WindowSizes& sizes) : own_(own), sizes_(sizes) {}
  /// Marks the mirror of that rank's board as its own words by the wire would. `came`: it was there.
  void set(int rank, bool came);
  /// That memory ends.
  void end();

 private:
  std::mutex mutex_;
  std::byte* own_;  // null: has ended
  const WindowSizes sizes_;
};

class HostsTransport final : public Transport, public FarLinks {
 public:
  /// True once no far rank writes into this rank's memory any more; it is exposed no longer then. To be asked again and
  /// again, after the transport's end too.
  using Gone = std::function<bool()>;

  /// What is known of the ranks. All vectors are by rank.
  struct Setup {
    int rank = 0;
    WindowSizes sizes;
    std::unique_ptr<Transport> near;  // of the ranks of this host; of others its windows are null
    std::shared_ptr<Wire> wire;
    std::vector<int> members;               // their numbers in the job, by which the wire knows them
    std::byte* own = nullptr;               // exposed_bytes() that the wire exposes
    std::vector<std::string> keys;          // of the far ranks' exposed memory
    std::function<bool(int member)> alive;  // as far as the bootstrap server knows
    std::function<bool()> server_alive;     // whether that is there
    std::shared_ptr<LeaveMarks> marks;      // which the bootstrap server sets
    std::function<Status(const std::vector<int>& members, bool came)> send_leave_notice;  // by that, to these
    std::function<void(Gone)> keep;  // called at the end, before `near` ends: `own` must stay until then
  };
  /// Errors: memory_limit, those of Wire::attach(). The others do not see that it has failed: they must be told.
  static Result<std::unique_ptr<HostsTransport>> connect(Setup setup);
  /// Tells the far ranks that this one is done, and waits until they are too, for a second at most.
  ~HostsTransport() override;

  const Capabilities& capabilities() const override { return capabilities_; }
  const WindowSizes& sizes() const override { return sizes_; }
  std::size_t memory() const override;
  const Window& window(int rank) const override { return windows_[static_cast<std::size_t>(rank)]; }
  void warm() override { near_->warm(); }
  FarLinks* far_links() override { return this; }
  Handle handle_of(const void* address, std::size_t bytes) const override { return near_->handle_of(address, bytes); }
  std::byte* reach(int rank, Handle handle) const override { return near_->reach(rank, handle); }
  bool alive(int rank) const override;
  Status read(int rank, Handle from, std::size_t offset, void* to, std::size_t bytes) override {
    return near_->read(rank, from, offset, to, bytes);
  }
  Status write(int rank, const void* from, Handle to, std::size_t offset, std::size_t bytes) override {
    return near_->write(rank, from, to, offset, bytes);
  }

  bool far(int rank) const override { return near_->window(rank).board == nullptr; }
  const WireInfo& info() const override { return wire_->info(); }
  Wire& wire() override { return *wire_; }
  int member(int rank) const override { return members_[static_cast<std::size_t>(rank)]; }
  bool has_written_to(int rank) const override {
    return peers_[static_cast<std::size_t>(rank)].written_to.load(std::memory_order_relaxed);
  }
  Board& mirror_at(int rank) override;
  Status put(int rank, int lane, const void* to, const void* from, std::size_t bytes, Ticket& ticket) override;
  Status signal(int rank, int lane, const void* to, std::uint64_t count, std::uint64_t tag, Push push) override;
  Status note(int rank, const void* to, const void* from, std::size_t bytes, Push push) override;
  Status broken(int rank) override { return wire_->broken(member(rank)); }
  bool hears_of_deaths() override { return server_alive_(); }
  void tell(Code code, const std::string& sentence) override;
  bool settled(Ticket ticket) override { return wire_->settled(ticket); }
  Status post() override { return wire_->post(); }
  bool idle() override { return wire_->idle(far_members_); }
  bool progress() override { return wire_->progress(); }
  bool progress_for(int rank) override { return wire_->progress_for(member(rank)); }
  void doze(std::chrono::nanoseconds most) override { wire_->doze(most); }

 private:
  struct Peer {
    std::shared_ptr<std::byte> draft;  // null: the rank is near. The wire may be reading it after this object's end
    Region region = 0;
    std::atomic<bool> written_to{false};
  };

  explicit HostsTransport(Setup setup);
  /// Maps the drafts and attaches the regions.
  Status attach(const std::vector<std::string>& keys);
  void send_leave_notice_by_wire(int rank);
  Gone gone() const;
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  /// Where what is written to `rank` goes.
  Region region_of(int rank) {
    peer(rank).written_to.store(true, std::memory_order_relaxed);
    return peer(rank).region;
  }
  std::size_t place_of(int rank, const void* in_draft) {
    return static_cast<std::size_t>(static_cast<const std::byte*>(in_draft) - peer(rank).draft.get());
  }

  const int rank_;
  const WindowSizes sizes_;
  Capabilities capabilities_;
  const std::unique_ptr<Transport> near_;
  const std::shared_ptr<Wire> wire_;
  const std::vector<int> members_;
  std::vector<int> far_members_;  // of the far ranks; constant after creation
  std::byte* const own_;
  const std::function<bool(int member)> alive_;
  const std::function<bool()> server_alive_;
  const std::shared_ptr<LeaveMarks> marks_;
  const std::function<Status(const std::vector<int>& members, bool came)> send_leave_notice_;
  const std::function<void(Gone)> keep_;
  std::vector<Window> windows_;
  std::vector<Peer> peers_;
  bool connected_ = false;
};

}  // namespace tutti::transport
