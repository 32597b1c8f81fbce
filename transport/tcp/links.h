// The wire itself: connections to the peers (tcp.h says how it works).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/sockets/socket.h"
#include "transport/tcp/inbox.h"
#include "transport/tcp/outbox.h"
#include "transport/wire/attached.h"
#include "transport/wire/sources.h"
#include "transport/wire/wakeup.h"
#include "transport/wire/wire.h"

namespace tutti::tcp {

using sockets::Connecting;
using sockets::Fd;
using transport::Flush;
using transport::Region;
using transport::Ticket;
using transport::WireInfo;
using transport::WireJob;

class Links final : public transport::Wire {
 public:
  static Result<std::unique_ptr<Wire>> open(const WireJob& job);
  ~Links() override;

  const WireInfo& info() const override { return info_; }
  const std::string& address() const override { return address_; }
  Status meet(const std::vector<std::string>& addresses) override;
  Result<std::string> expose(std::byte* base, std::size_t bytes) override;
  void unexpose(std::byte* base) override;
  Result<Region> attach(int rank, std::string_view key, std::size_t bytes) override;
  void detach(Region region) override;
  Status put(int rank, int lane, Region to, std::size_t at, const void* from, std::size_t bytes,
             Ticket& ticket) override;
  Status signal(int rank, int lane, Region to, std::size_t at, std::uint64_t count, std::uint64_t tag,
                Flush flush) override;
  void redirect(const void* slot, std::size_t bytes, void* to) override;
  bool end_redirect(const void* slot) override;
  bool completed(Ticket ticket) override;
  void release_source(Ticket ticket) override;
  Status flush() override;
  bool idle(std::span<const int> ranks) override;
  bool progress() override;
  bool progress_for(int rank) override;
  void sleep(std::chrono::nanoseconds most) override;
  Status broken(int rank) override;
  std::string obstacle(int rank) override;

 private:
  struct Peer {  // what its address says
    sockets::Endpoint endpoint;
    Nonce nonce{};
  };
  enum class State {
    none,
    connecting,  // this process is making the connection; the peer's host has not answered
    greeting,    // it has been made, and the peer has not answered
    expected,    // the peer's own connection stays, and has not come yet
    open,
  };
  struct Link {
    int rank = 0;
    State state = State::none;
    std::optional<Connecting> connecting;  // while that is its state
    std::int64_t since_ns = 0;             // when it began
    sockets::ParentOnlyFd fd;
    Outbox outbox;
    Inbox inbox;
    bool to_send = false;             // the outbox is to be sent
    std::uint32_t watched = 0;        // what epoll is asked about it, once it is open
    std::atomic<bool> broken{false};  // set after why, which stays
    Status why;
  };
  /// A connection whose maker has not said who it is.
  struct UnidentifiedConnection {
    sockets::ParentOnlyFd fd;
    Hello hello;
    std::size_t come = 0;  // of it
    std::int64_t since_ns = 0;
  };

  explicit Links(const WireJob& job) : job_(job) {}
  Status listen();

  Link& link_of(int rank) { return *links_[static_cast<std::size_t>(rank)]; }
  const std::string& name_of(int rank) const { return job_.names[static_cast<std::size_t>(rank)]; }
  const sockets::Endpoint& endpoint_of(int rank) const { return peers_[static_cast<std::size_t>(rank)].endpoint; }
  Status connect(Link& link);
  bool continue_connecting(Link& link);
  void greet(Link& link);
  void flush(Link& link);
  bool send(Link& link);
  bool receive(Link& link);
  bool read_answer(Link& link);
  void establish(Link& link);
  bool accept_connections();
  bool read_hello(int fd);
  void admit(UnidentifiedConnection& connection);
  void fail(Link& link, const std::string& why, Code code = Code::peer_died);
  /// As code system where the system refuses such calls here: that is no death of the peer.
  void fail_by(Link& link, int error_number);
  /// Where the system refuses a call that all links need (is_refused_here), the next move() fails them.
  void note_refusal(const char* call, int error_number);
  void fail_all_refused();
  void complete();
  bool look();
  bool move(Link* awaited, bool thorough);
  void watch(int fd, std::uint64_t whose, std::uint32_t events);
  void ask_epoll();

  const WireJob job_;
  WireInfo info_;
  std::string address_;
  Nonce nonce_{};
  Fd events_;  // epoll
  transport::Wakeup wakeup_;

  std::mutex mutex_;  // all below
  Status refused_;    // of note_refusal()
  std::unique_ptr<sockets::Listener> listener_;
  std::vector<Peer> peers_;  // by rank; of those that are linked
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<Link*> open_;
  std::vector<UnidentifiedConnection> unidentified_;
  int unfinished_ = 0;  // links that are neither none nor open
  unsigned moves_ = 0;
  ExposedMemory exposed_;
  Redirects redirects_;
  transport::AttachedMemory attached_;
  transport::Sources sources_;
  std::vector<Source*> completed_;  // which complete() has to take back
};

}  // namespace tutti::tcp
