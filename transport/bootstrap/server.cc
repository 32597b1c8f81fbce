#include "transport/bootstrap/server.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "transport/bootstrap/admission.h"
#include "transport/bootstrap/exchanges.h"
#include "transport/bootstrap/leave_notices.h"
#include "transport/bootstrap/ranks.h"

namespace tutti::bootstrap {
namespace {

using Clock = BootstrapEndpoint::Clock;
using namespace std::chrono_literals;

constexpr auto kRefuseAll = 1500ms;

class BootstrapServer {
 public:
  BootstrapServer(BootstrapEndpoint& local, std::unique_ptr<sockets::Listener> listener, const Secret& secret)
      : local_(local),
        ranks_(local),
        exchanges_(ranks_),
        admission_(local, std::move(listener), secret, ranks_, exchanges_) {}

  void run() {
    while (!local_.stopping()) {
      admission_.progress();
      read_ranks();
      // A rank may have left because another one died. The end of that one's stream has come by then.
      if (!left_.empty()) read_ranks();
      read_self();
      if (leave_notices_.due() <= Clock::now()) send_leave_notices();
      say_goodbye();
      detect_deaths();
      report_left();
      local_.run_callbacks();
      if (finished()) return;
      sleep();
    }
  }

  void refuse_all(const Status& why) {
    admission_.refuse_all(why);
    said_goodbye_ = true;  // no rank has received one, and none is to answer
    goodbye_ends_ = Clock::now() + kRefuseAll;
    while (admission_.is_open() && Clock::now() < goodbye_ends_ && ranks_.some_are(Presence::absent)) {
      admission_.progress();
      if (ranks_.some_are(Presence::absent)) sleep();
    }
  }

 private:
  // Messages.

