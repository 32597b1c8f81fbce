// The communicator's calls on device memory that go through the host's: of a job of several hosts, and messages of
// ranks that have not opened their GPUs' memory to each other. What the caller's thread puts into the stream, and what
// the communicator's own thread carries out meanwhile, on host memory (staging.h, staged_call.h).
//
// Each turn of a call is announced as the whole call, so that a rank which calls something else is told of what the
// caller has called. A failure reaches the caller by status() and the next call, and lets the streams go on.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "collectives/calls/validate.h"
#include "collectives/communicator/communicator.h"
#include "device/memory_kind.h"

namespace tutti {

namespace {

constexpr std::int64_t kAwakeNs = 100'000;       // of a wait for the stream, before the first nap
constexpr std::int64_t kLongestNapNs = 500'000;  // a nap is a sixteenth of what has been waited

}  // namespace

// The limit counts for pinned memory alone, as it does for that of the GPU: what else a rank takes may be its own. Half
// of it is for calls, the rest for messages.
Result<std::size_t> TuttiCommunicator::slot_bytes() const { return HostStaging::slot_bytes(room_for_pinned() / 2); }

std::size_t TuttiCommunicator::room_for_pinned() const {
  return options_.memory_limit == 0 ? std::numeric_limits<std::size_t>::max() : options_.memory_limit;
}

Status TuttiCommunicator::need_staging(int device) {
  if (staging_) return {};
  TUTTI_ASSIGN(const std::size_t bytes, slot_bytes());
  TUTTI_ASSIGN(staging_, HostStaging::create(device, bytes, room_for_pinned()));
  staging_->set_limit(std::chrono::nanoseconds(options_.timeout).count());
  return {};
}

Status TuttiCommunicator::run_staged(const Call& call) {
  if (health_.failed()) return health_.status();
  TUTTI_TRY(validate(call, rank_, size(), own_name_));
  TUTTI_ASSIGN(const int device, device_of(call));
  TUTTI_TRY(need_staging(device));
  TUTTI_TRY(staging_->check(call.stream));
  if (wants_grid(call)) {
    TUTTI_ASSIGN(const bool open, open_grid(device, identity_on_device(call, 0)));
    if (open) return run_on_grid(call);
  }
  if (wants_direct(call, size()) && each_on_its_host()) {
    TUTTI_ASSIGN(const bool open, open_gdr(identity_on_device(call, 0)));
    if (open) return run_direct(call);
  }
  TUTTI_ASSIGN(const std::size_t bytes, slot_bytes());
  const auto staged = std::make_shared<const HostStagedCall>(call, rank_, size(), bytes);
  if (call.count == 0 && !staged->uneven()) {
    return start_turns(0, {}, call.stream, [this, staged] { return execute_empty(staged->whole()); });
  }
  const std::uint64_t first = staging_->begin(staged->fragments());
  std::vector<HostStaging::Fragment> turns;
  for (std::uint64_t turn = 0; turn < staged->fragments(); ++turn) {
    turns.push_back(staged->copies(turn, staging_->input(first + turn), staging_->output(first + turn)));
  }
  return start_turns(first, turns, call.stream, [this, staged, first] { return carry_out_turns(*staged, first); });
}

Status TuttiCommunicator::run_group_staged(std::span<const Transfer> transfers) {
  if (health_.failed()) return health_.status();
  TUTTI_ASSIGN(const int device, check_on_device(transfers));
  TUTTI_TRY(need_staging(device));
  const Stream stream = transfers.front().stream;
  TUTTI_TRY(staging_->check(stream));
  std::size_t bytes = 0;
  for (const Transfer& t : transfers) bytes += round_up(t.count * size_of(t.type), transport::kCacheLine);
  const Result<std::byte*> block = staging_->block(bytes);
  if (!block.ok()) {
    return Status(block.status().code(),
                  fmt::format("{} groups messages of {} bytes on device memory, which go through as much pinned "
                              "memory: {}",
                              own_name_, bytes, block.status().message()));
  }
  std::byte* host = block.value();
  std::vector<Transfer> on_host(transfers.begin(), transfers.end());
  HostStaging::Fragment turn;
  for (Transfer& t : on_host) {
    const std::size_t size = t.count * size_of(t.type);
    (t.sending ? turn.in : turn.out).push_back({static_cast<std::byte*>(t.buffer), host, size});
    t.buffer = host;
    host += round_up(size, transport::kCacheLine);
  }
  const std::uint64_t number = staging_->begin(1);
  return start_turns(number, {&turn, 1}, stream, [this, number, on_host = std::move(on_host)] {
    Status status = await_stream(number);
    if (status.ok()) {
      const std::uint64_t group = announce(on_host);
      status = ended(group, transfers_.run(on_host));
    }
    staging_->end(number);
    return status;
  });
}

// The queue first: a stream takes only so much at a time, and what it waits for is the queue's.
Status TuttiCommunicator::start_turns(std::uint64_t first, std::span<const HostStaging::Fragment> turns, Stream stream,
                                      std::function<Status()> carry_out) {
  started_ = nullptr;  // groups that come after this call do not join those before it
  const auto work = queue_.start([this, carry_out = std::move(carry_out)] {
    waiter_.set_background(true);
    return carry_out();
  });
  if (!work.ok()) return health_.fail(work.status().code(), work.status().message());
  if (turns.empty()) return {};
  const Status put = staging_->put(first, turns, stream);
  return put.ok() ? put : health_.fail(put.code(), put.message());
}

Status TuttiCommunicator::carry_out_turns(const HostStagedCall& call, std::uint64_t first) {
  if (!call.uneven()) {
    // Ranks that do not have the parts in common must hear of it.
    const std::size_t cut = call.fragments() > 1 ? call.part() : 0;
    return carry_out_turns(first, call.fragments(), [&](std::size_t turn) {
      const std::uint64_t number = first + turn;
      const Call on_host = call.call(turn, staging_->input(number), staging_->output(number));
      return carry_out_turn(call.whole(), on_host, false, cut);
    });
  }
  Status status = await_stream(first);
  if (status.ok()) status = exchange_counts(call.whole(), executor::PeerCounts::kOnDevice);
  if (status.ok()) status = carry_out_uneven_turns(call, first);
  return turns_ended(first, call.fragments(), status);
}

Status TuttiCommunicator::carry_out_turns(std::uint64_t first, std::size_t turns,
                                          const std::function<Status(std::size_t)>& one) {
  Status status;
  for (std::size_t turn = 0; status.ok() && turn < turns; ++turn) {
    status = await_stream(first + turn);
    if (status.ok()) status = one(turn);
    if (status.ok()) staging_->end(first + turn);
  }
  return turns_ended(first, turns, status);
}

Status TuttiCommunicator::turns_ended(std::uint64_t first, std::size_t turns, const Status& status) {
  last_turns_ = static_cast<int>(turns);
  last_way_.clear();
  staging_->end(first + turns - 1);
  // Nobody holds this call's outcome: whatever it is, it is the communicator's.
  return status.ok() || health_.failed() ? status : failed(status);
}

Status TuttiCommunicator::carry_out_turn(const Call& whole, const Call& turn, bool across, std::size_t cut) {
  TUTTI_TRY(bound_run_ahead());
  TUTTI_ASSIGN(const Ready* ready, this->ready(turn, across));
  executor::Announcement announcement = ready->announcement;
  announcement.identity = identity_on_device(whole, cut);
  announcement.fingerprint = announcement.identity.fingerprint();
  return carry_out(*ready, turn, announcement);
}

executor::CallIdentity TuttiCommunicator::identity_on_device(const Call& call, std::size_t cut) const {
  executor::CallIdentity identity = identity_of(call, call.deterministic || options_.deterministic);
  identity.words.flags |= transport::kOnDevice;
  identity.algorithm_request ^= cut;
  return identity;
}

Status TuttiCommunicator::carry_out_uneven_turns(const HostStagedCall& staged, std::uint64_t first) {
  std::uint64_t memories = 0;
  std::size_t largest = 0;
  for (const executor::PeerCounts& counts : peer_counts_) {
    memories |= counts.largest & (executor::PeerCounts::kOnDevice | executor::PeerCounts::kOnHost);
    largest = std::max<std::size_t>(largest, counts.largest_piece());
  }
  if ((memories & executor::PeerCounts::kOnHost) != 0) return mixed_memories();
  const auto own = first == 0 ? 0 : staged.fragments();
  for (std::size_t turn = 0; largest > 0 && turn < staged.fragments_for(largest); ++turn) {
    const std::uint64_t number = first + turn;
    if (turn < own) TUTTI_TRY(await_stream(number));
    TUTTI_TRY(bound_run_ahead());
    const HostStagedCall::Pieces pieces = staged.pieces(turn, peer_counts_);
    Call data = staged.whole();
    data.send = turn < own ? staging_->input(number) : nullptr;
    data.recv = turn < own ? staging_->output(number) : nullptr;
    data.count = executor::rounded_piece(std::min(largest, staged.part()));
    TUTTI_ASSIGN(const Ready* moving, ready(data));
    const executor::UnevenPieces uneven{.rank = rank_,
                                        .send_counts = pieces.send_counts,
                                        .send_offsets = pieces.offsets,
                                        .recv_counts = pieces.recv_counts,
                                        .recv_offsets = pieces.offsets,
                                        .peer_counts = pieces.told};
    TUTTI_TRY(carry_out(*moving, data, moving->announcement, &uneven));
    if (turn < own) staging_->end(number);
  }
  return {};
}

Status TuttiCommunicator::await_stream(std::uint64_t turn) {
  const std::int64_t since = now_ns();
  while (!staging_->reached(turn)) {
    if (health_.failed()) return failed(health_.status());
    const std::int64_t now = now_ns();
    const std::int64_t waits = waits_since_ns_.load();
    if (waits != 0 && now - waits > waiter_.timeout_ns()) {
      return failed(
          Status(Code::timeout, fmt::format("{} waited {:.1f} s for its stream to come to a call on device memory",
                                            own_name_, static_cast<double>(now - waits) * 1e-9)));
    }
    if (now - since < kAwakeNs) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::nanoseconds(std::min((now - since) / 16, kLongestNapNs)));
    }
  }
  return health_.failed() ? failed(health_.status()) : Status();
}

}  // namespace tutti
