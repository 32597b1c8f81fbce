#include "collectives/executor/host/far_record.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tutti::executor {

using transport::CallRecord;

namespace {

static_assert(offsetof(CallRecord, sequence) == 0 && offsetof(CallRecord, fingerprint) == 8);  // a note's head
static_assert(offsetof(CallRecord, seal) + sizeof(std::uint64_t) == kFarRecordBytes);

// One multiplication for each word, in order: what is in another place, or old, changes all that follows.
class Seal {
 public:
  void add(std::uint64_t word) { state_ = (std::rotl(state_, 23) ^ word) * 0x9FB21C651E98DF25ULL; }
  std::uint64_t value() const { return state_ ^ (state_ >> 29); }

 private:
  std::uint64_t state_ = 0x2545F4914F6CDD1DULL;
};

std::uint64_t seal_of(const CallRecord& record, std::size_t along) {
  constexpr auto acquire = std::memory_order_acquire;
  Seal seal;
  seal.add(record.sequence.load(acquire));
  seal.add(record.fingerprint.load(acquire));
  seal.add(record.input.load(acquire));
  seal.add(record.count.load(acquire));
  seal.add(std::bit_cast<std::uint64_t>(record.factor.load(acquire)));
  seal.add(record.what.load(acquire));
  seal.add(along);
  const std::byte* data = reinterpret_cast<const std::byte*>(&record) + kFarRecordBytes;
  for (std::size_t done = 0; done < along; done += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + done, std::min(sizeof word, along - done));
    seal.add(word);
  }
  return seal.value();
}

}  // namespace

void seal_far(const CallRecord& record, std::size_t along, CallRecord& to) {
  constexpr auto relaxed = std::memory_order_relaxed;
  to.sequence.store(record.sequence.load(relaxed), relaxed);
  to.fingerprint.store(record.fingerprint.load(relaxed), relaxed);
  to.input.store(0, relaxed);
  to.output.store(along, relaxed);
  to.count.store(record.count.load(relaxed), relaxed);
  to.factor.store(record.factor.load(relaxed), relaxed);
  to.what.store(record.what.load(relaxed), relaxed);
  to.seal.store(seal_of(to, along), relaxed);
}

bool is_whole(const CallRecord& record) {
  const std::uint64_t along = record.output.load(std::memory_order_acquire);
  return along <= kMostAlong && record.seal.load(std::memory_order_acquire) == seal_of(record, along);
}

void take_in(transport::ExpressCell& cell, std::uint64_t call, CallRecord& mirror) {
  const CallRecord& come = far_record(cell);
  if (come.sequence.load(std::memory_order_acquire) != call || !is_whole(come)) return;
  if (mirror.sequence.load(std::memory_order_acquire) >= call) return;
  seal_far(come, 0, mirror);
}

}  // namespace tutti::executor
