// How ranks get into the job: accepts connections for the bootstrap server, challenges them, and refuses those that do
// not prove that they know the job's secret.
//
// How: an unproven connection holds one descriptor and at most kMaxUnprovenPayload bytes, and has a deadline. So
// unauthenticated peers neither disturb the job nor delay it.
// Errors: what keeps this process from accepting connections fails the bootstrap on all ranks.
// Threads: the server's alone.
#pragma once

#include <poll.h>

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/bootstrap/connection.h"
#include "transport/bootstrap/endpoint.h"
#include "transport/bootstrap/exchanges.h"
#include "transport/bootstrap/message.h"
#include "transport/bootstrap/ranks.h"
#include "transport/bootstrap/secret.h"
#include "transport/bootstrap/server_addresses.h"
#include "transport/sockets/fd.h"
#include "transport/sockets/socket.h"

namespace tutti::bootstrap {

/// Reports on standard error which connections are refused: the first ones, and all with TUTTI_LOG=info.
class Refusals {
 public:
  /// `answered`: the peer speaks the protocol, and is sent the reason.
  void report(const std::string& peer, const std::string& why, bool answered = false);
  /// Returns the last of those that were answered, as the end of a sentence; empty: none.
  const std::string& last_answered() const { return last_answered_; }

 private:
  int reported_ = 0;
  std::string last_answered_;
};

class Admission {
 public:
  using Clock = BootstrapEndpoint::Clock;

  Admission(BootstrapEndpoint& local, std::unique_ptr<sockets::Listener> listener, const Secret& secret,
            ServerRanks& ranks, Exchanges& exchanges);

  /// Accepts and reads what has come. Once the last rank has joined, closes the listener and sends all the roster.
  void progress();
  /// Returns true while ranks are let in, or told why not.
  bool is_open() const { return listener_ != nullptr; }
  /// Returns true once all ranks have joined, or the bootstrap has failed.
  bool is_decided() const { return decided_; }
  /// Returns true if the bootstrap has failed. Ranks that come later are told why, unless `code` was timeout: their own
  /// deadline has passed too.
  bool has_failed() const { return !excuse_.ok(); }

  void fail(Code code, const std::string& text);
  /// Every rank that comes is refused with this reason.
  void refuse_all(const Status& why) { excuse_ = why; }
  void on_deadline(const DeadlineNotice& notice);

  /// Adds what poll() has to watch, and returns when progress() is due without it; max(): not.
  Clock::time_point watch(std::vector<pollfd>& items) const;

 private:
  struct Unproven {
    Connection connection;
    Handshake handshake;
    Clock::time_point deadline;
    std::string peer;
  };
  using At = std::list<Unproven>::iterator;

  void accept_all();
  void on_accept_failed(int error);
  void read_unproven();
  void on_join_request(At at, const Frame& frame);
  void admit(At at, const JoinRequest& request);
  void complete();
  void refuse(At at, const std::string& why, bool answer = false);
  void refuse_oldest(const std::string& why) { refuse(unproven_.begin(), why); }
  void answer_refusal(Unproven& peer, Code code, const std::string& why);
  /// Fails the bootstrap for a reason of this process.
  void cannot_serve(const Status& why);
  /// Returns "; rank 0 waits at 10.7.0.1:12345 on host alpha", which the absent ranks may not reach.
  std::string where_server_waits() const;

  BootstrapEndpoint& local_;
  std::unique_ptr<sockets::Listener> listener_;
  sockets::Fd spare_;  // a descriptor that is given back when the process has no other left
  const Secret secret_;
  ServerRanks& ranks_;
  Exchanges& exchanges_;
  std::list<Unproven> unproven_;  // oldest first
  ServerAddresses addresses_;
  Refusals refusals_;
  Clock::time_point accept_again_{};
  Clock::time_point starved_since_{};  // since when no descriptors were left and no rank has joined; 0: not
  Status excuse_;                      // why no rank is let in any more
  bool decided_ = false;
};

}  // namespace tutti::bootstrap
