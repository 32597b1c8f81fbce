#include "transport/bootstrap/endpoint.h"

#include <fmt/format.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/check.h"

namespace tutti::bootstrap {
namespace {

/// How long the server that is asked who is missing may take to answer.
constexpr std::chrono::milliseconds kServerAnswers{1000};

template <class Message>
Status decode_into(const Frame& frame, Message& message) {
  TUTTI_ASSIGN(message, decode<Message>(frame.payload));
  return {};
}

}  // namespace

std::string name_of(int rank, const Identity& identity) {
  return fmt::format("rank {} (host {}, pid {})", rank, identity.host, identity.pid);
}

std::string gave_up(int rank, const Identity& identity, const std::string& why) {
  return fmt::format("{} gave up while the communicator was made: {}", name_of(rank, identity), why);
}

std::string name_and_address_of(int rank, const Identity& identity) {
  if (identity.address.empty()) return name_of(rank, identity);
  return fmt::format("rank {} (host {}, pid {}, {} on {})", rank, identity.host, identity.pid, identity.address,
                     identity.interface);
}

std::string seconds_text(std::chrono::milliseconds duration) {
  return fmt::format("{:g} s", static_cast<double>(duration.count()) / 1000);
}

BootstrapEndpoint::BootstrapEndpoint(int rank, int size, Identity own)
    : rank_(rank),
      size_(size),
      own_(std::move(own)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      made_(wake_ ? Status() : system_error("cannot make an eventfd", errno)),
      left_(static_cast<std::size_t>(size)) {}

Status BootstrapEndpoint::post_frame(Frame frame) {
  {
    const std::lock_guard lock(mutex_);
    TUTTI_TRY(broken_);
    if (outbox_bytes_ + frame.payload.size() > kMaxOutbox) {
      return Status(Code::timeout, fmt::format("{} does not read what it is sent", name_of_server()));
    }
    outbox_bytes_ += frame.payload.size() + kHeaderBytes;
    outbox_.push_back(std::move(frame));
  }
  wake();
  return {};
}

void BootstrapEndpoint::wake() {
  const std::uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) >= 0) return;
  const Status why = system_error("cannot wake the bootstrap thread", errno);
  FailureNote note;
  note.rank = rank_;
  note.comm_id = kMakingComm;
  note.code = why.code();
  note.text = gave_up(rank_, own_, why.message());
  {
    const std::lock_guard lock(mutex_);
    if (broken_.ok()) outbox_.push_back({MessageType::failure, encode(note)});  // sent when the thread wakes by itself
  }
  break_off(why);
}

void BootstrapEndpoint::drain_wake() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
}

std::string BootstrapEndpoint::name_of_server() const {
  return roster_.empty() ? "rank 0" : bootstrap::name_of(0, roster_[0]);
}

BootstrapEndpoint::Outcome BootstrapEndpoint::await(std::uint64_t sequence, Clock::time_point deadline,
                                                    std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  const auto known = [&] { return knows(sequence); };
  if (!changed_.wait_until(lock, deadline, known)) {
    lock.unlock();
    // When posting fails the reason is in broken_, or there is no room, which the wait below ends.
    (void)post(DeadlineNotice{sequence, static_cast<std::uint64_t>(limit.count())}).ok();
    lock.lock();
    if (!changed_.wait_for(lock, kServerAnswers, known)) {
      return {
          Status(Code::timeout, fmt::format("{} has not answered within {}", name_of_server(), seconds_text(limit)))};
    }
  }
  return take_outcome(sequence);
}

std::optional<BootstrapEndpoint::Outcome> BootstrapEndpoint::await_briefly(std::uint64_t sequence,
                                                                           std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, most, [&] { return knows(sequence); })) return std::nullopt;
  return take_outcome(sequence);
}

BootstrapEndpoint::Outcome BootstrapEndpoint::take_outcome(std::uint64_t sequence) {
  const auto found = outcomes_.find(sequence);
  if (found == outcomes_.end()) return {broken_};
  auto taken = outcomes_.extract(found);
  return std::move(taken.mapped());
}

void BootstrapEndpoint::watch(std::function<void(const Failure&)> on_failure,
                              std::function<void(const ProgressReport&)> on_progress_report,
                              std::function<void(const LeaveNotice&)> on_leave_notice) {
  {
    const std::lock_guard lock(mutex_);
    failures_.callback = std::move(on_failure);
    progress_reports_.callback = std::move(on_progress_report);
    leave_notices_.callback = std::move(on_leave_notice);
  }
  wake();
}

