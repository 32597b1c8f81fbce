// The implementation of VerbsWire: the links of all members, and the memory that they write from.
//
// Threads: any; one mutex serialises all calls, and nobody sleeps with it.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/verbs/link.h"
#include "transport/wire.h"

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
  void conceal(std::byte* base) override;
  Result<Region> attach(int member, std::string_view key, std::size_t bytes) override;
  void detach(Region region) override;

  Status put(int member, int lane, Region to, std::size_t at, const void* from, std::size_t bytes,
             Ticket& ticket) override;
  Status signal(int member, int lane, Region to, std::size_t at, std::uint64_t count, std::uint64_t tag,
                Push push) override;
  Status note(int member, int lane, Region to, std::size_t at, const void* from, std::size_t bytes,
              Push push) override;
  bool settled(Ticket ticket) override;
  void let_go(Ticket ticket) override;
  Status post() override;
  bool progress() override;
  void doze(std::chrono::nanoseconds most) override;
  Status broken(int member) override;

 private:
  struct Registered {
    std::size_t bytes = 0;
    bool on_device = false;        // and so never to be read here
    std::vector<ibv_mr*> by_rail;  // empty: it could not be
  };
  using RegisteredMemory = std::map<std::uintptr_t, Registered>;  // by where it begins
  struct Attached {
    int member = -1;  // -1: free
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
    std::vector<std::uint32_t> keys;  // by rail
  };
  struct Member {
    std::vector<Link*> links;  // by rail; of linked members; cut to those that both ends have, in meet()
    Status broken;
  };

  RcWire(const Library& verbs, const WireJob& job) : verbs_(verbs), job_(job), pool_(kChunks) {}
  Status start(const std::string& devices);
  Status make_staging();
  Status write_address(int linked);
  Status connect(int member, const std::string& address);

  /// `device`: null for memory of the host.
  Result<std::string> expose(std::byte* base, std::size_t bytes, const Dmabuf* device);

  // All of these with the mutex held.
  Result<Link*> link_to(int member, int lane);
  /// Where `at` in the region is, on the rail of that lane.
  Result<Remote> place_of(int member, int lane, Region region, std::size_t at, std::size_t bytes) const;
  /// Null: not all of it is in one of these.
  static const Registered* find(const RegisteredMemory& all, const std::byte* from, std::size_t bytes);
  /// The block that it lies in, registered now where it has not been; null: it has to be copied.
  const Registered* keep(const std::byte* from, std::size_t bytes);
  /// For peers, or `device`'s, which is for them too. All rails, or none.
  Result<std::vector<ibv_mr*>> register_with_all(std::byte* base, std::size_t bytes, bool for_peers,
                                                 const Dmabuf* device);
  void deregister(const Registered& memory);
  std::size_t locked_by(const Registered& memory) const { return memory.bytes * rails_.size(); }
  /// A block has ended.
  void forget(std::byte* base);
  /// Makes progress until the link can hold one more write; other threads may call meanwhile. Errors: the link is
  /// broken.
  Status make_room(Link& link, std::unique_lock<std::mutex>& lock);
  /// One write whose source is read at once. REQUIRES: bytes <= kChunkBytes.
  Status write_copied(Link& link, const std::byte* from, std::size_t bytes, const Remote& to,
                      std::unique_lock<std::mutex>& lock);
  bool poll();
  void send_all();
  void probe_silent_links();
  Status told(const Link& link);
  void spread_breaks();
  void finish();

  static constexpr int kTicketBits = 44;  // the number of a write; above: the link
  static std::uint64_t number_of(Ticket ticket) { return ticket & ((std::uint64_t{1} << kTicketBits) - 1); }
  static constexpr std::uint32_t kChunks = 64;
  static constexpr std::size_t kChunkBytes = 64 << 10;

  const Library& verbs_;
  const WireJob job_;
  WireInfo info_;
  std::string address_;
  std::vector<std::unique_ptr<Rail>> rails_;  // constant after open()

  std::mutex mutex_;  // guards what follows
  std::byte* staging_ = nullptr;
  std::vector<ibv_mr*> staging_memory_;  // by rail
  ChunkPool pool_;
  std::vector<std::unique_ptr<Link>> links_;               // by member, then rail
  std::unordered_map<std::uint64_t, Link*> link_by_pair_;  // rail << 32 | number of the queue pair
  std::vector<Member> members_;
  RegisteredMemory exposed_;
  int exposed_on_device_ = 0;   // how many of them are
  RegisteredMemory kept_;       // the caller's own: blocks that have been put from
  std::size_t kept_bytes_ = 0;  // that they lock
  std::vector<Attached> regions_;
  Naps naps_;
  std::int64_t probed_ns_ = 0;
  std::uint64_t polls_ = 0;
  bool any_break_ = false;
};

}  // namespace tutti::transport::verbs
