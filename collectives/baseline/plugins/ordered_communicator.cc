#include "collectives/baseline/plugins/ordered_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/check.h"

namespace tutti {

class OrderedCommunicator::Item : public PendingWork {
 public:
  explicit Item(std::function<Status()> body) : body_(std::move(body)) {}

  void run() {
    Status status = body_();
    std::vector<std::function<void()>> callbacks;
    {
      const std::lock_guard lock(mutex_);
      status_ = std::move(status);
      done_ = true;
      callbacks.swap(callbacks_);
      changed_.notify_all();
    }
    for (const std::function<void()>& callback : callbacks) callback();
  }

  bool wait_for(std::chrono::nanoseconds limit) override {
    std::unique_lock lock(mutex_);
    // wait_for() adds the limit to the present time: "for ever" must not overflow.
    return changed_.wait_for(lock, std::min(limit, std::chrono::nanoseconds(std::chrono::hours(24 * 365))),
                             [this] { return done_; });
  }

  Status status() const override {
    const std::lock_guard lock(mutex_);
    return status_;
  }

  void then(std::function<void()> callback) override {
    {
      const std::lock_guard lock(mutex_);
      if (!done_) {
        callbacks_.push_back(std::move(callback));
        return;
      }
    }
    callback();
  }

 private:
  std::function<Status()> body_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Status status_;
  bool done_ = false;
  std::vector<std::function<void()>> callbacks_;  // until done
};

OrderedCommunicator::~OrderedCommunicator() { TUTTI_CHECK(!thread_.joinable()); }

void OrderedCommunicator::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<PendingWork> OrderedCommunicator::enqueue(std::function<Status()> body) {
  auto item = std::make_shared<Item>(std::move(body));
  pending_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  queue_.push_back(item);
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  changed_.notify_all();
  return item;
}

std::shared_ptr<PendingWork> OrderedCommunicator::at_once(std::function<Status()> body) {
  drain();
  auto item = std::make_shared<Item>(std::move(body));
  item->run();
  return item;
}

void OrderedCommunicator::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::shared_ptr<Item> item = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    item->run();
    lock.lock();
    pending_.fetch_sub(1, std::memory_order_release);
    changed_.notify_all();
  }
}

void OrderedCommunicator::drain() {
  if (pending_.load(std::memory_order_acquire) == 0) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return pending_.load(std::memory_order_acquire) == 0; });
}

Status OrderedCommunicator::lacks(const std::string& what) const {
  return unsupported(fmt::format("backend {}: {} is not supported", name_, what));
}

Status OrderedCommunicator::refuse(const Call& call) const {
  if (call.deterministic) return lacks(std::string(name_of(call.collective)) + " in deterministic mode");
  if (reduces(call.collective) && !applies(call.op, call.type)) {
    return invalid_argument(fmt::format("rank {} called {}: {} of {}; bits are combined of integers only", rank(),
                                        name_of(call.collective), name_of(call.op), name_of(call.type)));
  }
  if (call.op == ReduceOp::premul_sum && !scales())
    return lacks(std::string(name_of(call.collective)) + " with premul_sum");
  return {};
}

Status OrderedCommunicator::run(const Call& call) {
  drain();
  TUTTI_TRY(refuse(call));
  ++traffic_.calls;
  return execute(call);
}

Status OrderedCommunicator::run_group(std::span<const Transfer> transfers) {
  drain();
  ++traffic_.calls;
  return execute_group(transfers);
}

Result<std::shared_ptr<PendingWork>> OrderedCommunicator::start(const Call& call) {
  TUTTI_TRY(refuse(call));
  ++traffic_.calls;
  if (goes_into_a_stream(call)) return at_once([&] { return execute(call); });
  return enqueue([this, wanted = Call(call), algorithm = std::string(call.algorithm)]() mutable {
    wanted.algorithm = algorithm;
    return execute(wanted);
  });
}

Result<std::shared_ptr<PendingWork>> OrderedCommunicator::start_group(std::span<const Transfer> transfers) {
  ++traffic_.calls;
  if (goes_into_a_stream(transfers)) return at_once([&] { return execute_group(transfers); });
  return enqueue(
      [this, list = std::vector<Transfer>(transfers.begin(), transfers.end())] { return execute_group(list); });
}

Result<std::shared_ptr<CommunicatorInterface>> OrderedCommunicator::split(int, int, const std::string&) {
  return lacks("split");
}
Result<std::shared_ptr<CommunicatorInterface>> OrderedCommunicator::shrink() { return lacks("shrink"); }

Status OrderedCommunicator::set_timeout(std::chrono::milliseconds) { return lacks("set_timeout"); }

void OrderedCommunicator::abort(const std::string& reason) {
  std::fprintf(stderr, "tutti: rank %d: backend %s: aborted: %s\n", rank(), name_.c_str(), reason.c_str());
  std::_Exit(EXIT_FAILURE);
}

Explanation OrderedCommunicator::explain_last_call() const {
  return {.algorithm = name_, .reason = "a baseline chooses for itself"};
}

bool is_in_place(const Call& call, int rank) {
  const auto* send = static_cast<const char*>(call.send);
  const auto* recv = static_cast<const char*>(call.recv);
  const std::size_t own = static_cast<std::size_t>(rank) * call.count * size_of(call.type);
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::gather: return send == recv + own;
    case Collective::reduce_scatter:
    case Collective::scatter: return recv == send + own;
    default: return send == recv;
  }
}

namespace {

template <class T>
void divide_as(void* data, std::size_t count, int divisor) {
  T* values = static_cast<T*>(data);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(values[i] / static_cast<T>(divisor));
}

}  // namespace

void divide(void* data, std::size_t count, DataType type, int divisor) {
  switch (type) {
    case DataType::i8: return divide_as<std::int8_t>(data, count, divisor);
    case DataType::u8: return divide_as<std::uint8_t>(data, count, divisor);
    case DataType::i32: return divide_as<std::int32_t>(data, count, divisor);
    case DataType::u32: return divide_as<std::uint32_t>(data, count, divisor);
    case DataType::i64: return divide_as<std::int64_t>(data, count, divisor);
    case DataType::u64: return divide_as<std::uint64_t>(data, count, divisor);
    case DataType::f32: return divide_as<float>(data, count, divisor);
    case DataType::f64: return divide_as<double>(data, count, divisor);
    case DataType::f16:
    case DataType::bf16:
    case DataType::f8e4m3:
    case DataType::f8e5m2: break;
  }
  TUTTI_CHECK(false);
}

}  // namespace tutti
