#include "perf/training/throttled_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/calls/async_queue.h"

namespace tutti::perf {
namespace {

using Clock = std::chrono::steady_clock;
using Inside = std::shared_ptr<CommunicatorInterface>;

// What a rank and all communicators split off its own share. Any thread.
class Link {
 public:
  explicit Link(const LinkOptions& options) : options_(options) {}
  bool overlap() const { return options_.overlap; }
  /// Waits until `bytes` that were there at `begin` have passed, behind those that came earlier.
  void pass(double bytes, Clock::time_point begin) {
    const std::chrono::duration<double> needed(bytes / options_.bytes_per_second);
    Clock::time_point end;
    {
      const std::lock_guard lock(mutex_);
      end = free_ = std::max(free_, begin) + std::chrono::duration_cast<Clock::duration>(needed);
    }
    std::this_thread::sleep_until(end);
  }

 private:
  const LinkOptions options_;
  std::mutex mutex_;
  Clock::time_point free_{};  // guarded by mutex_
};

class ThrottledCommunicator final : public CommunicatorInterface {
 public:
  ThrottledCommunicator(Inside inside, std::shared_ptr<Link> link)
      : inside_(std::move(inside)), link_(std::move(link)) {}

  int rank() const override { return inside_->rank(); }
  int size() const override { return inside_->size(); }

  Status run(const Call& call) override {
    const Clock::time_point posted = Clock::now();
    queue_.wait_idle();
    return over_link(call, posted);
  }
  Status run_group(std::span<const Transfer> transfers) override {
    queue_.wait_idle();
    return over_link(transfers);
  }
  Result<std::shared_ptr<PendingWork>> start(const Call& call) override {
    if (call.collective == Collective::all_to_allv) {
      return unsupported(fmt::format("rank {}: all_to_allv over a throttled link is not supported", rank()));
    }
    return in_order([this, wanted = call, algorithm = std::string(call.algorithm), posted = Clock::now()]() mutable {
      wanted.algorithm = algorithm;
      return over_link(wanted, posted);
    });
  }
  Result<std::shared_ptr<PendingWork>> start_group(std::span<const Transfer> transfers) override {
    return in_order(
        [this, list = std::vector<Transfer>(transfers.begin(), transfers.end())] { return over_link(list); });
  }

  Result<Inside> split(int color, int key, const std::string& name) override {
    return wrapped(inside_->split(color, key, name));
  }
  Result<Inside> shrink() override { return wrapped(inside_->shrink()); }
  Status set_timeout(std::chrono::milliseconds timeout) override { return inside_->set_timeout(timeout); }
  void abort(const std::string& reason) override { inside_->abort(reason); }
  Status status() const override { return inside_->status(); }

  Explanation explain_last_call() const override { return inside_->explain_last_call(); }
  MemoryReport memory() const override { return inside_->memory(); }
  Traffic traffic() const override { return inside_->traffic(); }
  std::string flight_recorder_text() const override { return inside_->flight_recorder_text(); }
  std::string flight_recorder_json() const override { return inside_->flight_recorder_json(); }

 private:
  Status over_link(const Call& call, Clock::time_point posted) {
    const double bytes = link_bytes(call, size());
    if (bytes == 0) return inside_->run(call);
    // The clock is the machine's, so the ranks can agree on when the last of them had posted.
    std::int64_t begin = posted.time_since_epoch().count();
    Call latest;
    latest.collective = Collective::all_reduce;
    latest.send = latest.recv = &begin;
    latest.count = 1;
    latest.type = DataType::i64;
    latest.op = ReduceOp::max;
    TUTTI_TRY(inside_->run(latest));
    TUTTI_TRY(inside_->run(call));
    link_->pass(bytes, Clock::time_point(Clock::duration(begin)));
    return {};
  }
  Status over_link(std::span<const Transfer> transfers) {
    const Clock::time_point begin = Clock::now();
    TUTTI_TRY(inside_->run_group(transfers));
    if (const double bytes = link_bytes(transfers); bytes > 0) link_->pass(bytes, begin);
    return {};
  }

  Result<std::shared_ptr<PendingWork>> in_order(std::function<Status()> operation) {
    Result<std::shared_ptr<PendingWork>> started = queue_.start(std::move(operation));
    if (!link_->overlap()) queue_.wait_idle();
    return started;
  }

  Result<Inside> wrapped(Result<Inside> other) const {
    if (!other.ok() || other.value() == nullptr) return other;
    return Inside(std::make_shared<ThrottledCommunicator>(other.take(), link_));
  }

  const Inside inside_;
  const std::shared_ptr<Link> link_;
  AsyncQueue queue_;  // last: it ends before what its operations use
};

}  // namespace

Communicator throttle(const Communicator& communicator, const LinkOptions& link) {
  if (!(link.bytes_per_second > 0)) {
    throw Error(Code::invalid_argument, fmt::format("rank {}: throttle: bytes_per_second is {}; it must be above 0",
                                                    communicator.rank(), link.bytes_per_second));
  }
  return Communicator(std::make_shared<ThrottledCommunicator>(communicator.impl(), std::make_shared<Link>(link)));
}

double link_bytes(const Call& call, int ranks) {
  const double counts = static_cast<double>(call.count * size_of(call.type));
  switch (call.collective) {
    case Collective::all_reduce: return 2.0 * (ranks - 1) / ranks * counts;
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::all_to_all:
    case Collective::gather:
    case Collective::scatter: return (ranks - 1) * counts;
    case Collective::broadcast:
    case Collective::reduce: return ranks > 1 ? counts : 0;
    default: return 0;
  }
}

double link_bytes(std::span<const Transfer> transfers) {
  double bytes = 0;
  for (const Transfer& transfer : transfers) {
    if (transfer.sending) bytes += static_cast<double>(transfer.count * size_of(transfer.type));
  }
  return bytes;
}

}  // namespace tutti::perf
