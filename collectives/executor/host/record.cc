#include "collectives/executor/host/record.h"

#include <fmt/format.h>

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

bool reduces(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
         collective == Collective::reduce;
}

bool has_root(Collective collective) {
  return collective == Collective::broadcast || collective == Collective::reduce || collective == Collective::gather ||
         collective == Collective::scatter;
}

}  // namespace

std::uint64_t CallIdentity::fingerprint() const {
  CallWords equal = words;
  equal.flags &= static_cast<std::uint8_t>(~transport::kInPlace);
  return mix(std::bit_cast<std::uint64_t>(equal) + 0x9E3779B97F4A7C15ULL) ^ mix(count * 2 + 1) ^
         mix(algorithm_request * 2);
}

void announce(transport::Board& board, std::uint64_t sequence, const CallIdentity& identity, std::uint64_t fingerprint,
              transport::Handle input, transport::Handle output, double factor, std::uint32_t algorithm,
              std::uint64_t bytes) {
  constexpr auto relaxed = std::memory_order_relaxed;
  CallRecord& record = board.calls[sequence % transport::kCallRing];
  record.sequence.store(0, relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  record.fingerprint.store(fingerprint, relaxed);
  record.input.store(input, relaxed);
  record.output.store(output, relaxed);
  record.count.store(identity.count, relaxed);
  record.factor.store(factor, relaxed);
  record.what.store(std::bit_cast<std::uint64_t>(identity.words), relaxed);
  record.entered.store(ticks(), relaxed);
  record.ended.store(0, relaxed);
  record.state.store(transport::CallState::entered, relaxed);
  record.algorithm.store(algorithm, relaxed);
  record.bytes.store(bytes, relaxed);
  record.sequence.store(sequence, std::memory_order_release);
}

CallSnapshot snapshot(const CallRecord& record) {
  constexpr auto relaxed = std::memory_order_relaxed;
  CallSnapshot call;
  const std::uint64_t sequence = record.sequence.load(std::memory_order_acquire);
  const auto words = std::bit_cast<CallWords>(record.what.load(relaxed));
  call.collective = static_cast<Collective>(words.collective);
  call.type = static_cast<DataType>(words.type);
  call.op = static_cast<ReduceOp>(words.op);
  call.deterministic = (words.flags & transport::kDeterministic) != 0;
  call.root = words.root;
  call.count = record.count.load(relaxed);
  call.bytes = record.bytes.load(relaxed);
  call.algorithm = record.algorithm.load(relaxed);
  call.state = record.state.load(relaxed);
  call.entered = record.entered.load(relaxed);
  call.ended = record.ended.load(relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (record.sequence.load(relaxed) == sequence) call.sequence = sequence;
  return call;
}

std::string CallSnapshot::text() const {
  std::string text = fmt::format("{}(", name_of(collective));
  if (collective != Collective::barrier && collective != Collective::all_to_allv) {
    text += fmt::format("{} x {}", count, name_of(type));
  } else if (collective == Collective::all_to_allv) {
    text += name_of(type);
  }
  if (reduces(collective)) text += fmt::format(", {}", name_of(op));
  if (has_root(collective)) text += fmt::format(", root {}", root);
  if (deterministic) text += ", deterministic";
  return text + ")";
}

}  // namespace tutti::executor
