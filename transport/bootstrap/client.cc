#include "transport/bootstrap/client.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/backoff.h"
#include "base/log.h"
#include "transport/sockets/interfaces.h"
#include "transport/sockets/nonce.h"

namespace tutti::bootstrap {
namespace {

using Clock = BootstrapEndpoint::Clock;
using namespace std::chrono_literals;

/// An attempt to join that the deadline ends sooner tells less than the one before: it may be nothing but late. TCP
/// sends what is lost once more within it.
constexpr auto kShortest = 2s;

int milliseconds_until(Clock::time_point when) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(when - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
}

/// An attempt that failed: for good, or worth another one.
struct Attempt {
  Status status;
  bool final = false;
};

/// The next frame, waiting for it; status of code timeout at the deadline.
Result<Frame> wait_for_frame(Connection& connection, Clock::time_point deadline) {
  for (;;) {
    TUTTI_ASSIGN(std::optional<Frame> frame, connection.next(kMaxUnprovenPayload + kMaxText));
    if (frame) return std::move(*frame);
    if (connection.refused_here()) return Status(Code::system, connection.why_closed());
    if (!connection.open()) return Status(Code::system, "it closed the connection");
    const int left = milliseconds_until(deadline);
    if (left == 0) return Status(Code::timeout, "it said nothing");
    pollfd item = connection.poll_item();
    (void)::poll(&item, 1, left);
    connection.flush();
    connection.receive();
  }
}

/// Who this rank is, and where others reach it: where its connection to rank 0 leaves from. To rank 0 of the same host
/// that tells nothing; so rank 0, which hears from the other hosts, fills in the address unless TUTTI_INTERFACE has it.
Result<Identity> identity_by(int fd, const BootstrapEndpoint& local, const sockets::Endpoint& server) {
  Identity who = local.own();
  const std::string source = sockets::local_address_of(fd);
  if (source.empty() || sockets::is_loopback(server.address)) return who;
  TUTTI_ASSIGN(const sockets::OwnAddress own, sockets::own_address_at(source));
  if (own.why != sockets::kByOption && sockets::is_own_address(sockets::remote_address_of(fd))) return who;
  who.address = own.address;
  who.interface = own.address.empty() ? sockets::interface_of(source) : own.interface;
  return who;
}

/// `asked`: becomes what Connecting::addresses() says, once that is known.
Attempt try_to_join(const BootstrapEndpoint& local, const sockets::Endpoint& server, const Secret& secret,
                    Clock::time_point deadline, std::string& asked, Joined& joined) {
  Result<sockets::Connecting> connecting = sockets::Connecting::begin(server, milliseconds_until(deadline));
  if (!connecting.ok()) return {connecting.status(), connecting.status().code() == Code::invalid_argument};
  asked = connecting.value().addresses();
  Result<sockets::Fd> fd = connecting.value().wait();
  const auto refuse = [&](const std::string& why, Code code = Code::invalid_argument) {
    return Attempt{Status(code, fmt::format("rank {} cannot join at {}: {}", local.rank(), server.text(), why)), true};
  };
  if (!fd.ok() && connecting.value().refused_here()) return refuse(fd.status().message(), Code::system);
  if (!fd.ok()) return {fd.status(), fd.status().code() == Code::invalid_argument};
  if (const Status status = sockets::check_same_user(fd.value().get()); !status.ok()) {
    return refuse(status.message(), status.code());
  }
  Result<Identity> who = identity_by(fd.value().get(), local, server);
  if (!who.ok()) return {who.status(), true};
  Connection connection(fd.take());
  const auto failed = [&](const Status& status) {
    if (connection.refused_here()) return refuse(status.message(), Code::system);
    return Attempt{Status(Code::timeout, fmt::format("{}: {}", server.text(), status.message()))};
  };

  Result<Frame> first = wait_for_frame(connection, deadline);
  if (!first.ok()) {
    // What sends anything else is no server that is slow.
    if (first.status().code() == Code::invalid_argument) return refuse("what listens there is not this job's rank 0");
    return failed(first.status());
  }
  Result<Challenge> challenge = decode<Challenge>(first.value().payload);
  if (first.value().type != MessageType::challenge || !challenge.ok()) {
    return refuse("what listens there is not this job's rank 0");
  }
  const Handshake handshake{challenge.value().nonce, sockets::random_nonce()};
  JoinRequest request;
  request.nonce = handshake.client;
  request.rank = local.rank();
  request.size = local.size();
  request.who = who.take();
  request.proof = prove(secret, handshake, request);
  connection.send(frame_of(request));

  Result<Frame> second = wait_for_frame(connection, deadline);
  if (!second.ok()) return failed(second.status());
  if (second.value().type == MessageType::refusal) {
    const Result<Refusal> refusal = decode<Refusal>(second.value().payload);
    if (refusal.ok() && is_proven(secret, handshake, refusal.value())) {
      // With another code it reports another rank's failure, and nothing is wrong with this rank.
      if (refusal.value().code == Code::invalid_argument) return refuse(refusal.value().text);
      return {Status(refusal.value().code, refusal.value().text), true};
    }
    return refuse("its secret is not this job's");
  }
  const Result<Welcome> welcome = decode<Welcome>(second.value().payload);
  if (second.value().type != MessageType::welcome || !welcome.ok() || !is_proven(secret, handshake, welcome.value())) {
    return refuse("its secret is not this job's");
  }
  joined = {std::move(connection), welcome.value().who};
  return {};
}

/// Returns "; asked from host beta, 10.7.0.2 on eth0", for a server that does not answer. `asked`: its numeric
/// addresses: resolving a name again could take long, and the deadline is over.
std::string where_asked_from(const sockets::Endpoint& server, const std::string& asked) {
  if (server.is_unix()) {
    return fmt::format(
        "; it is looked for on host {} alone, and in this network namespace: ranks that are elsewhere need "
        "TUTTI_MASTER_ADDR",
        sockets::host_name());
  }
  if (sockets::is_loopback(server.address))
    return fmt::format("; only host {} itself is reached there", sockets::host_name());
  const Result<sockets::OwnAddress> own = sockets::own_address(sockets::routes_to(asked));
  if (own.ok() && !own.value().address.empty()) {
    return fmt::format("; asked from host {}, {} on {}", sockets::host_name(), own.value().address,
                       own.value().interface);
  }
  return fmt::format("; asked from host {}, which has no address that others reach", sockets::host_name());
}

class BootstrapClient {
 public:
  BootstrapClient(BootstrapEndpoint& local, Joined joined)
      : local_(local), connection_(std::move(joined.connection)), server_(std::move(joined.server)) {}

