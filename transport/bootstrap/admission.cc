#include "transport/bootstrap/admission.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <optional>
#include <utility>

#include "base/log.h"
#include "transport/sockets/nonce.h"

namespace tutti::bootstrap {
namespace {

using namespace std::chrono_literals;

/// A connection that has not proven itself by then is closed. A rank that was merely slow tries again.
constexpr auto kProofDeadline = 5s;
/// The pause before the next accept() when the process has no descriptors left, and how long that may last.
constexpr auto kAcceptPause = 50ms;
constexpr auto kAcceptTimeout = 1s;
constexpr auto kRefuseAllPause = 5ms;
/// Unproven connections beyond the ranks still expected. The oldest goes first, since a rank proves itself at once.
constexpr std::size_t kMaxUnproven = 128;
constexpr int kMostReported = 16;  // refusals, before the log level decides

}  // namespace

void Refusals::report(const std::string& peer, const std::string& why, bool answered) {
  if (answered) last_answered_ = "; " + peer + " was refused: " + why;
  if (++reported_ <= kMostReported) {
    log::error("refused {}: {}{}", peer, why,
               reported_ == kMostReported ? "; further refusals are told with TUTTI_LOG=info" : "");
  } else {
    log::info("refused {}: {}", peer, why);
  }
}

Admission::Admission(BootstrapEndpoint& local, std::unique_ptr<sockets::Listener> listener, const Secret& secret,
                     ServerRanks& ranks, Exchanges& exchanges)
    : local_(local),
      listener_(std::move(listener)),
      spare_(::fcntl(local.wake_fd(), F_DUPFD_CLOEXEC, 0)),
      secret_(secret),
      ranks_(ranks),
      exchanges_(exchanges) {}

void Admission::progress() {
  accept_all();
  read_unproven();
}

void Admission::accept_all() {
  if (listener_ == nullptr || Clock::now() < accept_again_) return;
  for (;;) {
    int error = 0;
    sockets::Fd fd = listener_->accept(error);
    if (!fd) {
      if (error == EINTR || error == ECONNABORTED) continue;
      return on_accept_failed(error);
    }
    const Status same_user = sockets::check_same_user(fd.get());
    if (same_user.code() == Code::system) return cannot_serve(same_user);
    if (!same_user.ok()) {
      refusals_.report(sockets::describe_peer(fd.get()), same_user.message());
      continue;
    }
    if (unproven_.size() >= kMaxUnproven + ranks_.all().size()) refuse_oldest("too many connections wait");
    Unproven& peer = unproven_.emplace_back();
    peer.peer = sockets::describe_peer(fd.get());
    peer.connection = Connection(std::move(fd));
    peer.handshake.server = sockets::random_nonce();
    peer.deadline = Clock::now() + kProofDeadline;
    Challenge challenge;
    challenge.nonce = peer.handshake.server;
    peer.connection.send(frame_of(challenge));
  }
}

/// Unauthenticated peers may hold all descriptors, and are dropped. Local processes are of the same user, and are not
/// suspected of that.
void Admission::on_accept_failed(int error) {
  if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
    accept_again_ = Clock::now() + (excuse_.ok() ? kAcceptPause : kRefuseAllPause);
    if (!excuse_.ok()) return;  // those that come are refused one at a time
    if (starved_since_ == Clock::time_point()) starved_since_ = Clock::now();
    const bool had_unproven = !unproven_.empty();
    if (had_unproven) refuse_oldest("no file descriptors are left");
    if (had_unproven && !listener_->endpoint().is_unix()) return;
    if (Clock::now() - starved_since_ < kAcceptTimeout) return;
    const Status why = system_error("cannot accept connections", error);
    fail(why.code(), gave_up(0, ranks_[0].who, why.message()));
    unproven_.clear();
    spare_.reset();  // for those that come yet
  } else if (sockets::is_refused_here(error)) {
    cannot_serve(system_error("cannot accept connections", error));
  }
}

void Admission::read_unproven() {
  for (auto at = unproven_.begin(); at != unproven_.end();) {
    const auto next = std::next(at);
    at->connection.receive();
    Result<std::optional<Frame>> frame = at->connection.next(kMaxUnprovenPayload);
    if (!frame.ok()) {
      refuse(at, fmt::format("it sent {}", frame.status().message()));
    } else if (frame.value()) {
      on_join_request(at, *frame.value());
    } else if (at->connection.refused_here()) {
      return cannot_serve(Status(Code::system, "cannot hear who connects: " + at->connection.why_closed()));
    } else if (!at->connection.open()) {
      refuse(at, "it closed before it had proven that it knows the job's secret");
    } else if (Clock::now() >= at->deadline) {
      refuse(at, "it did not prove in time that it knows the job's secret");
    }
    at = next;
    if (listener_ == nullptr) return;  // the last rank has joined, and the list is empty
  }
}

