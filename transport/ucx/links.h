// The wire itself: links to the peers over one UCX worker (ucx.h says how it works).
#pragma once

#ifdef TUTTI_HAS_UCX

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/ucx/am_message.h"
#include "transport/ucx/context.h"
#include "transport/wire/attached.h"
#include "transport/wire/exposed.h"
#include "transport/wire/sources.h"
#include "transport/wire/wakeup.h"
#include "transport/wire/wire.h"

namespace tutti::ucx {

using transport::Flush;
using transport::Region;
using transport::Source;
using transport::Ticket;
using transport::WireInfo;
using transport::WireJob;

class Links final : public transport::Wire {
 public:
  static Result<std::unique_ptr<Wire>> open(const WireJob& job);
  ~Links() override;

  const WireInfo& info() const override { return info_; }
  const std::string& address() const override { return context_->address(); }
  Status meet(const std::vector<std::string>& addresses) override;
  Result<std::string> expose(std::byte* base, std::size_t bytes) override;
  void unexpose(std::byte* base) override;
  Result<Region> attach(int rank, std::string_view key, std::size_t bytes) override;
  void detach(Region region) override;
  Status put(int rank, int lane, Region to, std::size_t at, const void* from, std::size_t bytes,
             Ticket& ticket) override;
  Status signal(int rank, int lane, Region to, std::size_t at, std::uint64_t count, std::uint64_t tag,
                Flush flush) override;
  bool completed(Ticket ticket) override;
  void release_source(Ticket ticket) override;
  void give_up() override;
  Status flush() override;
  bool idle(std::span<const int> ranks) override;
  bool progress() override;
  void sleep(std::chrono::nanoseconds most) override;
  Status broken(int rank) override;
  std::string obstacle(int rank) override;

 private:
  struct Link;

  /// A message, being filled or under way, and the piece of a large put that goes with it.
  struct Sending {
    explicit Sending(std::size_t most) : message(most) {}
    AmMessage message;
    Links* links = nullptr;
    Link* link = nullptr;
    Source* source = nullptr;
    const void* from = nullptr;
    std::size_t bytes = 0;
  };
  /// A large put that UCX is writing into this process's memory.
  struct Receiving {
    Links* links = nullptr;
    Link* link = nullptr;
    std::uint32_t lane = 0;
    std::uint64_t number = 0;
  };
  struct Lane {
    Sending* open = nullptr;  // what is held back
    std::uint64_t next = 0;   // number of the next message
    ReorderQueue queue;
  };
  struct Link {
    Links* links = nullptr;
    int rank = 0;
    std::uint64_t pass = 0;  // of both directions' messages
    ucp_ep_h endpoint = nullptr;
    std::vector<Lane> lanes;
    int outstanding = 0;              // messages that have not left
    std::int64_t first_ns = 0;        // when the first was sent; 0: none was
    bool reached = false;             // one has left
    bool heard = false;               // of the peer, while there is no endpoint yet
    bool answered = false;            // a message of the peer has come
    std::atomic<bool> broken{false};  // set after why, which stays
    Status why;
  };

  Links(const WireJob& job, std::unique_ptr<Context> context);

  const Ucp& ucp() const { return context_->ucp(); }
  Link& link_of(int rank) { return *links_[static_cast<std::size_t>(rank)]; }
  Status connect(Link& link);
  Sending& open_in(Link& link, Lane& lane, std::size_t bytes);
  void send(Link& link, int lane);
  void complete(Sending& sending);
  void large_put(Link& link, int lane, const transport::Attached& to, std::size_t at, const std::byte* from,
                 std::size_t bytes, Ticket& ticket);
  void fail(Link& link, ucs_status_t status);
  void fail(Link& link, Status why);
  void tidy();
  void close(ucp_ep_h endpoint, std::uint32_t flags);
  void close_broken();
  bool close_all();
  bool move();

  // What UCX calls, from within a call of ours.
  static ucs_status_t on_message(void* links, const void* header, std::size_t header_bytes, void* data,
                                 std::size_t bytes, const ucp_am_recv_param_t* parameters);
  static void on_sent(void* request, ucs_status_t status, void* sending);
  static void on_received(void* request, ucs_status_t status, std::size_t bytes, void* receiving);
  static void on_error(void* link, ucp_ep_h endpoint, ucs_status_t status);

  ucs_status_t receive(std::string_view text, void* data, std::size_t bytes, bool rendezvous);
  Status unpack(MessageReader& reading, void* data, std::size_t bytes, bool rendezvous);
  void received(Receiving& receiving, ucs_status_t status);
  void drain(ReorderQueue& queue);

  const WireJob job_;
  WireInfo info_;
  transport::Wakeup wakeup_;

  std::mutex mutex_;  // all below
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<Link>> links_;
  transport::ExposedMemory exposed_;  // a registration is a ucp_mem_h
  transport::AttachedMemory attached_;
  std::deque<Sending> sendings_;
  std::vector<Sending*> free_sendings_;
  transport::Sources sources_;
  std::deque<Receiving> receivings_;
  std::vector<Receiving*> free_receivings_;
  std::vector<ucp_ep_h> dead_;   // endpoints of broken links, to be closed
  std::vector<void*> closings_;  // requests of closing them
  bool has_news_ = false;        // something for tidy()
  bool has_failed_ = false;      // give_up()

  // Ends first: ending it calls back for what is still under way.
  std::unique_ptr<Context> context_;
};

}  // namespace tutti::ucx

#endif
