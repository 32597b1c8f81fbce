#include "transport/bootstrap/local_rank.h"

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

/// How long a hub that is asked who is missing may take to answer.
constexpr std::chrono::milliseconds kHubAnswers{1000};

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

LocalRank::LocalRank(int rank, int size, Identity own)
    : rank_(rank),
      size_(size),
      own_(std::move(own)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      made_(wake_ ? Status() : system_error("cannot make an eventfd", errno)),
      left_(static_cast<std::size_t>(size)) {}

Status LocalRank::post_frame(Frame frame) {
  {
    const std::lock_guard lock(mutex_);
    TUTTI_TRY(broken_);
    if (outbox_bytes_ + frame.payload.size() > kMaxOutbox) {
      return Status(Code::timeout, fmt::format("{} does not read what it is sent", name_of_hub()));
    }
    outbox_bytes_ += frame.payload.size() + kHeaderBytes;
    outbox_.push_back(std::move(frame));
  }
  wake();
  return {};
}

void LocalRank::wake() {
  const std::uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) >= 0) return;
  const Status why = system_error("cannot wake the thread of the meeting", errno);
  FailureNote note;
  note.rank = rank_;
  note.scope = kMakingScope;
  note.code = why.code();
  note.text = gave_up(rank_, own_, why.message());
  {
    const std::lock_guard lock(mutex_);
    if (broken_.ok()) outbox_.push_back({MessageType::failure, encode(note)});  // sent when the thread wakes by itself
  }
  break_off(why);
}

void LocalRank::drain_wake() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
}

std::string LocalRank::name_of_hub() const { return roster_.empty() ? "rank 0" : bootstrap::name_of(0, roster_[0]); }

Result<std::vector<std::string>> LocalRank::await(std::uint64_t sequence, Clock::time_point deadline,
                                                  std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  const auto known = [&] { return knows(sequence); };
  if (!changed_.wait_until(lock, deadline, known)) {
    lock.unlock();
    // When posting fails the reason is in broken_, or there is no room, which the wait below ends.
    (void)post(Impatient{sequence, static_cast<std::uint64_t>(limit.count())}).ok();
    lock.lock();
    if (!changed_.wait_for(lock, kHubAnswers, known)) {
      return Status(Code::timeout, fmt::format("{} has not answered within {}", name_of_hub(), seconds_text(limit)));
    }
  }
  return take_outcome(sequence);
}

std::optional<Result<std::vector<std::string>>> LocalRank::await_briefly(std::uint64_t sequence,
                                                                         std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, most, [&] { return knows(sequence); })) return std::nullopt;
  return take_outcome(sequence);
}

Result<std::vector<std::string>> LocalRank::take_outcome(std::uint64_t sequence) {
  const auto found = outcomes_.find(sequence);
  if (found == outcomes_.end()) return broken_;
  auto taken = outcomes_.extract(found);
  return std::move(taken.mapped());
}

void LocalRank::watch(std::function<void(const Failure&)> on_failure, std::function<void(const Standing&)> on_standing,
                      std::function<void(const Farewells&)> on_farewells) {
  {
    const std::lock_guard lock(mutex_);
    on_failure_ = std::move(on_failure);
    on_standing_ = std::move(on_standing);
    on_farewells_ = std::move(on_farewells);
  }
  wake();
}

std::optional<Failure> LocalRank::unheard_failure() const {
  const std::lock_guard lock(mutex_);
  if (unheard_.empty()) return std::nullopt;
  return unheard_.front();
}

std::vector<Identity> LocalRank::roster() const {
  const std::lock_guard lock(mutex_);
  return roster_;
}

void LocalRank::ask_to_leave() {
  leaving_.store(true, std::memory_order_release);
  wake();
}

void LocalRank::ask_to_stop() {
  stopping_.store(true, std::memory_order_release);
  wake();
}

std::deque<Frame> LocalRank::take_outbox() {
  const std::lock_guard lock(mutex_);
  outbox_bytes_ = 0;
  return std::exchange(outbox_, {});
}

Status LocalRank::deliver(const Frame& frame) {
  switch (frame.type) {
    case MessageType::roster: {
      Roster roster;
      TUTTI_TRY(decode_into(frame, roster));
      if (roster.ranks.size() != static_cast<std::size_t>(size_)) return invalid_argument("a roster of another size");
      const std::lock_guard lock(mutex_);
      roster_ = std::move(roster.ranks);
      outcomes_.emplace(0, std::vector<std::string>());
      break;
    }
    case MessageType::gathered: {
      Gathered gathered;
      TUTTI_TRY(decode_into(frame, gathered));
      if (gathered.blobs.size() != static_cast<std::size_t>(size_)) {
        return invalid_argument("an exchange of another size");
      }
      const std::lock_guard lock(mutex_);
      outcomes_.emplace(gathered.sequence, std::move(gathered.blobs));
      break;
    }
    case MessageType::gather_failed: {
      GatherFailed failed;
      TUTTI_TRY(decode_into(frame, failed));
      const std::lock_guard lock(mutex_);
      outcomes_.emplace(failed.sequence, Status(failed.code, std::move(failed.text)));
      break;
    }
    case MessageType::failure: {
      FailureNote note;
      TUTTI_TRY(decode_into(frame, note));
      note_failure({note.code, note.rank, note.scope, std::move(note.text)});
      return {};
    }
    case MessageType::standing: {
      Standing standing;
      TUTTI_TRY(decode_into(frame, standing));
      if (std::max(standing.rank, standing.asker) >= size_) return invalid_argument("an answer of an unknown rank");
      const std::lock_guard lock(mutex_);
      standings_.push_back(standing);
      return {};
    }
    case MessageType::farewells: {
      Farewells farewells;
      TUTTI_TRY(decode_into(frame, farewells));
      for (const int rank : farewells.ranks) {
        if (rank < 0 || rank >= size_) return invalid_argument("a farewell of an unknown rank");
      }
      const std::lock_guard lock(mutex_);
      farewells_.push_back(std::move(farewells));
      return {};
    }
    case MessageType::left: {
      Left left;
      TUTTI_TRY(decode_into(frame, left));
      if (left.rank < 0 || left.rank >= size_) return invalid_argument("a goodbye of an unknown rank");
      note_left(left.rank);
      return {};
    }
    default: return invalid_argument("a message that a hub does not send");
  }
  changed_.notify_all();
  return {};
}

void LocalRank::note_failure(Failure failure) {
  const std::lock_guard lock(mutex_);
  unheard_.push_back(std::move(failure));
}

void LocalRank::note_left(int rank) { left_[static_cast<std::size_t>(rank)].store(true, std::memory_order_release); }

void LocalRank::break_off(Status status) {
  {
    const std::lock_guard lock(mutex_);
    // What ended the meeting is often the consequence of a failure that nobody here has heard of yet.
    if (broken_.ok() && !unheard_.empty()) status = Status(unheard_.front().code, unheard_.front().message);
    if (broken_.ok()) broken_ = std::move(status);
  }
  changed_.notify_all();
}

void LocalRank::run_callbacks() {
  std::unique_lock lock(mutex_);
  const auto run = [&lock](const auto& callback, auto& queue) {
    while (callback && !queue.empty()) {
      const auto call = callback;
      const auto item = std::move(queue.front());
      queue.pop_front();
      lock.unlock();  // the callback may post or look
      call(item);
      lock.lock();
    }
  };
  run(on_farewells_, farewells_);  // before the death of who has said it
  run(on_failure_, unheard_);
  run(on_standing_, standings_);
}

}  // namespace tutti::bootstrap