void Admission::on_join_request(At at, const Frame& frame) {
  const Result<JoinRequest> request = decode<JoinRequest>(frame.payload);
  if (frame.type != MessageType::join_request || !request.ok()) {
    return refuse(at, "it sent something else than a join request");
  }
  const JoinRequest& client = request.value();
  at->handshake.client = client.nonce;
  if (!is_proven(secret_, at->handshake, client)) return refuse(at, "its secret is not this job's", true);
  const int size = ranks_.size();
  if (client.size != size) {
    return refuse(at, fmt::format("it expects {} ranks where rank 0 expects {}", client.size, size), true);
  }
  if (client.rank < 0 || client.rank >= size) {
    return refuse(at, fmt::format("it calls itself rank {} of {}", client.rank, size), true);
  }
  const ServerRank& rank = ranks_[client.rank];
  if (rank.presence != Presence::absent) {
    return refuse(at, fmt::format("{} is here already", name_of(client.rank, rank.who)), true);
  }
  admit(at, client);
}

void Admission::admit(At at, const JoinRequest& request) {
  ServerRank& rank = ranks_[request.rank];
  if (!excuse_.ok()) {
    rank.presence = Presence::left;
    answer_refusal(*at, excuse_.code(), excuse_.message());
    unproven_.erase(at);
    return;
  }
  rank.presence = Presence::here;
  starved_since_ = {};
  rank.who = request.who;
  rank.connection = std::move(at->connection);
  addresses_.learn(rank.connection.fd(), ranks_[0].who);
  Welcome welcome;
  welcome.who = ranks_[0].who;
  welcome.proof = prove(secret_, at->handshake, welcome);
  rank.connection.send(frame_of(welcome));
  unproven_.erase(at);
  log::debug("{} is here", name_of(request.rank, rank.who));
  if (!ranks_.some_are(Presence::absent)) complete();
}

void Admission::complete() {
  addresses_.settle(ranks_.all(), listener_->endpoint());
  // Closed before any rank learns that the bootstrap is complete: the address is free for a next one then.
  listener_.reset();
  while (!unproven_.empty()) refuse_oldest("all ranks are here");
  Roster roster;
  for (const ServerRank& rank : ranks_.all()) roster.ranks.push_back(rank.who);
  decided_ = true;
  ranks_.broadcast(-1, {MessageType::roster, encode(roster)});
}

void Admission::refuse(At at, const std::string& why, bool answer) {
  refusals_.report(at->peer, why, answer);
  if (answer) answer_refusal(*at, Code::invalid_argument, why);
  unproven_.erase(at);
}

void Admission::answer_refusal(Unproven& peer, Code code, const std::string& why) {
  Refusal refusal;
  refusal.code = code;
  refusal.text = why;
  refusal.proof = prove(secret_, peer.handshake, refusal);
  peer.connection.send(frame_of(refusal));
}

void Admission::fail(Code code, const std::string& text) {
  if (code == Code::timeout) {
    listener_.reset();
    while (!unproven_.empty()) refuse_oldest("the bootstrap has failed");
  }
  excuse_ = Status(code, text);
  decided_ = true;
  exchanges_.fail(0, code, text);
}

void Admission::cannot_serve(const Status& why) {
  fail(why.code(), gave_up(0, ranks_[0].who, why.message()));
  unproven_.clear();
  listener_.reset();
}

void Admission::on_deadline(const DeadlineNotice& notice) {
  if (decided_) return;
  const std::vector<int> absent = ranks_.that_are(Presence::absent);
  const std::vector<int> here = ranks_.that_are(Presence::here);
  fail(Code::timeout,
       fmt::format("{} of {} {} not come within {}; {} {} here{}", rank_list(absent), ranks_.size(),
                   absent.size() == 1 ? "has" : "have", seconds_text(std::chrono::milliseconds(notice.waited_ms)),
                   rank_list(here), here.size() == 1 ? "is" : "are", where_server_waits()));
}

std::string Admission::where_server_waits() const {
  if (listener_ == nullptr || listener_->endpoint().is_unix()) return refusals_.last_answered();
  return fmt::format("; rank 0 waits at {} on host {}{}", listener_->endpoint().text(), local_.own().host,
                     refusals_.last_answered());
}

Admission::Clock::time_point Admission::watch(std::vector<pollfd>& items) const {
  Clock::time_point due = Clock::time_point::max();
  if (listener_ != nullptr && Clock::now() < accept_again_) {
    due = accept_again_;
  } else if (listener_ != nullptr) {
    items.push_back({listener_->fd(), POLLIN, 0});
  }
  for (const Unproven& peer : unproven_) {
    items.push_back(peer.connection.poll_item());
    due = std::min(due, peer.deadline);
  }
  return due;
}

}  // namespace tutti::bootstrap
