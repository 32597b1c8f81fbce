#include "transport/bootstrap/hub.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "transport/bootstrap/connection.h"
#include "transport/bootstrap/hub_addresses.h"
#include "transport/bootstrap/hub_exchanges.h"
#include "transport/bootstrap/hub_farewells.h"
#include "transport/bootstrap/hub_pending.h"
#include "transport/sockets/nonce.h"

namespace tutti::bootstrap {
namespace {

using Clock = LocalRank::Clock;
using namespace std::chrono_literals;

/// A connection that has not proven itself by then is closed. A rank that was merely slow tries again.
constexpr auto kProofDeadline = 5s;
/// How long to wait before accepting again when the process has no descriptors left, and until that is given up.
constexpr auto kAcceptPause = 50ms;
constexpr auto kAcceptPatience = 1s;
constexpr auto kTurnAway = 1500ms;
constexpr auto kTurnAwayPause = 5ms;
/// Unproven connections beyond the ranks still expected; the oldest goes first, since a rank proves itself at once.
constexpr std::size_t kMaxStrangers = 128;
/// Exchanges that are under way at once: ranks run ahead of each other only past failed ones.
constexpr std::size_t kMaxExchanges = 1024;

class Hub {
 public:
  Hub(LocalRank& local, std::unique_ptr<sockets::Listener> listener, const Secret& secret)
      : local_(local),
        listener_(std::move(listener)),
        spare_(::fcntl(local.wake_fd(), F_DUPFD_CLOEXEC, 0)),
        secret_(secret),
        members_(static_cast<std::size_t>(local.size())) {
    members_[0].presence = Presence::here;
    members_[0].who = local.own();
  }

  void run() {
    while (!local_.stopping()) {
      accept_all();
      read_pending();
      read_members();
      // Who left because it saw another die may be heard before that one's end, which has come by then.
      if (!departed_.empty()) read_members();
      read_self();
      if (farewells_.due() <= Clock::now()) tell_farewells();
      say_goodbye();
      sweep();
      tell_departures();
      local_.run_callbacks();
      if (finished()) return;
      sleep();
    }
  }

  /// See hub.h.
  void turn_away(const Status& why) {
    excuse_ = why;
    said_goodbye_ = true;  // nobody has heard one, and nobody is to answer
    farewell_ends_ = Clock::now() + kTurnAway;
    while (listener_ != nullptr && Clock::now() < farewell_ends_ && some_are_absent()) {
      accept_all();
      read_pending();
      if (some_are_absent()) sleep();
    }
  }

 private:
  // Letting in.

  void accept_all() {
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
        refusals_.tell(sockets::describe_peer(fd.get()), same_user.message());
        continue;
      }
      if (pending_.size() >= kMaxStrangers + members_.size()) refuse_oldest("too many connections wait");
      Pending& pending = pending_.emplace_back();
      pending.peer = sockets::describe_peer(fd.get());
      pending.connection = Connection(std::move(fd));
      pending.handshake.hub = sockets::random_nonce();
      pending.deadline = Clock::now() + kProofDeadline;
      Challenge challenge;
      challenge.nonce = pending.handshake.hub;
      pending.connection.send(frame_of(challenge));
    }
  }

