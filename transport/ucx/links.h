// The endpoints to the peers over one UCX worker, and what is sent and received by them (ucx.h says how it works).
//
// Threads: the caller has the wire's mutex, but for Link::broken.
#pragma once

#ifdef TUTTI_HAS_UCX

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
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

using transport::Source;
using transport::Ticket;
using transport::WireJob;

class Links {
 public:
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

  /// All of them outlive it, but that `context` may end first: ending it calls back for what is still under way. What
  /// comes is written to `exposed`, and what has left completes `sources`.
  Links(const WireJob& job, Context& context, transport::ExposedMemory& exposed, transport::Sources& sources);
  Status start();
  Status meet(const std::vector<std::string>& addresses);

  Link& link_of(int rank) { return *links_[static_cast<std::size_t>(rank)]; }
  std::string obstacle(int rank);

  /// Makes the endpoint, if there is none.
  Status connect(Link& link);
  /// Returns the message that is held back in the lane, with room for `bytes`.
  Sending& open_in(Link& link, Lane& lane, std::size_t bytes);
  void large_put(Link& link, int lane, const transport::Attached& to, std::size_t at, const std::byte* from,
                 std::size_t bytes, Ticket& ticket);
  /// Sends what is held back in the lane.
  void send(Link& link, int lane);
  /// Breaks the link of a put's rank, and waits until UCX no longer reads its source.
  void release(Ticket ticket);
  /// Returns true if anything moved.
  bool move();
  /// Closes the endpoints, at the end. Returns false if the worker must not end: UCX would abort the process.
  bool close_all(bool has_failed);

  /// Returns false if there is something to move: then there is no sleep().
  bool prepare_to_sleep();
  /// Threads: without the mutex.
  void sleep(std::chrono::nanoseconds most) { wakeup_.sleep(context_.event(), most); }

 private:
  const Ucp& ucp() const { return context_.ucp(); }
  void complete(Sending& sending);
  void fail(Link& link, ucs_status_t status);
  void fail(Link& link, Status why);
  void tidy();
  void close(ucp_ep_h endpoint, std::uint32_t flags);
  void close_broken();

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

  const WireJob& job_;
  Context& context_;
  transport::ExposedMemory& exposed_;
  transport::Sources& sources_;
  transport::Wakeup wakeup_;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<Link>> links_;  // constant after creation
  std::deque<Sending> sendings_;
  std::vector<Sending*> free_sendings_;
  std::deque<Receiving> receivings_;
  std::vector<Receiving*> free_receivings_;
  std::vector<ucp_ep_h> dead_;   // endpoints of broken links, to be closed
  std::vector<void*> closings_;  // requests of closing them
  bool has_news_ = false;        // something for tidy()
};

}  // namespace tutti::ucx

#endif
