#include "collectives/executor/record.h"

#include <fmt/format.h>

#include <atomic>
#include <bit>

#include "base/clock.h"

namespace tutti::executor {

using transport::CallRecord;
using transport::CallWords;

namespace {

// The finaliser of MurmurHash3: every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xFF51AFD7ED558CCDULL;
  x ^= x >> 33;
  x *= 0xC4CEB9FE1A85EC53ULL;
  return x ^ (x >> 33);
}

void write(CallRecord& record, std::uint64_t sequence, const Announcement& announcement, std::uint64_t history,
           transport::Handle input, transport::Handle output, double factor, std::uint64_t next_of_other_kind) {
  // A seqlock without fences: each field is stored with release, behind the zero, and readers load each with acquire,
  // so a reader that has seen a field of this call finds the zero, or what came after it, when it looks at the sequence
  // again. On x86 these are plain moves, and ThreadSanitizer, which knows no fences, understands them.
  constexpr auto release = std::memory_order_release;
  record.sequence.store(0, std::memory_order_relaxed);
  record.fingerprint.store(history, release);
  record.input.store(input, release);
  record.output.store(output, release);
  record.count.store(announcement.identity.count, release);
  record.factor.store(factor, release);
  record.what.store(std::bit_cast<std::uint64_t>(announcement.identity.words), release);
  record.entered.store(ticks(), release);
  record.ended.store(0, release);
  record.state.store(transport::CallState::entered, release);
  record.algorithm.store(announcement.algorithm, release);
  record.bytes.store(announcement.bytes, release);
  record.next_of_other_kind.store(next_of_other_kind, release);
  record.sequence.store(sequence, release);
}

}  // namespace

std::uint64_t CallIdentity::fingerprint() const {
  CallWords equal = words;
  equal.flags &= static_cast<std::uint8_t>(~transport::kInPlace);
  return mix(std::bit_cast<std::uint64_t>(equal) + 0x9E3779B97F4A7C15ULL) ^ mix(count * 2 + 1) ^
         mix(algorithm_request * 2);
}

void announce(transport::Board& board, std::uint64_t sequence, const Announcement& announcement, std::uint64_t history,
              transport::Handle input, transport::Handle output, double factor) {
  const std::uint64_t next_of_other_kind =
      board.made.on_device.load(std::memory_order_relaxed) + 1;  // 0 where they do not count
  write(board.calls[sequence % transport::kCallRing], sequence, announcement, history, input, output, factor,
        next_of_other_kind);
  board.made.on_host.store(sequence, std::memory_order_relaxed);
}

void announce_group(transport::Board& board, std::uint64_t number, std::span<const Transfer> transfers) {
  Announcement group;
  group.identity.words.collective = static_cast<std::uint8_t>(Collective::send_recv);
  group.identity.words.root = kManyPeers;
  group.identity.count = transfers.size();
  transport::Handle tag = 0;
  for (const Transfer& t : transfers) group.bytes += t.count * size_of(t.type);
  if (transfers.size() == 1) {
    const Transfer& only = transfers.front();
    group.identity.words.type = static_cast<std::uint8_t>(only.type);
    group.identity.words.flags = only.sending ? transport::kSending : 0;
    group.identity.words.root = only.peer;
    group.identity.count = only.count;
    tag = static_cast<transport::Handle>(only.tag);
  }
  write(board.groups[number % transport::kCallRing], number, group, 0, tag, 0, 1.0, 0);
}

void announce_launch(transport::Board& board, std::uint64_t number, const Announcement& announcement) {
  write(board.launches[number % transport::kCallRing], number, announcement, 0, 0, 0, 1.0, 0);
}

void count_launch(transport::Board& board, std::uint64_t number) {
  if (board.made.on_device.load(std::memory_order_relaxed) == transport::CallsMade::kUncounted) return;
  board.made.on_device.store(number, std::memory_order_relaxed);
  CallRecord& record = board.launches[number % transport::kCallRing];
  record.next_of_other_kind.store(board.made.on_host.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void stop_counting(transport::Board& board) {
  board.made.on_device.store(transport::CallsMade::kUncounted, std::memory_order_relaxed);
}

void end_launch(transport::Board& board, std::uint64_t number) {
  CallRecord& record = board.launches[number % transport::kCallRing];
  if (record.sequence.load(std::memory_order_relaxed) == number) end(record, true);
}

void end(CallRecord& record, bool well) {
  record.ended.store(ticks(), std::memory_order_relaxed);
  // With release: a rank that has withdrawn a buffer (Waiter::part) has it back when its peers have left the call.
  record.state.store(well ? transport::CallState::done : transport::CallState::failed, std::memory_order_release);
}

void end_group(transport::Board& board, std::uint64_t number, bool well) {
  CallRecord& record = board.groups[number % transport::kCallRing];
  if (record.sequence.load(std::memory_order_relaxed) == number) end(record, well);
}

CallSnapshot snapshot(const CallRecord& record) {
  constexpr auto acquire = std::memory_order_acquire;
  CallSnapshot call;
  const std::uint64_t sequence = record.sequence.load(acquire);
  const auto words = std::bit_cast<CallWords>(record.what.load(acquire));
  call.collective = static_cast<Collective>(words.collective);
  call.type = static_cast<DataType>(words.type);
  call.op = static_cast<ReduceOp>(words.op);
  call.deterministic = (words.flags & transport::kDeterministic) != 0;
  call.on_device = (words.flags & transport::kOnDevice) != 0;
  call.sending = (words.flags & transport::kSending) != 0;
  call.root = words.root;
  if (call.collective == Collective::send_recv) call.tag = static_cast<int>(record.input.load(acquire));
  call.count = record.count.load(acquire);
  call.bytes = record.bytes.load(acquire);
  call.next_of_other_kind = record.next_of_other_kind.load(acquire);
  call.algorithm = record.algorithm.load(acquire);
  call.state = record.state.load(acquire);
  call.entered = record.entered.load(acquire);
  call.ended = record.ended.load(acquire);
  if (record.sequence.load(std::memory_order_relaxed) == sequence) call.sequence = sequence;
  return call;
}

std::string CallSnapshot::text() const {
  if (collective == Collective::send_recv) {
    if (root == kManyPeers) return fmt::format("{} sends and receives", count);
    const std::string with_tag = tag == 0 ? "" : fmt::format(", tag {}", tag);
    const std::string peer = root == kAnySource ? "any rank" : fmt::format("rank {}", root);
    return fmt::format("{}({} x {}{}) {} {}", sending ? "send" : "recv", count, name_of(type), with_tag,
                       sending ? "to" : "from", peer);
  }
  if (collective == Collective::barrier && on_device) return "open_device()";
  std::string text = fmt::format("{}(", name_of(collective));
  if (collective == Collective::all_to_allv) {
    text += fmt::format("{}{}", name_of(type), count == 0 ? ", counts" : "");
  } else if (collective != Collective::barrier) {
    text += fmt::format("{} x {}", count, name_of(type));
  }
  if (reduces(collective)) text += fmt::format(", {}", name_of(op));
  if (has_root(collective)) text += fmt::format(", root {}", root);
  if (deterministic) text += ", deterministic";
  if (on_device) text += ", device memory";
  return text + ")";
}

}  // namespace tutti::executor
