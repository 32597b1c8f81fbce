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
using transport::Push;
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
  void conceal(std::byte* base) override;
  Result<Region> attach(int member, std::string_view key, std::size_t bytes) override;
  void detach(Region region) override;
  Status put(int member, int lane, Region to, std::size_t at, const void* from, std::size_t bytes,
             Ticket& ticket) override;
  Status signal(int member, int lane, Region to, std::size_t at, std::uint64_t count, std::uint64_t tag,
                Push push) override;
  void land(const void* slot, std::size_t bytes, void* to) override;
  bool landed(const void* slot) override;
  bool settled(Ticket ticket) override;
  void let_go(Ticket ticket) override;
  Status post() override;
  bool idle(std::span<const int> members) override;
  bool progress() override;
  bool progress_for(int member) override;
  void doze(std::chrono::nanoseconds most) override;
  Status broken(int member) override;
  std::string obstacle(int member) override;

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
    int member = 0;
    State state = State::none;
    std::optional<Connecting> connecting;  // while that is its state
    std::int64_t since_ns = 0;             // when it began
    sockets::ParentOnlyFd fd;
    Outbox outbox;
    Inbox inbox;
    bool pushed = false;              // the outbox is to be sent
    std::uint32_t watched = 0;        // what epoll is asked about it, once it is open
    std::atomic<bool> broken{false};  // set after why, which stays
    Status why;
  };
  /// A connection whose maker has not said who it is.
  struct Visitor {
    sockets::ParentOnlyFd fd;
    Hello hello;
    std::size_t come = 0;  // of it
    std::int64_t since_ns = 0;
  };

  explicit Links(const WireJob& job) : job_(job) {}
  Status listen();

  Link& link_of(int member) { return *links_[static_cast<std::size_t>(member)]; }
  const std::string& name_of(int member) const { return job_.names[static_cast<std::size_t>(member)]; }
  const sockets::Endpoint& endpoint_of(int member) const { return peers_[static_cast<std::size_t>(member)].endpoint; }
  Status connect(Link& link);
  bool go_on_connecting(Link& link);
  void greet(Link& link);
  void push(Link& link);
  bool send(Link& link);
  bool receive(Link& link);
  bool hear_answer(Link& link);
  void establish(Link& link);
  bool accept_visitors();
  bool hear_visitor(int fd);
  void admit(Visitor& visitor);
  void fail(Link& link, const std::string& why, Code code = Code::peer_died);
  /// As code system where the system refuses such calls here: that is no death of the peer.
  void fail_by(Link& link, int error_number);
  /// Where the system refuses a call that all links need (is_refused_here), the next move() fails them.
  void note_refusal(const char* call, int error_number);
  void fail_all_refused();
  void settle();
  bool look();
  bool move(Link* awaited, bool thorough);
  void watch(int fd, std::uint64_t whose, std::uint32_t events);
  void ask_epoll();

  const WireJob job_;
  WireInfo info_;
  std::string address_;
  Nonce nonce_{};
  Fd events_;  // epoll
  transport::Bell bell_;

  std::mutex mutex_;  // all below
  Status refused_;    // of note_refusal()
  std::unique_ptr<sockets::Listener> listener_;
  std::vector<Peer> peers_;  // by member; of those that are linked
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<Link*> open_;
  std::vector<Visitor> visitors_;
  int unfinished_ = 0;  // links that are neither none nor open
  unsigned moves_ = 0;
  ExposedMemory exposed_;
  Landings landings_;
  transport::AttachedMemory attached_;
  transport::Sources sources_;
  std::vector<Source*> settled_;  // which settle() has to take back
};

}  // namespace tutti::tcp
