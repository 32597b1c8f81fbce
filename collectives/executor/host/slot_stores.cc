#include "collectives/executor/host/slot_stores.h"

#include <algorithm>

#include "base/clock.h"
#include "collectives/reduce/reduce.h"

namespace tutti::executor {

void SlotStores::copy(std::span<void* const> to, const void* from, std::size_t bytes) {
  if (bytes < kLeastBytes) return reduce::copy(to, from, bytes, false);
  const auto copies = to.size() - static_cast<std::size_t>(std::count(to.begin(), to.end(), from));
  const bool past_caches = next();
  const std::int64_t begin = now_ns();
  reduce::copy(to, from, bytes, past_caches);
  if (copies == 0) return;
  took(past_caches, static_cast<double>(now_ns() - begin) / static_cast<double>(bytes * copies));
}

void SlotStores::took(bool past_caches, double time) {
  double& known = times_[past_caches ? 1 : 0];
  if (known == 0) {
    known = time;
  } else if (time < known) {
    known = time + (known - time) / 4;
  } else {
    known += (std::min(time, 4 * known) - known) / 8;  // the thread may have lost its core in between
  }
  past_caches_ = times_[1] > 0 && times_[0] > 2 * times_[1];
}

}  // namespace tutti::executor