std::optional<Failure> BootstrapEndpoint::early_failure() const {
  const std::lock_guard lock(mutex_);
  if (failures_.pending.empty()) return std::nullopt;
  return failures_.pending.front();
}

std::vector<Identity> BootstrapEndpoint::roster() const {
  const std::lock_guard lock(mutex_);
  return roster_;
}

void BootstrapEndpoint::ask_to_leave() {
  leaving_.store(true, std::memory_order_release);
  wake();
}

void BootstrapEndpoint::ask_to_stop() {
  stopping_.store(true, std::memory_order_release);
  wake();
}

std::deque<Frame> BootstrapEndpoint::take_outbox() {
  const std::lock_guard lock(mutex_);
  outbox_bytes_ = 0;
  return std::exchange(outbox_, {});
}

Status BootstrapEndpoint::deliver(const Frame& frame) {
  switch (frame.type) {
    case MessageType::roster: {
      Roster roster;
      TUTTI_TRY(decode_into(frame, roster));
      if (roster.ranks.size() != static_cast<std::size_t>(size_)) return invalid_argument("a roster of another size");
      const std::lock_guard lock(mutex_);
      roster_ = std::move(roster.ranks);
      outcomes_.emplace(0, Outcome{std::vector<std::string>()});
      break;
    }
    case MessageType::gathered: {
      Gathered gathered;
      TUTTI_TRY(decode_into(frame, gathered));
      if (gathered.blobs.size() != static_cast<std::size_t>(size_)) {
        return invalid_argument("an exchange of another size");
      }
      const std::lock_guard lock(mutex_);
      outcomes_.emplace(gathered.sequence, Outcome{std::move(gathered.blobs)});
      break;
    }
    case MessageType::gather_failed: {
      GatherFailed failed;
      TUTTI_TRY(decode_into(frame, failed));
      const std::lock_guard lock(mutex_);
      outcomes_.emplace(failed.sequence, Outcome{Status(failed.code, std::move(failed.text)), failed.rank});
      break;
    }
    case MessageType::failure: {
      FailureNote note;
      TUTTI_TRY(decode_into(frame, note));
      note_failure({note.code, note.rank, note.comm_id, std::move(note.text)});
      return {};
    }
    case MessageType::progress_report: {
      ProgressReport report;
      TUTTI_TRY(decode_into(frame, report));
      if (std::max(report.rank, report.asker) >= size_) return invalid_argument("an answer of an unknown rank");
      const std::lock_guard lock(mutex_);
      progress_reports_.pending.push_back(report);
      return {};
    }
    case MessageType::leave_notice: {
      LeaveNotice leave_notice;
      TUTTI_TRY(decode_into(frame, leave_notice));
      for (const int rank : leave_notice.ranks) {
        if (rank < 0 || rank >= size_) return invalid_argument("a leave notice of an unknown rank");
      }
      const std::lock_guard lock(mutex_);
      leave_notices_.pending.push_back(std::move(leave_notice));
      return {};
    }
    case MessageType::left: {
      Left left;
      TUTTI_TRY(decode_into(frame, left));
      if (left.rank < 0 || left.rank >= size_) return invalid_argument("a goodbye of an unknown rank");
      note_left(left.rank);
      return {};
    }
    default: return invalid_argument("a message that the server does not send");
  }
  changed_.notify_all();
  return {};
}

void BootstrapEndpoint::note_failure(Failure failure) {
  const std::lock_guard lock(mutex_);
  failures_.pending.push_back(std::move(failure));
}

void BootstrapEndpoint::note_left(int rank) {
  left_[static_cast<std::size_t>(rank)].store(true, std::memory_order_release);
}

void BootstrapEndpoint::break_off(Status status) {
  {
    const std::lock_guard lock(mutex_);
    // What ended the bootstrap is often the consequence of a failure that has not been reported here yet.
    if (const auto& early = failures_.pending; broken_.ok() && !early.empty()) {
      status = Status(early.front().code, early.front().message);
    }
    if (broken_.ok()) broken_ = std::move(status);
  }
  changed_.notify_all();
}

void BootstrapEndpoint::run_callbacks() {
  std::unique_lock lock(mutex_);
  const auto run = [&lock](auto& events) {
    while (events.callback && !events.pending.empty()) {
      const auto call = events.callback;
      const auto item = std::move(events.pending.front());
      events.pending.pop_front();
      lock.unlock();  // the callback may post or look
      call(item);
      lock.lock();
    }
  };
  run(leave_notices_);  // before the death of its sender
  run(failures_);
  run(progress_reports_);
}

}  // namespace tutti::bootstrap