  void read_ranks() {
    for (int r = 1; r < ranks_.size(); ++r) {
      ServerRank& rank = ranks_[r];
      rank.connection.flush();
      rank.connection.receive();
      while (rank.presence == Presence::here) {
        Result<std::optional<Frame>> frame = rank.connection.next(kMaxPayload);
        if (frame.ok() && !frame.value()) break;
        const Status status = frame.ok() ? on_frame(r, *frame.value()) : frame.status();
        if (!status.ok()) {
          rank.connection.close(fmt::format("it sent {}", status.message()));
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

  Status on_frame(int from, const Frame& frame) {
    switch (frame.type) {
      case MessageType::gather: {
        TUTTI_ASSIGN(Gather gather, decode<Gather>(frame.payload));
        return exchanges_.on_gather(from, std::move(gather));
      }
      case MessageType::survivor_exchange: {
        TUTTI_ASSIGN(SurvivorExchange exchange, decode<SurvivorExchange>(frame.payload));
        return exchanges_.on_survivor_exchange(from, std::move(exchange));
      }
      case MessageType::deadline_notice: {
        TUTTI_ASSIGN(const DeadlineNotice notice, decode<DeadlineNotice>(frame.payload));
        notice.sequence == 0 ? admission_.on_deadline(notice) : exchanges_.on_deadline(notice);
        return {};
      }
      case MessageType::failure: {
        TUTTI_ASSIGN(FailureNote note, decode<FailureNote>(frame.payload));
        on_failure(from, std::move(note));
        return {};
      }
      case MessageType::progress_report: {
        TUTTI_ASSIGN(ProgressReport report, decode<ProgressReport>(frame.payload));
        return on_progress_report(from, report);
      }
      case MessageType::leave_notice: {
        TUTTI_ASSIGN(const LeaveNotice notice, decode<LeaveNotice>(frame.payload));
        return leave_notices_.add(from, notice, ranks_.size());
      }
      case MessageType::goodbye: on_goodbye(from); return {};
      default: return invalid_argument("a message that a rank does not send");
    }
  }

  void on_failure(int from, FailureNote note) {
    note.rank = from;
    const bool of_making = note.comm_id == kMakingComm;
    if (of_making && !admission_.is_decided()) return admission_.fail(note.code, note.text);
    // The first failure of a communicator is that of all its ranks: ranks that fail at the same moment then agree.
    if (failed_comms_.insert(note.comm_id).second) ranks_.broadcast(-1, {MessageType::failure, encode(note)});
    if (of_making) exchanges_.fail_all(Status(note.code, note.text));
  }

  Status on_progress_report(int from, ProgressReport report) {
    const bool asks = report.rank < 0;
    (asks ? report.asker : report.rank) = from;
    if (report.asker < 0 || report.asker >= ranks_.size()) return invalid_argument("an answer to no rank");
    const Frame frame{MessageType::progress_report, encode(report)};
    asks ? ranks_.broadcast(-1, frame) : ranks_.send(report.asker, frame);
    return {};
  }

  /// Sends all that are pending at once. So a rank that receives its own notice knows that the others are sent theirs.
  void send_leave_notices() {
    for (const auto& [to, notice] : leave_notices_.take()) ranks_.send(to, {MessageType::leave_notice, encode(notice)});
  }

  // Ends.

  void on_goodbye(int from) {
    ranks_[from].presence = Presence::left;
    ranks_[from].connection.close();
    left_.push_back(from);
  }

  void report_left() {
    for (const int rank : std::exchange(left_, {})) {
      local_.note_left(rank);
      Left left;
      left.rank = rank;
      ranks_.broadcast(rank, {MessageType::left, encode(left)});
      exchanges_.fail_all(Status(Code::aborted, fmt::format("{} has left{}", name_of(rank, ranks_[rank].who),
                                                            exchanges_.who_is_waited_for())));
      exchanges_.finish_survivor_exchanges();
    }
  }

  /// Finds the ranks whose connection has closed without a goodbye. Reporting one death may close further connections.
  void detect_deaths() {
    for (bool again = true; again;) {
      again = false;
      for (int r = 1; r < ranks_.size(); ++r) {
        if (ranks_[r].presence != Presence::here || ranks_[r].connection.open()) continue;
        ranks_[r].presence = Presence::dead;
        on_death(r);
        again = true;
      }
    }
  }

  void on_death(int rank) {
    if (said_goodbye_) return;  // ranks close their connection in answer to it
    send_leave_notices();
    const Identity& who = ranks_[rank].who;
    const std::string& why = ranks_[rank].connection.why_closed();
    const std::string text =
        why.empty() ? name_of(rank, who) + " died" : fmt::format("{} is lost: {}", name_and_address_of(rank, who), why);
    if (!admission_.is_decided()) return admission_.fail(Code::peer_died, text + " before all ranks had come");
    FailureNote note;
    note.rank = rank;
    note.code = Code::peer_died;
    note.text = text;
    ranks_.broadcast(rank, {MessageType::failure, encode(note)});
    exchanges_.fail_all(Status(Code::peer_died, text));
    exchanges_.finish_survivor_exchanges();
  }

  void say_goodbye() {
    if (!local_.leaving() || said_goodbye_) return;
    // This rank may leave because it saw another one die. The other ranks are to learn of that death, whose end of
    // stream has come by now, and of what this rank has sent before.
    read_ranks();
    read_self();
    send_leave_notices();
    detect_deaths();
    said_goodbye_ = true;
    goodbye_ends_ = Clock::now() + kGoodbyeLimit;
    ranks_.broadcast(0, {MessageType::goodbye, {}});
  }

  bool finished() const {
    if (!said_goodbye_) return false;
    if (Clock::now() >= goodbye_ends_) return true;
    if (admission_.is_open() && admission_.has_failed() && ranks_.some_are(Presence::absent)) return false;
    return std::none_of(ranks_.all().begin(), ranks_.all().end(),
                        [](const ServerRank& rank) { return rank.connection.open(); });
  }

  void sleep() {
    std::vector<pollfd> items{{local_.wake_fd(), POLLIN, 0}};
    Clock::time_point until = std::min(admission_.watch(items), Clock::now() + kLongestSleep);
    for (const ServerRank& rank : ranks_.all()) {
      if (rank.connection.open()) items.push_back(rank.connection.poll_item());
    }
    if (said_goodbye_) until = std::min(until, goodbye_ends_);
    until = std::min(until, leave_notices_.due());
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    (void)::poll(items.data(), items.size(), static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (items[0].revents != 0) local_.drain_wake();
  }

  BootstrapEndpoint& local_;
  ServerRanks ranks_;
  Exchanges exchanges_;
  Admission admission_;
  std::set<std::uint64_t> failed_comms_;  // whose failure has been sent to all ranks
  PendingLeaveNotices leave_notices_;
  std::vector<int> left_;  // ranks that have said goodbye, which no rank has been told yet
  Clock::time_point goodbye_ends_{};
  bool said_goodbye_ = false;
};

}  // namespace

void run_server(BootstrapEndpoint& local, std::unique_ptr<sockets::Listener> listener, const Secret& secret) {
  BootstrapServer(local, std::move(listener), secret).run();
}

void refuse_all(BootstrapEndpoint& local, std::unique_ptr<sockets::Listener> listener, const Secret& secret,
                const Status& why) {
  BootstrapServer(local, std::move(listener), secret).refuse_all(why);
}

}  // namespace tutti::bootstrap