  void run() {
    while (!local_.stopping()) {
      read();
      write();
      local_.run_callbacks();
      if (finished()) return;
      sleep();
    }
  }

 private:
  void read() {
    if (reported_closed_) return;
    connection_.receive();  // of one that has closed before this loop began, what was read then is still to be heard
    for (;;) {
      Result<std::optional<Frame>> frame = connection_.next(kMaxPayload);
      if (frame.ok() && !frame.value()) break;
      if (frame.ok() && frame.value()->type == MessageType::goodbye) {
        server_left_ = true;
        connection_.close();
        break;
      }
      const Status status = frame.ok() ? local_.deliver(*frame.value()) : frame.status();
      if (!status.ok()) {
        connection_.close(fmt::format("it sent {}", status.message()));
        break;
      }
    }
    if (!connection_.open()) on_closed();
  }

  void on_closed() {
    reported_closed_ = true;
    if (server_left_) {
      local_.break_off(Status(Code::aborted, fmt::format("{} has left", name_of(0, server_))));
      local_.run_callbacks();  // what it said before
      local_.note_left(0);
    } else if (!local_.leaving()) {
      const std::string& why = connection_.why_closed();
      std::string text = why.empty() ? name_of(0, server_) + " died"
                                     : fmt::format("{} is lost: {}", name_and_address_of(0, server_), why);
      local_.break_off(Status(Code::peer_died, text));
      local_.note_failure({Code::peer_died, 0, 0, std::move(text)});
    }
  }

