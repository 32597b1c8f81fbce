#if TUTTI_HAS_CUDA

#include "collectives/device/kernel_watchdog.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>

#include "base/clock.h"
#include "base/start_thread.h"
#include "collectives/executor/memory_kind_check.h"

namespace tutti {

using executor::cuda::DeviceExecutor;
using executor::cuda::Failure;
using executor::cuda::Form;

namespace {

constexpr auto kWatchEvery = std::chrono::milliseconds(1);
constexpr std::int64_t kEndsWithinNs = 1'000'000'000;  // a kernel that runs, once its communicator has failed

std::string text_of(const transport::DeviceCall& call) {
  const auto words = std::bit_cast<transport::CallWords>(call.what);
  executor::CallSnapshot snapshot;
  snapshot.collective = static_cast<Collective>(words.collective);
  snapshot.type = static_cast<DataType>(words.type);
  snapshot.op = static_cast<ReduceOp>(words.op);
  snapshot.deterministic = (words.flags & transport::kDeterministic) != 0;
  snapshot.root = words.root;
  snapshot.count = call.count;
  return snapshot.text();
}

}  // namespace

KernelWatchdog::KernelWatchdog(const KernelEngine::Config& config, DeviceExecutor& executor)
    : rank_(config.rank),
      size_(config.size),
      segmented_(executor.place().form == Form::segmented),
      name_(config.name),
      health_(*config.health),
      board_(*config.host->window(config.host_rank(config.rank)).board),
      executor_(executor),
      timeout_ns_(std::chrono::nanoseconds(config.options.timeout).count()) {
  for (int r = 0; r < size_; ++r) boards_.push_back(config.host->window(config.host_rank(r)).board);
}

Status KernelWatchdog::begin() {
  TUTTI_ASSIGN(thread_, start_thread("the thread that watches kernels", [this] { run(); }));
  return {};
}

bool KernelWatchdog::wait_until_idle() const {
  const std::int64_t since = now_ns();
  std::int64_t failed_ns = 0;  // when that was first seen
  while (!executor_.idle()) {
    const std::int64_t now = now_ns();
    if (failed_ns == 0 && health_.failed()) failed_ns = now;
    if (now - since > timeout_ns_.load() || (failed_ns != 0 && now - failed_ns > kEndsWithinNs)) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

KernelWatchdog::~KernelWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void KernelWatchdog::wake(std::uint64_t calls) {
  {
    const std::lock_guard lock(mutex_);
    ++launches_;
    calls_ = calls;
  }
  changed_.notify_all();
}

void KernelWatchdog::run() {
  std::unique_lock lock(mutex_);
  std::uint64_t since_entered = 0;  // form segmented: the call that is being timed, and since when
  std::int64_t since_ns = 0;
  std::uint64_t since_p2p = 0;
  std::int64_t since_mail_ns = 0;
  while (true) {
    // Before looking: a kernel writes its failure before it ends, and none is missed then.
    const DeviceExecutor::Progress now = executor_.progress();
    const bool idle = !now.captured && now.finished >= now.launched && executor_.idle();
    const transport::DeviceVerdict verdict = executor_.verdict();
    if (verdict.kind != 0 && !reported_) {
      reported_ = true;
      report(verdict);
    }
    if (segmented_ && !health_.failed()) {
      const DeviceExecutor::Progress progress = executor_.progress();
      if (progress.entered <= progress.finished) {
        since_entered = 0;
      } else if (since_entered != progress.entered) {
        since_entered = progress.entered;
        since_ns = now_ns();
      } else if (now_ns() - since_ns > timeout_ns_.load()) {
        transport::DeviceVerdict late;
        late.kind = static_cast<std::uint64_t>(Failure::deadline);
        late.call = progress.entered;
        late.absent = executor_.absent_in(progress.entered);
        late.waited_ns = static_cast<std::uint64_t>(now_ns() - since_ns);
        late.own = own_call(progress.entered);
        report(late);
      }
      if (progress.p2p % 2 == 0) {
        since_p2p = 0;
      } else if (since_p2p != progress.p2p) {
        since_p2p = progress.p2p;
        since_mail_ns = now_ns();
      } else if (now_ns() - since_mail_ns > timeout_ns_.load()) {
        transport::DeviceVerdict late;
        late.kind = static_cast<std::uint64_t>(Failure::deadline);
        late.waited_ns = static_cast<std::uint64_t>(now_ns() - since_mail_ns);
        report(late);
      }
    }
    if (!health_.failed() && recorded_ < calls_) look_for_other_kind();
    if (health_.failed()) executor_.abort();
    // For the flight recorder. Replays of graphs count there, too, so this is never too late.
    const std::uint64_t finished = std::min(executor_.progress().finished, calls_);
    for (; recorded_ < finished; ++recorded_) {
      executor::end_launch(board_, recorded_ + 1);
    }
    if (ending_) return;
    if (idle) {
      changed_.wait(lock, [this, seen = launches_] { return ending_ || launches_ != seen; });
    } else {
      changed_.wait_for(lock, kWatchEvery);
    }
  }
}

void KernelWatchdog::look_for_other_kind() {
  const transport::CallRecord& own = board_.launches[(recorded_ + 1) % transport::kCallRing];
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const executor::CallSnapshot theirs = executor::called_instead(own, boards_[static_cast<std::size_t>(r)]->calls);
    if (theirs.sequence == 0) continue;
    (void)health_.fail(Code::mismatch, executor::mixed_text(name_, r, theirs, rank_, executor::snapshot(own)));
    return;
  }
}

// A call of this rank's, as the flight recorder has it.
transport::DeviceCall KernelWatchdog::own_call(std::uint64_t number) const {
  const transport::CallRecord& record = board_.launches[number % transport::kCallRing];
  transport::DeviceCall call;
  if (record.sequence.load(std::memory_order_acquire) != number) return call;
  call.sequence = number;
  call.what = record.what.load(std::memory_order_acquire);
  call.count = record.count.load(std::memory_order_acquire);
  return call;
}

void KernelWatchdog::report(const transport::DeviceVerdict& verdict) {
  const auto peer = static_cast<int>(verdict.peer);
  const std::string me = name_(rank_);
  switch (static_cast<Failure>(verdict.kind)) {
    case Failure::mismatch: {
      const bool first = rank_ < peer;
      const std::string own = text_of(verdict.own);
      std::string other = text_of(verdict.other);
      if (own == other) other = "the same with another algorithm asked for";
      const std::string mine = fmt::format("{} called {} as its call {} on device memory", me, own, verdict.call);
      const std::string theirs =
          fmt::format("{} called {} as its call {} on device memory", name_(peer), other, verdict.call);
      (void)health_.fail(Code::mismatch, fmt::format("{}, {}", first ? mine : theirs, first ? theirs : mine));
      break;
    }
    case Failure::deadline: {
      std::string who;
      for (int r = 0; r < size_; ++r) {
        if ((verdict.absent >> r & 1) != 0) who += (who.empty() ? "" : ", ") + name_(r);
      }
      if (verdict.call == 0) {  // messages
        (void)health_.fail(
            Code::timeout,
            fmt::format("{} has not answered; {} waited {:.1f} s in sends and receives on device memory, and timed out",
                        segmented_ ? std::string("a rank") : name_(peer), me,
                        static_cast<double>(verdict.waited_ns) * 1e-9));
        break;
      }
      const char* what = who.empty() ? "has not answered" : "has not entered it";
      if (who.empty()) who = segmented_ ? std::string("a rank") : name_(peer);
      (void)health_.fail(
          Code::timeout,
          fmt::format("{} {}; {} waited {:.1f} s in {} as its call {} on device memory, and timed out", who, what, me,
                      static_cast<double>(verdict.waited_ns) * 1e-9,
                      verdict.own.sequence == 0 ? std::string("a call") : text_of(verdict.own), verdict.call));
      break;
    }
    case Failure::unreachable:
      (void)health_.fail(Code::system, fmt::format("{} cannot reach a buffer of {} in its call {} on device memory", me,
                                                   name_(peer), verdict.call));
      break;
    case Failure::message:
      (void)health_.fail(Code::mismatch,
                         fmt::format("{} sends {} x {} to {}, which receives {} x {}", name_(peer), verdict.other.count,
                                     name_of(static_cast<DataType>(verdict.other.what)), me, verdict.own.count,
                                     name_of(static_cast<DataType>(verdict.own.what))));
      break;
    case Failure::none:
    case Failure::aborted: break;  // the rank that aborted has reported why
  }
}

}  // namespace tutti

#endif  // TUTTI_HAS_CUDA
