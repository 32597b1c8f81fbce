#include "collectives/executor/wait/peer_progress.h"

#include <atomic>
#include <cstddef>

#include "base/clock.h"
#include "collectives/executor/net_record.h"

namespace tutti::executor {

using transport::Board;
using transport::CallRecord;

namespace {

constexpr std::int64_t kPulseEveryNs = 50'000'000;  // to ranks on other hosts
constexpr std::int64_t kPolledLatelyNs = 200'000'000;

// Where a rank stands, as a word: the number of its latest call times kCall, and these.
constexpr std::uint64_t kPolls = 1;   // it has done so lately
constexpr std::uint64_t kInside = 2;  // it is in that call
constexpr std::uint64_t kCall = 4;

}  // namespace

PeerProgress::PeerProgress(transport::Transport& transport, int rank)
    : transport_(transport),
      net_(transport.net_links()),
      board_(*transport.window(rank).board),
      express_(transport.window(rank).express),
      answers_(static_cast<std::size_t>(transport.sizes().ranks)) {
  for (auto& answer : answers_) answer.store(kNoAnswer, std::memory_order_relaxed);
}

transport::ExpressCell& PeerProgress::cell_from(int rank, std::uint64_t call) const {
  return transport_.sizes().express_cell(express_, rank, call);
}

CallRecord* PeerProgress::record_of(int rank, std::uint64_t call) const {
  Board* board = transport_.window(rank).board;
  if (board == nullptr) return nullptr;
  CallRecord& record = board->calls[call % transport::kCallRing];
  if (is_remote(rank)) copy_to_mirror(cell_from(rank, call), call, record);
  return &record;
}

void PeerProgress::read_cells(int rank) const {
  for (std::uint64_t i = 0; i < transport_.sizes().express_calls(); ++i) {
    (void)record_of(rank, net_record(cell_from(rank, i)).sequence.load(std::memory_order_acquire));
  }
}

bool PeerProgress::has_announced(int rank, std::uint64_t call) const {
  const CallRecord& record = *record_of(rank, call);
  return record.sequence.load(std::memory_order_acquire) >= call && is_complete(record);
}

bool PeerProgress::has_entered(int rank, std::uint64_t call) const {
  if (const std::uint64_t answer = answer_of(rank); answer != kNoAnswer) return answer / kCall >= call;
  const CallRecord* record = record_of(rank, call);
  return record == nullptr || record->sequence.load(std::memory_order_acquire) >= call;
}

bool PeerProgress::is_inside(int rank, std::uint64_t call) const {
  const std::uint64_t answer = answer_of(rank);
  if (answer != kNoAnswer) return answer / kCall == call && (answer & kInside) != 0;
  const CallRecord* record = record_of(rank, call);
  return record != nullptr && record->sequence.load(std::memory_order_acquire) == call &&
         record->state.load(std::memory_order_acquire) == transport::CallState::entered;
}

bool PeerProgress::has_closed(int rank) const {
  const Board* board = transport_.window(rank).board;
  return board != nullptr && board->pulse.has_left.load(std::memory_order_acquire) != 0;
}

std::uint64_t PeerProgress::standing() const {
  std::uint64_t latest = 0;
  bool inside = false;
  for (const CallRecord& record : board_.calls) {
    const std::uint64_t sequence = record.sequence.load(std::memory_order_acquire);
    if (sequence <= latest) continue;
    latest = sequence;
    inside = record.state.load(std::memory_order_acquire) == transport::CallState::entered;
  }
  const bool polls = now_ns() - last_pulse_ns_.load(std::memory_order_relaxed) < kPolledLatelyNs;
  return kCall * latest + (inside ? kInside : 0) + (polls ? kPolls : 0);
}

bool PeerProgress::answers_that_it_polls(int rank) const {
  const std::uint64_t answer = answer_of(rank);
  return answer != kNoAnswer && (answer & kPolls) != 0;
}

std::uint64_t PeerProgress::pulse_of(int rank) const {
  const Board* board = transport_.window(rank).board;
  return board == nullptr ? 0 : board->pulse.beats.load(std::memory_order_relaxed);
}

void PeerProgress::send_pulse(std::int64_t now_ns) {
  if (now_ns - last_pulse_ns_.load(std::memory_order_relaxed) <= kPulseEveryNs) return;
  last_pulse_ns_.store(now_ns, std::memory_order_relaxed);
  const std::uint64_t beats = board_.pulse.beats.load(std::memory_order_relaxed);
  for (int rank = 0; rank < transport_.sizes().ranks; ++rank) {
    // Without a bootstrap server, which reports deaths, a link that breaks shows them.
    if (is_remote(rank) && (net_->has_written_to(rank) || !net_->server_reports_deaths())) {
      (void)net_->signal(rank, 0, &net_->mirror_at(rank).pulse, beats, 0, transport::Flush::now);
    }
  }
}

}  // namespace tutti::executor
