#include "collectives/executor/host/slot_stores.h"

#include <algorithm>

#include "base/clock.h"
#include "collectives/reduce/reduce.h"

namespace tutti::executor {

void SlotStores::copy(std::span<void* const> to, const void* from, std::size_t bytes) {
  if (bytes < kLeastBytes) return reduce::copy(to, from, bytes, false);
  for (std::size_t done = 0; done < bytes;) {
    const Part part = next(bytes - done);
    if (part.bytes == bytes && !part.timed) return reduce::copy(to, from, bytes, part.past_caches);
    const std::int64_t begin = part.timed ? now_ns() : 0;
    for (void* destination : to) {
      void* at = static_cast<std::byte*>(destination) + done;
      reduce::copy({&at, 1}, static_cast<const std::byte*>(from) + done, part.bytes, part.past_caches);
    }
    if (part.timed) took(part, now_ns() - begin);
    done += part.bytes;
  }
}

SlotStores::Part SlotStores::next(std::size_t left) {
  if (copied_ < kBetweenTrials) {
    copied_ += left;
    return {left, past_caches_, false};
  }
  // The other way first: if a part's place matters, it does against a change.
  const Way& current = tried_[past_caches_ ? 1 : 0];
  const Way& other = tried_[past_caches_ ? 0 : 1];
  const bool turn_of_other = other.bytes <= current.bytes;
  const std::size_t wanted = kTrialBytes - (turn_of_other ? other : current).bytes;
  return {std::min(wanted, left), past_caches_ != turn_of_other, true};
}

void SlotStores::took(const Part& part, std::int64_t ns) {
  Way& way = tried_[part.past_caches ? 1 : 0];
  way.bytes += part.bytes;
  way.ns += ns;
  if (tried_[0].bytes < kTrialBytes || tried_[1].bytes < kTrialBytes) return;
  const bool past_caches = tried_[0].ns > 2 * tried_[1].ns;
  against_ = past_caches == past_caches_ ? 0 : against_ + 1;
  if (against_ == 2) {  // one may be due to a thread that had lost its core
    past_caches_ = past_caches;
    against_ = 0;
  }
  tried_[0] = tried_[1] = {};
  copied_ = 0;
}

}  // namespace tutti::executor
