// The implementation of VerbsWire: the links of all ranks, and the memory that they write from.
//
// Threads: any; one mutex serialises all calls, and nobody sleeps with it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "topology/rails.h"
#include "transport/verbs/link.h"
#include "transport/wire/wire.h"

namespace tutti::transport::verbs {

class RcWire final : public Wire {
 public:
  static Result<std::unique_ptr<Wire>> open(const WireJob& job, const std::string& devices);
  ~RcWire() override;

  const WireInfo& info() const override { return info_; }
  const std::string& address() const override { return address_; }
  Status meet(const std::vector<std::string>& addresses) override;

  Result<std::string> expose(std::byte* base, std::size_t bytes) override { return expose(base, bytes, nullptr); }
  Result<std::string> expose_device(std::byte* base, std::size_t bytes, const Dmabuf& memory) override {
    return expose(base, bytes, &memory);
  }
  void unexpose(std::byte* base) override;
  Result<Region> attach(int rank, std::string_view key, std::size_t bytes) override;
  void detach(Region region) override;

  Status put(int rank, int lane, Region to, std::size_t at, const void* from, std::size_t bytes,
             Ticket& ticket) override;
  Status signal(int rank, int lane, Region to, std::size_t at, std::uint64_t count, std::uint64_t tag,
                Flush flush) override;
  Status put_inline(int rank, int lane, Region to, std::size_t at, const void* from, std::size_t bytes,
                    Flush flush) override;
  bool completed(Ticket ticket) override;
  void release_source(Ticket ticket) override;
  Status flush() override;
  bool idle(std::span<const int> ranks) override;
  bool progress() override;
  void sleep(std::chrono::nanoseconds most) override;
  Status broken(int rank) override;

 private:
  using ByRail = std::vector<ibv_mr*>;  // null: not with that one
  struct Registered {
    std::size_t bytes = 0;
    bool on_device = false;  // and so never to be read here
    ByRail by_rail;          // of what is kept: those by which something has left
    bool is_copied = false;  // it could not be registered with another one
  };
  using RegisteredMemory = std::map<std::uintptr_t, Registered>;  // by where it begins
  struct Attached {
    int rank = -1;  // -1: free
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
    std::vector<std::uint32_t> keys;  // by the rank's rail
  };
  struct Peer {
    std::vector<Link*> links;         // of linked ranks: lane k goes by the k-th, around
    topology::RailShare own, theirs;  // their rails at either end; from meet() on
    Status broken;
  };

  RcWire(const Library& verbs, const WireJob& job) : verbs_(verbs), job_(job), shares_(job.hosts), pool_(kChunks) {}
  Status start(const std::string& devices);
  Status make_bounce_buffers();
  Status make_links();
  Status write_address();
  Status connect(int rank, const std::string& address);

  /// `device`: null for memory of the host.
  Result<std::string> expose(std::byte* base, std::size_t bytes, const Dmabuf* device);

  // All of these with the mutex held.
  Result<Link*> link_to(int rank, int lane);
  /// Where `at` in the region is, on the rail of that lane.
  Result<RemoteBuffer> place_of(int rank, int lane, Region region, std::size_t at, std::size_t bytes) const;
  /// Null: not all of it is in one of these.
  static const Registered* find(const RegisteredMemory& all, const std::byte* from, std::size_t bytes);
  /// The block that it lies in, registered now with that rail where it has not been; null: it has to be copied.
  ibv_mr* keep(const std::byte* from, std::size_t bytes, std::size_t rail);
  /// With all rails that are used, or none.
  Result<ByRail> register_for_peers(std::byte* base, std::size_t bytes, const Dmabuf* device);
  void deregister(const ByRail& memory);
  /// A block has ended.
  void forget(std::byte* base);
  bool poll();
  bool advance();
  void break_rail(std::size_t rail);
  void send_all();
  void probe_silent_links();
  Status told(int rank, const Link& link);
  void spread_breaks();
  void finish();

  static constexpr int kTicketBits = 44;  // what the link calls the source; above: the link
  static std::uint64_t number_of(Ticket ticket) { return ticket & ((std::uint64_t{1} << kTicketBits) - 1); }
  static constexpr std::uint32_t kChunks = 64;
  static constexpr std::size_t kChunkBytes = 64 << 10;

  const Library& verbs_;
  const WireJob job_;
  const topology::RailShares shares_;
  WireInfo info_;
  std::string address_;
  std::vector<std::unique_ptr<Rail>> rails_;  // constant after open()
  std::vector<std::size_t> used_rails_;       // those that have a link

  std::mutex mutex_;  // guards what follows
  std::byte* bounce_ = nullptr;
  ByRail bounce_memory_;
  ChunkPool pool_;
  std::vector<std::unique_ptr<Link>> links_;               // by rank, then lane
  std::unordered_map<std::uint64_t, Link*> link_by_pair_;  // rail << 32 | number of the queue pair
  std::vector<Peer> peers_;
  RegisteredMemory exposed_;
  int exposed_on_device_ = 0;   // how many of them are
  RegisteredMemory kept_;       // the caller's own: blocks that have been put from
  std::size_t kept_bytes_ = 0;  // that they lock, with each rail again
  std::vector<Attached> regions_;
  Naps naps_;
  std::int64_t probed_ns_ = 0;
  std::uint64_t polls_ = 0;
  bool any_break_ = false;
  bool is_waiting_ = false;  // a link may be waits()
};

}  // namespace tutti::transport::verbs
