#include "collectives/executor/net_record.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

namespace tutti::executor {

using transport::CallRecord;

namespace {

static_assert(offsetof(CallRecord, sequence) == 0 && offsetof(CallRecord, fingerprint) == 8);  // a note's head
static_assert(offsetof(CallRecord, checksum) + sizeof(std::uint64_t) == kNetRecordBytes);

// One multiplication for each word, in order: what is in another place, or old, changes all that follows.
class Checksum {
 public:
  void add(std::uint64_t word) { state_ = (std::rotl(state_, 23) ^ word) * 0x9FB21C651E98DF25ULL; }
  std::uint64_t value() const { return state_ ^ (state_ >> 29); }

 private:
  std::uint64_t state_ = 0x2545F4914F6CDD1DULL;
};

/// The first line of a record, read once: what lies there may change meanwhile.
struct Line {
  std::uint64_t sequence = 0, fingerprint = 0, along = 0, count = 0, factor = 0, what = 0, checksum = 0;

  explicit Line(const CallRecord& from) {
    constexpr auto acquire = std::memory_order_acquire;
    sequence = from.sequence.load(acquire);
    fingerprint = from.fingerprint.load(acquire);
    along = from.output.load(acquire);
    count = from.count.load(acquire);
    factor = std::bit_cast<std::uint64_t>(from.factor.load(acquire));
    what = from.what.load(acquire);
    checksum = from.checksum.load(acquire);
  }
};

/// REQUIRES: line.along <= kMostAlong.
std::uint64_t checksum_of(const Line& line, const std::byte* data) {
  Checksum checksum;
  for (const std::uint64_t word : {line.sequence, line.fingerprint, line.along, line.count, line.factor, line.what}) {
    checksum.add(word);
  }
  for (std::size_t done = 0; done < line.along; done += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + done, std::min(sizeof word, line.along - done));
    checksum.add(word);
  }
  return checksum.value();
}

const std::byte* behind(const CallRecord& record) {
  return reinterpret_cast<const std::byte*>(&record) + kNetRecordBytes;
}

bool is_complete(const Line& line, const std::byte* data) {
  return line.along <= kMostAlong && line.checksum == checksum_of(line, data);
}

/// Writes the line in the order of a Board's records (executor/record.cc), for ranks that read it meanwhile.
void write(const Line& line, CallRecord& to) {
  constexpr auto release = std::memory_order_release;
  to.sequence.store(0, std::memory_order_relaxed);
  to.fingerprint.store(line.fingerprint, release);
  to.input.store(0, release);
  to.output.store(line.along, release);
  to.count.store(line.count, release);
  to.factor.store(std::bit_cast<double>(line.factor), release);
  to.what.store(line.what, release);
  to.checksum.store(line.checksum, release);
  to.sequence.store(line.sequence, release);
}

}  // namespace

void write_net_record(const CallRecord& record, std::size_t along, CallRecord& to) {
  Line line(record);
  line.along = along;
  line.checksum = checksum_of(line, behind(to));
  write(line, to);
}

bool is_complete(const CallRecord& record) { return is_complete(Line(record), behind(record)); }

void copy_to_mirror(transport::ExpressCell& cell, std::uint64_t call, CallRecord& mirror) {
  if (mirror.sequence.load(std::memory_order_acquire) >= call) return;
  Line come(net_record(cell));
  if (come.sequence != call || !is_complete(come, net_payload(cell))) return;
  come.along = 0;
  come.checksum = checksum_of(come, nullptr);
  write(come, mirror);
}

}  // namespace tutti::executor
