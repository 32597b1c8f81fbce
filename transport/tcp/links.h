// The connections to the peers: they are made, accepted, moved and broken here (tcp.h says how it works).
//
// Threads: the caller has the wire's mutex, but for info(), address() and Link::broken.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/sockets/socket.h"
#include "transport/tcp/inbox.h"
#include "transport/tcp/outbox.h"
#include "transport/wire/sources.h"
#include "transport/wire/wakeup.h"
#include "transport/wire/wire.h"

namespace tutti::tcp {

using sockets::Connecting;
using sockets::Fd;
using transport::WireInfo;
using transport::WireJob;

inline constexpr std::size_t kCopied = 4096;  // larger puts are taken from where they lie

class Links {
 public:
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

  /// All of them outlive it. What comes is written to `exposed`, or to where `redirects` says; what has left completes
  /// `sources`.
  Links(const WireJob& job, ExposedMemory& exposed, Redirects& redirects, transport::Sources& sources)
      : job_(job), exposed_(exposed), redirects_(redirects), sources_(sources) {}
  ~Links();
  /// Opens what all connections need. Errors: as TcpWire::open().
  Status listen();
  Status meet(const std::vector<std::string>& addresses);

  const WireInfo& info() const { return info_; }
  const std::string& address() const { return address_; }
  Link& link_of(int rank) { return *links_[static_cast<std::size_t>(rank)]; }
  std::string obstacle(int rank);

  /// Begins to connect, if that has not begun. What is put meanwhile waits.
  Status connect(Link& link);
  /// Sends what is in the outbox, or what of it the kernel takes.
  void flush(Link& link);
  /// Takes a put's source from its outbox, as Wire::release_source().
  void release(const Source& source);
  /// Reads `awaited` first, where there is one, and the others now and then. `thorough`: reads all and asks epoll,
  /// which is otherwise asked now and then where links are few. Returns true if anything moved.
  bool move(Link* awaited, bool thorough);

  /// Returns false if there is something to move: then there is no sleep().
  bool prepare_to_sleep();
  /// Threads: without the mutex.
  void sleep(std::chrono::nanoseconds most) { wakeup_.sleep(events_.get(), most); }

 private:
  struct Peer {  // what its address says
    sockets::Endpoint endpoint;
    Nonce nonce{};
  };
  /// A connection whose maker has not said who it is.
  struct UnidentifiedConnection {
    sockets::ParentOnlyFd fd;
    Hello hello;
    std::size_t come = 0;  // of it
    std::int64_t since_ns = 0;
  };

  bool continue_connecting(Link& link);
  void greet(Link& link);
  bool send(Link& link);
  bool receive(Link& link);
  bool read_answer(Link& link);
  void establish(Link& link);
  bool accept_connections();
  bool read_hello(int fd);
  void admit(UnidentifiedConnection& connection);
  void fail(Link& link, const std::string& why, Code code = Code::peer_died);
  /// Fails it with code system if the system refuses such calls here: that is no death of the peer.
  void fail_by(Link& link, int error_number);
  /// Records that the system refuses a call which all links need (is_refused_here); the next move() fails them.
  void note_refusal(const char* call, int error_number);
  void fail_all_refused();
  void complete();
  bool look();
  void watch(int fd, std::uint64_t whose, std::uint32_t events);
  void ask_epoll();

  const WireJob& job_;
  ExposedMemory& exposed_;
  Redirects& redirects_;
  transport::Sources& sources_;
  WireInfo info_;
  std::string address_;
  Nonce nonce_{};
  Fd events_;  // epoll
  transport::Wakeup wakeup_;
  Status refused_;  // of note_refusal()
  std::unique_ptr<sockets::Listener> listener_;
  std::vector<Peer> peers_;                   // by rank; of those that are linked
  std::vector<std::unique_ptr<Link>> links_;  // constant after listen()
  std::vector<Link*> open_;
  std::vector<UnidentifiedConnection> unidentified_;
  int unfinished_ = 0;  // links that are neither none nor open
  unsigned moves_ = 0;
  std::vector<Source*> completed_;  // which complete() has to take back
};

}  // namespace tutti::tcp
