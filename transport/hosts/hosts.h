// Ranks on several hosts: those of this host by shared memory (a transport that is given), the remote ones by a wire.
// How: a wire may connect two processes when one first writes to the other. So nothing is written only to report that a
//   rank is there, or has left. Leave notices go by the wire to ranks to which something else has been written. To
//   others the bootstrap server passes them on, as long as it runs.
// Errors: connect() gives memory_limit and those of Wire::attach().
// Threads: as transport::Transport; LeaveMarks by any thread.
// Limits: the destructor waits for the remote ranks' end for a second at most.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/hosts/wire_links.h"
#include "transport/transport.h"
#include "transport/wire/wire.h"

namespace tutti::transport {

/// Takes leave notices that come from the bootstrap server: those of other ranks that have not come by the wire, and
/// this rank's own, which shows that it has been passed on. Threads: any.
class LeaveMarks {
 public:
  /// `own`: as in HostsTransport::Setup.
  LeaveMarks(std::byte* own, const WindowSizes& sizes) : own_(own), sizes_(sizes) {}
  /// Records that `rank` has left, exactly as its own notice over the wire would. `came`: it had joined.
  void set(int rank, bool came);
  /// Called when that memory ends.
  void end();

 private:
  std::mutex mutex_;
  std::byte* own_;  // null: has ended
  const WindowSizes sizes_;
};

class HostsTransport final : public Transport {
 public:
  /// Returns true once no remote rank writes into this rank's memory any more; it is not exposed any longer then. To be
  /// asked again and again, after the transport's end too.
  using Gone = std::function<bool()>;

  /// The ranks, as they are known. All vectors are by rank.
  struct Setup {
    int rank = 0;
    WindowSizes sizes;
    std::unique_ptr<Transport> local;  // of the ranks of this host; its windows of others are null
    std::shared_ptr<Wire> wire;
    std::vector<int> world_ranks;               // ranks of the job, by which the wire knows them
    std::byte* own = nullptr;                   // exposed_bytes() that the wire exposes
    std::vector<std::string> keys;              // of the remote ranks' exposed memory
    std::function<bool(int world_rank)> alive;  // as far as the bootstrap server knows
    std::function<bool()> server_alive;         // the bootstrap server
    std::shared_ptr<LeaveMarks> marks;          // set when a leave notice comes from the server
    std::function<Status(const std::vector<int>& world_ranks, bool came)> send_leave_notice;  // by the server
    std::function<void(Gone)> keep;  // called at the end, before `local` ends: `own` must stay until then
  };
  /// Errors: memory_limit, those of Wire::attach(). The other ranks do not see that it has failed: the caller reports
  /// it.
  static Result<std::unique_ptr<HostsTransport>> connect(Setup setup);
  /// Notifies the remote ranks that this one has left, and waits until they have too, for a second at most.
  ~HostsTransport() override;

  const Capabilities& capabilities() const override { return capabilities_; }
  const WindowSizes& sizes() const override { return setup_.sizes; }
  std::size_t memory() const override;
  const Window& window(int rank) const override { return windows_[static_cast<std::size_t>(rank)]; }
  void warm() override { local_->warm(); }
  NetLinks* net_links() override { return &links_; }
  Handle handle_of(const void* address, std::size_t bytes) const override { return local_->handle_of(address, bytes); }
  std::byte* reach(int rank, Handle handle) const override { return local_->reach(rank, handle); }
  bool alive(int rank) const override;
  Status read(int rank, Handle from, std::size_t offset, void* to, std::size_t bytes) override {
    return local_->read(rank, from, offset, to, bytes);
  }
  Status write(int rank, const void* from, Handle to, std::size_t offset, std::size_t bytes) override {
    return local_->write(rank, from, to, offset, bytes);
  }

 private:
  explicit HostsTransport(Setup setup);
  Status attach();
  Gone gone() const;

  const Setup setup_;
  Transport* const local_;
  Capabilities capabilities_;
  WireLinks links_;
  std::vector<Window> windows_;
  bool connected_ = false;
};

}  // namespace tutti::transport