  void write() {
    if (!connection_.open()) return;
    const bool leaving = local_.leaving();  // asked first: what was posted before it is in the outbox
    // Beyond this the frames wait in the outbox, whose limit is the caller's to see, for as long as it stays.
    constexpr std::size_t kEnoughUnsent = 1 << 20;
    if (leaving || connection_.unsent_bytes() < kEnoughUnsent) {
      for (const Frame& frame : local_.take_outbox()) connection_.send(encode_frame(frame.type, frame.payload));
    }
    if (leaving && !said_goodbye_) {
      said_goodbye_ = true;
      goodbye_ends_ = Clock::now() + kGoodbyeLimit;
      connection_.send(frame_of(Goodbye{}));
    }
    connection_.flush();
    if (said_goodbye_ && !connection_.unsent() && !half_closed_) {
      half_closed_ = true;
      connection_.finish_sending();
    }
  }

  bool finished() const {
    return local_.leaving() && (!connection_.open() || (said_goodbye_ && Clock::now() >= goodbye_ends_));
  }

  void sleep() {
    pollfd items[2] = {{local_.wake_fd(), POLLIN, 0}, connection_.poll_item()};
    const Clock::time_point longest = Clock::now() + kLongestSleep;
    const int limit = milliseconds_until(said_goodbye_ ? std::min(goodbye_ends_, longest) : longest);
    (void)::poll(items, connection_.open() ? 2 : 1, limit);
    if (items[0].revents != 0) local_.drain_wake();
  }

  BootstrapEndpoint& local_;
  Connection connection_;
  const Identity server_;
  bool server_left_ = false;
  bool reported_closed_ = false;
  bool said_goodbye_ = false;
  bool half_closed_ = false;
  Clock::time_point goodbye_ends_{};
};

}  // namespace

Result<Joined> join(const BootstrapEndpoint& local, const sockets::Endpoint& server, const Secret& secret,
                    Clock::time_point deadline, std::chrono::milliseconds limit) {
  Backoff backoff(1ms, 50ms);
  std::string why;
  std::string asked;
  for (;;) {
    Joined joined;
    const Clock::time_point began = Clock::now();
    const Attempt attempt = try_to_join(local, server, secret, deadline, asked, joined);
    if (attempt.status.ok()) return joined;
    if (attempt.final) return attempt.status;
    log::debug("joining at {} failed, trying again: {}", server.text(), attempt.status.message());
    const bool cut_short = deadline - began < kShortest && Clock::now() >= deadline;
    if (why.empty() || !cut_short) why = attempt.status.message();
    const Backoff::Duration pause = backoff.next();
    if (Clock::now() + pause >= deadline) {
      return Status(Code::timeout, fmt::format("rank 0 of {} has not come within {}; {}{}", local.size(),
                                               seconds_text(limit), why, where_asked_from(server, asked)));
    }
    std::this_thread::sleep_for(pause);
  }
}

void run_client(BootstrapEndpoint& local, Joined joined) { BootstrapClient(local, std::move(joined)).run(); }

void report_and_leave(const BootstrapEndpoint& local, Joined& joined, const Status& why) {
  FailureNote note;
  note.rank = local.rank();
  note.comm_id = kMakingComm;
  note.code = why.code();
  note.text = gave_up(local.rank(), local.own(), why.message());
  joined.connection.send(frame_of(note));
  joined.connection.send(frame_of(Goodbye{}));
  joined.connection.finish_sending();
}

}  // namespace tutti::bootstrap
