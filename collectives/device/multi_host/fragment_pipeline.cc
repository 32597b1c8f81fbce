#include "collectives/device/multi_host/fragment_pipeline.h"

#include <fmt/format.h>

#include <chrono>
#include <limits>
#include <utility>

#include "base/backoff.h"
#include "base/clock.h"

namespace tutti {

namespace {

constexpr std::chrono::microseconds kYieldsFor{100};
constexpr std::chrono::microseconds kLongestSleep{500};

}  // namespace

std::size_t FragmentPipeline::limit() const {
  const std::size_t limit = context_.options.memory_limit;
  return limit == 0 ? std::numeric_limits<std::size_t>::max() : limit;
}

// memory_limit counts for pinned memory alone, as it does for that of the GPU, since what else a rank takes may differ
// between ranks. Half of it is for calls, the rest for messages.
Result<std::size_t> FragmentPipeline::slot_bytes() const { return HostStaging::slot_bytes(limit() / 2); }

Status FragmentPipeline::open(int device) {
  if (staging_) return {};
  TUTTI_ASSIGN(const std::size_t bytes, slot_bytes());
  TUTTI_ASSIGN(staging_, HostStaging::create(device, bytes, limit()));
  set_timeout(context_.options.timeout);
  return {};
}

void FragmentPipeline::set_timeout(std::chrono::nanoseconds timeout) {
  if (staging_) staging_->set_limit(timeout.count());
}

// The queue comes first: a stream takes only so much at a time, and what it waits for is the queue's to do.
Status FragmentPipeline::enqueue(std::uint64_t first, std::span<const HostStaging::Fragment> fragments, Stream stream,
                                 std::function<Status()> on_host) {
  const auto work = context_.queue.start([this, on_host = std::move(on_host)] {
    context_.waiter.set_background(true);
    return on_host();
  });
  if (!work.ok()) return context_.health.fail(work.status().code(), work.status().message());
  if (fragments.empty()) return {};
  const Status put = staging_->put(first, fragments, stream);
  return put.ok() ? put : context_.health.fail(put.code(), put.message());
}

Status FragmentPipeline::run_fragments(std::uint64_t first, std::size_t count,
                                       const std::function<Status(std::size_t)>& one, const std::string& how) {
  Status status;
  for (std::size_t fragment = 0; status.ok() && fragment < count; ++fragment) {
    status = await_stream(first + fragment);
    if (status.ok()) status = one(fragment);
    if (status.ok()) staging_->end(first + fragment);
  }
  return ended(first, count, status, how);
}

Status FragmentPipeline::ended(std::uint64_t first, std::size_t count, const Status& status, const std::string& how) {
  log_.record_fragments(count, how);
  staging_->end(first + count - 1);
  return status.ok() || context_.health.failed() ? status : context_.fail(status);
}

Status FragmentPipeline::await_stream(std::uint64_t fragment) {
  const std::int64_t since = now_ns();
  while (!staging_->reached(fragment)) {
    if (context_.health.failed()) return context_.fail(context_.health.status());
    const std::int64_t now = now_ns();
    const std::int64_t waits = context_.queue.waits_since_ns();
    if (waits != 0 && now - waits > context_.waiter.timeout_ns()) {
      return context_.fail(
          Status(Code::timeout, fmt::format("{} waited {:.1f} s for its stream to come to a call on device memory",
                                            context_.name, static_cast<double>(now - waits) * 1e-9)));
    }
    yield_or_sleep(proportional_pause(std::chrono::nanoseconds(now - since), kYieldsFor, kLongestSleep));
  }
  return context_.health.failed() ? context_.fail(context_.health.status()) : Status();
}

}  // namespace tutti
