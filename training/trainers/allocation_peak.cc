#include "training/trainers/allocation_peak.h"

#include <c10/core/Allocator.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace tutti::training {

namespace {

constexpr int kErrorsOnly = 2;  // of glog's levels

}  // namespace

struct AllocationPeak::Counter : c10::MemoryReportingInfoBase {
  explicit Counter(c10::DeviceType kind) : counted(kind) {}

  void reportMemoryUsage(void* pointer, std::int64_t bytes, std::size_t, std::size_t, c10::Device device) override {
    if (device.type() != counted) return;
    const std::lock_guard lock(mutex);
    if (bytes > 0) {
      live[pointer] = bytes;
      now += bytes;
      peak = std::max(peak, now);
    } else if (const auto found = live.find(pointer); found != live.end()) {
      now -= found->second;
      live.erase(found);
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

  const c10::DeviceType counted;
  std::mutex mutex;
  std::unordered_map<void*, std::int64_t> live;
  std::int64_t now = 0, peak = 0;
};

AllocationPeak::AllocationPeak(c10::DeviceType device)
    : counter_(std::make_shared<Counter>(device)),
      log_level_(std::exchange(FLAGS_caffe2_log_level, kErrorsOnly)),
      guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}
AllocationPeak::~AllocationPeak() { FLAGS_caffe2_log_level = log_level_; }

std::size_t AllocationPeak::bytes() const {
  const std::lock_guard lock(counter_->mutex);
  return static_cast<std::size_t>(counter_->peak);
}

}  // namespace tutti::training