  /// Strangers may hold all descriptors, and are dropped; of this user's own processes that is not assumed.
  void on_accept_failed(int error) {
    if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
      accept_again_ = Clock::now() + (excuse_.ok() ? kAcceptPause : kTurnAwayPause);
      if (!excuse_.ok()) return;  // those who come are turned away one at a time
      if (starved_since_ == Clock::time_point()) starved_since_ = Clock::now();
      const bool strangers = !pending_.empty();
      if (strangers) refuse_oldest("no file descriptors are left");
      if (strangers && !listener_->endpoint().is_unix()) return;
      if (Clock::now() - starved_since_ < kAcceptPatience) return;
      const Status why = system_error("cannot accept connections", error);
      fail_meeting(why.code(), gave_up(0, members_[0].who, why.message()));
      pending_.clear();
      spare_.reset();  // for those who come yet
    } else if (sockets::is_refused_here(error)) {
      cannot_serve(system_error("cannot accept connections", error));
    }
  }

  void read_pending() {
    for (auto at = pending_.begin(); at != pending_.end();) {
      const auto next = std::next(at);
      at->connection.receive();
      Result<std::optional<Frame>> frame = at->connection.next(kMaxUnprovenPayload);
      if (!frame.ok()) {
        refuse(at, fmt::format("it sent {}", frame.status().message()));
      } else if (frame.value()) {
        on_introduction(at, *frame.value());
      } else if (at->connection.refused_here()) {
        return cannot_serve(Status(Code::system, "cannot hear who connects: " + at->connection.why_closed()));
      } else if (!at->connection.open()) {
        refuse(at, "it closed before it had proven that it knows the job's secret");
      } else if (Clock::now() >= at->deadline) {
        refuse(at, "it did not prove in time that it knows the job's secret");
      }
      at = next;
      if (listener_ == nullptr) return;  // the last rank has come, and nobody is pending any more
    }
  }

  void on_introduction(std::list<Pending>::iterator at, const Frame& frame) {
    const Result<Introduction> introduction = decode<Introduction>(frame.payload);
    if (frame.type != MessageType::introduction || !introduction.ok()) {
      return refuse(at, "it sent something else than an introduction");
    }
    const Introduction& guest = introduction.value();
    at->handshake.guest = guest.nonce;
    if (!is_proven(secret_, at->handshake, guest)) return refuse(at, "its secret is not this job's", true);
    const int size = local_.size();
    if (guest.size != size) {
      return refuse(at, fmt::format("it expects {} ranks where rank 0 expects {}", guest.size, size), true);
    }
    if (guest.rank < 0 || guest.rank >= size) {
      return refuse(at, fmt::format("it calls itself rank {} of {}", guest.rank, size), true);
    }
    Member& member = members_[static_cast<std::size_t>(guest.rank)];
    if (member.presence != Presence::absent) {
      return refuse(at, fmt::format("{} is here already", name_of(guest.rank, member.who)), true);
    }
    if (!excuse_.ok()) {
      member.presence = Presence::left;
      answer_refusal(*at, secret_, excuse_.code(), excuse_.message());
      pending_.erase(at);
      return;
    }
    member.presence = Presence::here;
    starved_since_ = {};
    member.who = guest.who;
    member.connection = std::move(at->connection);
    addresses_.learn(member.connection.fd(), members_[0].who);
    Welcome welcome;
    welcome.who = members_[0].who;
    welcome.proof = prove(secret_, at->handshake, welcome);
    member.connection.send(frame_of(welcome));
    pending_.erase(at);
    log::debug("{} is here", name_of(guest.rank, member.who));
    if (!some_are_absent()) close_meeting();
  }

  void close_meeting() {
    addresses_.settle(members_, listener_->endpoint());
    // Before anybody hears that the meeting is complete: whoever then opens the next one finds the address free.
    listener_.reset();
    while (!pending_.empty()) refuse_oldest("all ranks are here");
    Roster roster;
    for (const Member& member : members_) roster.ranks.push_back(member.who);
    met_ = true;
    broadcast(-1, {MessageType::roster, encode(roster)});
  }

  void refuse_oldest(const std::string& why) { refuse(pending_.begin(), why); }

  void refuse(std::list<Pending>::iterator at, const std::string& why, bool answer = false) {
    refusals_.tell(at->peer, why, answer);
    if (answer) answer_refusal(*at, secret_, Code::invalid_argument, why);
    pending_.erase(at);
  }

  // Serving.

  void read_members() {
    for (int rank = 1; rank < local_.size(); ++rank) {
      Member& member = members_[static_cast<std::size_t>(rank)];
      member.connection.flush();
      member.connection.receive();
      while (member.presence == Presence::here) {
        Result<std::optional<Frame>> frame = member.connection.next(kMaxPayload);
        if (frame.ok() && !frame.value()) break;
        const Status status = frame.ok() ? on_frame(rank, *frame.value()) : frame.status();
        if (!status.ok()) {
          member.connection.close(fmt::format("it sent {}", status.message()));
          break;
        }
      }
    }
  }

  void read_self() {
    for (const Frame& frame : local_.take_outbox()) {
      const Status status = on_frame(0, frame);
      if (!status.ok()) log::error("rank 0 sent itself {}", status.message());
    }
  }

  Status on_frame(int rank, const Frame& frame) {
    switch (frame.type) {
      case MessageType::gather: {
        TUTTI_ASSIGN(Gather gather, decode<Gather>(frame.payload));
        return on_gather(rank, std::move(gather));
      }
      case MessageType::regroup: {
        TUTTI_ASSIGN(Regroup regroup, decode<Regroup>(frame.payload));
        return on_regroup(rank, std::move(regroup));
      }
      case MessageType::impatient: {
        TUTTI_ASSIGN(const Impatient impatient, decode<Impatient>(frame.payload));
        on_impatient(rank, impatient);
        return {};
      }
      case MessageType::failure: {
        TUTTI_ASSIGN(FailureNote note, decode<FailureNote>(frame.payload));
        note.rank = rank;
        if (note.scope == kMakingScope && !met_) {
          fail_meeting(note.code, note.text);
          return {};
        }
        // The first one is everybody's, whoever else has one to tell: ranks that fail at the same moment then agree.
        if (failed_scopes_.insert(note.scope).second) broadcast(-1, {MessageType::failure, encode(note)});
        if (note.scope == kMakingScope) set_gone(Status(note.code, note.text));
        return {};
      }
      case MessageType::standing: {
        TUTTI_ASSIGN(Standing standing, decode<Standing>(frame.payload));
        return on_standing(rank, standing);
      }
      case MessageType::farewells: {
        TUTTI_ASSIGN(const Farewells said, decode<Farewells>(frame.payload));
        return farewells_.add(rank, said, local_.size());
      }
      case MessageType::goodbye: on_goodbye(rank); return {};
      default: return invalid_argument("a message that a rank does not send");
    }
  }

  Status on_standing(int rank, Standing standing) {
    const bool asks = standing.rank < 0;
    (asks ? standing.asker : standing.rank) = rank;
    if (standing.asker < 0 || standing.asker >= local_.size()) return invalid_argument("an answer to no rank");
    const Frame frame{MessageType::standing, encode(standing)};
    if (asks) {
      broadcast(-1, frame);
    } else {
      send(standing.asker, frame);
    }
    return {};
  }

  /// All at once, so that whoever hears its own knows that they have been told to the others.
  void tell_farewells() {
    for (const auto& [rank, farewells] : farewells_.take()) send(rank, {MessageType::farewells, encode(farewells)});
  }

  Status on_gather(int rank, Gather gather) {
    if (gather.sequence == 0) return invalid_argument("an exchange numbered 0");
    if (answered_with_failure(rank, gather.sequence)) return {};
    if (exchanges_.size() >= kMaxExchanges) return invalid_argument("too many exchanges at once");
    Exchange& exchange = exchanges_[gather.sequence];
    exchange.blobs.resize(members_.size());
    std::optional<std::string>& blob = exchange.blobs[static_cast<std::size_t>(rank)];
    if (blob) return invalid_argument("two contributions to one exchange");
    blob = std::move(gather.blob);
    ++exchange.contributed;
    if (exchange.contributed == local_.size()) {
      finish_exchange(gather.sequence, exchange);
    } else if (gone_) {
      fail_exchange(gather.sequence, gone_->code(), gone_->message());
    }
    return {};
  }

  bool answered_with_failure(int rank, std::uint64_t sequence) {
    const auto failed = failed_.find(sequence);
    if (failed == failed_.end()) return false;
    send(rank, {MessageType::gather_failed, encode(failed->second)});
    return true;
  }

  Status on_regroup(int rank, Regroup regroup) {
    const auto own = static_cast<std::size_t>(rank);
    if (regroup.among.size() != members_.size() || regroup.among[own] == 0 || regroup.blob.empty() ||
        (regroup.sequence & Regroup::kName) == 0) {
      return invalid_argument("a regrouping that is none");
    }
    if (answered_with_failure(rank, regroup.sequence)) return {};
    if (regrouped_.count(regroup.sequence) != 0) return {};  // the outcome is on its way
    if (regroupings_.size() >= kMaxExchanges) return invalid_argument("too many regroupings at once");
    Regrouping& regrouping = regroupings_[regroup.sequence];
    if (regrouping.blobs.empty()) regrouping = {regroup.among, std::vector<std::string>(members_.size())};
    for (std::size_t r = 0; r < members_.size(); ++r) {
      if (regroup.among[r] == 0) regrouping.among[r] = 0;
    }
    regrouping.blobs[own] = std::move(regroup.blob);
    settle_regroupings();
    return {};
  }

  /// Tells the outcome of those for which everybody who is left has come: to them, all the same.
  void settle_regroupings() {
    for (auto at = regroupings_.begin(); at != regroupings_.end();) {
      if (at->second.first_missing(members_) >= 0) {
        ++at;
        continue;
      }
      Gathered gathered;
      gathered.sequence = at->first;
      gathered.blobs.resize(members_.size());
      std::vector<int> there;
      for (const int rank : ranks_that_are(members_, Presence::here)) {
        std::string& blob = at->second.blobs[static_cast<std::size_t>(rank)];
        if (blob.empty()) continue;
        gathered.blobs[static_cast<std::size_t>(rank)] = std::move(blob);
        there.push_back(rank);
      }
      regrouped_.insert(at->first);
      at = regroupings_.erase(at);
      for (const int rank : there) send(rank, {MessageType::gathered, encode(gathered)});
    }
  }

  void finish_exchange(std::uint64_t sequence, Exchange& exchange) {
    Gathered gathered;
    gathered.sequence = sequence;
    for (std::optional<std::string>& blob : exchange.blobs) gathered.blobs.push_back(std::move(*blob));
    std::string payload = encode(gathered);
    if (payload.size() > kMaxPayload) {
      return fail_exchange(
          sequence, Code::invalid_argument,
          fmt::format("the ranks gave {} bytes to one exchange; at most {} are allowed", payload.size(), kMaxPayload));
    }
    exchanges_.erase(sequence);
    broadcast(-1, {MessageType::gathered, std::move(payload)});
  }

  void fail_exchange(std::uint64_t sequence, Code code, std::string text) {
    exchanges_.erase(sequence);
    GatherFailed failed;
    failed.sequence = sequence;
    failed.code = code;
    failed.text = std::move(text);
    broadcast(-1, {MessageType::gather_failed, encode(failed)});
    failed_[sequence] = std::move(failed);
    if (failed_.size() > kMaxExchanges) failed_.erase(failed_.begin());
  }

  void on_impatient(int rank, const Impatient& impatient) {
    const std::string limit = seconds_text(std::chrono::milliseconds(impatient.waited_ms));
    if (impatient.sequence == 0) {
      if (met_) return;
      const std::vector<int> absent = ranks_that_are(members_, Presence::absent);
      fail_meeting(
          Code::timeout,
          fmt::format("{} of {} {} not come within {}; {} {} here{}", rank_list(absent), local_.size(),
                      absent.size() == 1 ? "has" : "have", limit, rank_list(ranks_that_are(members_, Presence::here)),
                      ranks_that_are(members_, Presence::here).size() == 1 ? "is" : "are", where_hub_waits()));
      return;
    }
    if (const auto regrouping = regroupings_.find(impatient.sequence); regrouping != regroupings_.end()) {
      const int missing = regrouping->second.first_missing(members_);
      regroupings_.erase(regrouping);
      return fail_exchange(impatient.sequence, Code::timeout, fmt::format("{}", missing));
    }
    const auto found = exchanges_.find(impatient.sequence);
    if (found == exchanges_.end()) return;  // the outcome is on its way to whoever asks
    fail_exchange(impatient.sequence, Code::timeout, found->second.late_text(impatient.sequence, limit));
  }

  /// "; rank 0 waits at 10.7.0.1:12345 on host alpha", which those who are absent may not reach.
  std::string where_hub_waits() const {
    if (listener_ == nullptr || listener_->endpoint().is_unix()) return refusals_.last_answered();
    return fmt::format("; rank 0 waits at {} on host {}{}", listener_->endpoint().text(), local_.own().host,
                       refusals_.last_answered());
  }

  /// Those who come yet are told, for as long as rank 0 is there; at a deadline theirs has passed too.
  void fail_meeting(Code code, const std::string& text) {
    if (code == Code::timeout) {
      listener_.reset();
      while (!pending_.empty()) refuse_oldest("the meeting has failed");
    }
    excuse_ = Status(code, text);
    met_ = true;
    fail_exchange(0, code, text);
  }

  /// For a reason of this process.
  void cannot_serve(const Status& why) {
    fail_meeting(why.code(), gave_up(0, members_[0].who, why.message()));
    pending_.clear();
    listener_.reset();
  }

  bool some_are_absent() const { return !ranks_that_are(members_, Presence::absent).empty(); }

  // Ends.

  void on_goodbye(int rank) {
    Member& member = members_[static_cast<std::size_t>(rank)];
    member.presence = Presence::left;
    member.connection.close();
    departed_.push_back(rank);
  }

  void tell_departures() {
    for (const int rank : std::exchange(departed_, {})) {
      local_.note_left(rank);
      Left left;
      left.rank = rank;
      broadcast(rank, {MessageType::left, encode(left)});
      const Identity& who = members_[static_cast<std::size_t>(rank)].who;
      set_gone(Status(Code::aborted,
                      fmt::format("{} has left{}", name_of(rank, who), who_is_waited_for(exchanges_, members_))));
      settle_regroupings();
    }
  }

  /// Looks for members whose connection has closed without a goodbye. Telling the others may close further ones.
  void sweep() {
    for (bool again = true; again;) {
      again = false;
      for (int rank = 1; rank < local_.size(); ++rank) {
        Member& member = members_[static_cast<std::size_t>(rank)];
        if (member.presence != Presence::here || member.connection.open()) continue;
        member.presence = Presence::dead;
        on_death(rank);
        again = true;
      }
    }
  }

  void on_death(int rank) {
    if (said_goodbye_) return;  // to which they close
    tell_farewells();
    const Member& member = members_[static_cast<std::size_t>(rank)];
    const std::string& why = member.connection.why_closed();
    const std::string text = why.empty() ? name_of(rank, member.who) + " died"
                                         : fmt::format("{} is lost: {}", name_and_address_of(rank, member.who), why);
    if (!met_) return fail_meeting(Code::peer_died, text + " before all ranks had come");
    FailureNote note;
    note.rank = rank;
    note.code = Code::peer_died;
    note.text = text;
    broadcast(rank, {MessageType::failure, encode(note)});
    set_gone(Status(Code::peer_died, text));
    settle_regroupings();
  }

  /// No exchange can complete from now on.
  void set_gone(Status why) {
    if (gone_) return;
    gone_ = std::move(why);
    while (!exchanges_.empty()) fail_exchange(exchanges_.begin()->first, gone_->code(), gone_->message());
  }

  void say_goodbye() {
    if (!local_.leaving() || said_goodbye_) return;
    // This rank may leave because it saw another die: that one's end has come by then, and the others are to hear it,
    // and what this rank has said before.
    read_members();
    read_self();
    tell_farewells();
    sweep();
    said_goodbye_ = true;
    farewell_ends_ = Clock::now() + kFarewell;
    broadcast(0, {MessageType::goodbye, {}});
  }

  bool finished() const {
    if (!said_goodbye_) return false;
    if (Clock::now() >= farewell_ends_) return true;
    if (listener_ != nullptr && !excuse_.ok() && some_are_absent()) return false;
    return std::none_of(members_.begin(), members_.end(),
                        [](const Member& member) { return member.connection.open(); });
  }

  // Sending.

  void send(int rank, const Frame& frame) {
    Member& member = members_[static_cast<std::size_t>(rank)];
    if (member.presence != Presence::here) return;
    if (rank != 0) return member.connection.send(encode_frame(frame.type, frame.payload));
    const Status status = local_.deliver(frame);
    if (!status.ok()) log::error("the meeting place broke its own rules: {}", status.message());
  }

  void broadcast(int except, const Frame& frame) {
    for (int rank = 0; rank < local_.size(); ++rank) {
      if (rank != except) send(rank, frame);
    }
  }

  void sleep() {
    std::vector<pollfd> items{{local_.wake_fd(), POLLIN, 0}};
    std::optional<Clock::time_point> next;
    const auto by = [&](Clock::time_point when) { next = next ? std::min(*next, when) : when; };
    const auto watch = [&](const Connection& connection) {
      items.push_back({connection.fd(), static_cast<short>(POLLIN | (connection.unsent() ? POLLOUT : 0)), 0});
    };
    if (listener_ != nullptr && Clock::now() < accept_again_) {
      by(accept_again_);
    } else if (listener_ != nullptr) {
      items.push_back({listener_->fd(), POLLIN, 0});
    }
    for (const Pending& pending : pending_) {
      watch(pending.connection);
      by(pending.deadline);
    }
    for (const Member& member : members_) {
      if (member.connection.open()) watch(member.connection);
    }
    if (said_goodbye_) by(farewell_ends_);
    if (farewells_.due() != Clock::time_point::max()) by(farewells_.due());
    by(Clock::now() + kLongestSleep);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now()).count();
    (void)::poll(items.data(), items.size(), static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (items[0].revents != 0) local_.drain_wake();
  }

  LocalRank& local_;
  std::unique_ptr<sockets::Listener> listener_;
  sockets::Fd spare_;  // its descriptor is kept for the time when there is no other
  const Secret secret_;
  std::vector<Member> members_;
  std::list<Pending> pending_;  // oldest first
  std::map<std::uint64_t, Exchange> exchanges_;
  std::map<std::uint64_t, Regrouping> regroupings_;
  std::set<std::uint64_t> regrouped_;  // which have ended well
  std::map<std::uint64_t, GatherFailed> failed_;
  std::set<std::uint64_t> failed_scopes_;  // of which everybody has been told
  HubAddresses addresses_;
  PendingFarewells farewells_;
  std::vector<int> departed_;  // who has said goodbye, which nobody has been told yet
  std::optional<Status> gone_;
  Clock::time_point accept_again_{};
  Clock::time_point starved_since_{};  // no descriptors were left, and no rank has come in since
  Status excuse_;                      // why nobody is let in any more
  Clock::time_point farewell_ends_{};
  Refusals refusals_;
  bool met_ = false;
  bool said_goodbye_ = false;
};

}  // namespace

void serve_hub(LocalRank& local, std::unique_ptr<sockets::Listener> listener, const Secret& secret) {
  Hub(local, std::move(listener), secret).run();
}

void turn_away(LocalRank& local, std::unique_ptr<sockets::Listener> listener, const Secret& secret, const Status& why) {
  Hub(local, std::move(listener), secret).turn_away(why);
}

}  // namespace tutti::bootstrap
