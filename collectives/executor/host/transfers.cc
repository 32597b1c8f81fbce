#include "collectives/executor/host/transfers.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/check.h"
#include "collectives/reduce/reduce.h"

namespace tutti::executor {

using transport::Handle;
using transport::kCacheLine;
using transport::SignalCell;

namespace {

constexpr std::size_t kFewestSlots = 4;
constexpr std::size_t kLargestSlot = std::size_t{16} << 10;
constexpr std::size_t kByPlaceBytes = 8192;        // from here on one copy by place beats two through slots
constexpr std::int64_t kWithdrawNs = 500'000'000;  // for a receiver that is just reading

// In front of each slot's payload; only the first slot of a message fills in the message's fields, the others only
// place and payload_bytes.
struct alignas(kCacheLine) SlotHeader {
  std::uint64_t message_bytes = 0;
  std::uint64_t message_count = 0;
  Handle place = 0;  // 0: the payload follows. Once sent, changed by take() only
  std::uint64_t payload_bytes = 0;
  std::uint8_t type = 0;
};

// A message by place is taken once: by its receiver, or back by its sender after a failure. What was there before.
constexpr Handle kTaken = ~Handle{0};
Handle take(std::byte* slot) {
  return std::atomic_ref<Handle>(reinterpret_cast<SlotHeader*>(slot)->place).exchange(kTaken);
}

// A copy of the header of a slot that is filled. The sender may be taking the place back at this moment.
SlotHeader header_of(std::byte* slot) {
  auto* sent = reinterpret_cast<SlotHeader*>(slot);
  return {sent->message_bytes, sent->message_count,
          std::atomic_ref<Handle>(sent->place).load(std::memory_order_relaxed), sent->payload_bytes, sent->type};
}

void raise(SignalCell& cell, std::uint64_t count, const transport::Board* of_waiter) {
  cell.count.store(count, std::memory_order_release);
  if (of_waiter->doze.sleeping.load(std::memory_order_relaxed) != 0) wake(cell.count);
}

std::size_t bytes_of(const Transfer& transfer) { return transfer.count * size_of(transfer.type); }

}  // namespace

struct Transfers::Mailbox {
  SignalCell filled;
  SignalCell emptied;
};

Transfers::Transfers(transport::Transport& transport, Waiter& waiter, Health& health, int rank,
                     std::size_t streaming_above)
    : transport_(transport), waiter_(waiter), health_(health), rank_(rank), streaming_above_(streaming_above) {
  TUTTI_CHECK_EQ(transport.sizes().mailbox % kCacheLine, std::size_t{0});
  const std::size_t room = transport.sizes().mailbox - sizeof(Mailbox);
  slots_ = std::max(kFewestSlots, room / kLargestSlot);
  payload_ = room / slots_ / kCacheLine * kCacheLine - sizeof(SlotHeader);
  TUTTI_CHECK_LE(kCacheLine, payload_);
  queues_.resize(2 * static_cast<std::size_t>(transport.sizes().ranks));
  for (int peer = 0; peer < transport.sizes().ranks; ++peer) {
    outgoing_.push_back({mailbox(peer, rank), 0});
    incoming_.push_back({mailbox(rank, peer), 0});
  }
}

Transfers::Mailbox* Transfers::mailbox(int receiver, int sender) const {
  std::byte* boxes = transport_.window(receiver).mailboxes;
  return reinterpret_cast<Mailbox*>(boxes + static_cast<std::size_t>(sender) * transport_.sizes().mailbox);
}

std::byte* Transfers::slot(Mailbox* box, std::uint64_t number) const {
  std::byte* slots = reinterpret_cast<std::byte*>(box) + sizeof(Mailbox);
  return slots + (number % slots_) * (sizeof(SlotHeader) + payload_);
}

bool Transfers::reachable_by_peer(Handle handle) const {
  const transport::Capabilities& can = transport_.capabilities();
  return can.any_pointer || can.cross_memory || transport::is_registered(handle);
}

Transfers::Progress Transfers::send_more(Active& active) {
  const Transfer& t = *active.transfer;
  Pair& pair = outgoing_[static_cast<std::size_t>(t.peer)];
  const std::uint64_t emptied = pair.box->emptied.count.load(std::memory_order_acquire);
  if (active.handed_over != 0) return emptied >= active.handed_over ? Progress::done : Progress::none;
  const std::size_t bytes = bytes_of(t);
  Progress progress = Progress::none;
  while (!active.begun || active.done < bytes) {
    if (pair.slots - emptied == slots_) return progress;
    std::byte* at = slot(pair.box, pair.slots);
    auto* header = reinterpret_cast<SlotHeader*>(at);
    if (!active.begun) {
      active.begun = true;
      *header = {bytes, t.count, 0, 0, static_cast<std::uint8_t>(t.type)};
      const Handle place = bytes >= kByPlaceBytes ? transport_.handle_of(t.buffer, bytes) : 0;
      if (place != 0 && reachable_by_peer(place)) {
        header->place = place;
        raise(pair.box->filled, ++pair.slots, transport_.window(t.peer).board);
        active.handed_over = pair.slots;
        return Progress::some;
      }
    }
    header->place = 0;  // an earlier message may have left its own here
    header->payload_bytes = std::min(payload_, bytes - active.done);
    if (bytes > 0) {  // the buffer of an empty message may be null
      std::memcpy(at + sizeof(SlotHeader), static_cast<const std::byte*>(t.buffer) + active.done,
                  header->payload_bytes);
    }
    active.done += header->payload_bytes;
    bytes_ += header->payload_bytes;
    raise(pair.box->filled, ++pair.slots, transport_.window(t.peer).board);
    progress = Progress::some;
  }
  return Progress::done;
}

Result<Transfers::Progress> Transfers::receive_more(Active& active) {
  const Transfer& t = *active.transfer;
  Pair& pair = incoming_[static_cast<std::size_t>(t.peer)];
  const std::size_t bytes = bytes_of(t);
  Progress progress = Progress::none;
  while (!active.begun || active.done < bytes) {
    if (pair.box->filled.count.load(std::memory_order_acquire) == pair.slots) return progress;
    std::byte* at = slot(pair.box, pair.slots);
    const SlotHeader header = header_of(at);
    auto* to = static_cast<std::byte*>(t.buffer) + active.done;
    std::size_t arrived = header.payload_bytes;
    if (!active.begun) {
      active.begun = true;
      if (header.message_bytes != bytes || header.type != static_cast<std::uint8_t>(t.type)) {
        return health_.fail(
            Code::mismatch,
            fmt::format("{} sends {} x {} to {}, which receives {} x {}", waiter_.name()(t.peer), header.message_count,
                        name_of(static_cast<DataType>(header.type)), waiter_.name()(rank_), t.count, name_of(t.type)));
      }
      if (header.place != 0) {
        if (take(at) == kTaken) return health_.status();
        const std::byte* from = transport_.reach(t.peer, header.place);
        if (from == nullptr) {
          const Status read = transport_.read(t.peer, header.place, 0, to, bytes);
          if (!read.ok()) return waiter_.unreachable(t.peer, read);
        } else {
          void* const destinations[] = {to};
          reduce::copy(destinations, from, bytes, bytes > streaming_above_);
        }
        arrived = bytes;
        bytes_ += bytes;
      }
    }
    if (header.place == 0 && bytes > 0) std::memcpy(to, at + sizeof(SlotHeader), arrived);
    active.done += arrived;
    raise(pair.box->emptied, ++pair.slots, transport_.window(t.peer).board);
    progress = Progress::some;
  }
  return Progress::done;
}

Result<Transfers::Progress> Transfers::advance(Active& active) {
  if (active.transfer->sending) return send_more(active);
  return receive_more(active);
}

void Transfers::enqueue(std::span<const Transfer> transfers) {
  for (const int queue : open_) queues_[static_cast<std::size_t>(queue)] = {};  // left by a failure
  open_.clear();
  active_.clear();
  for (const Transfer& t : transfers) {
    const int number = static_cast<int>(active_.size());
    const int id = 2 * t.peer + (t.sending ? 1 : 0);
    Queue& queue = queues_[static_cast<std::size_t>(id)];
    if (queue.first == kNone) {
      queue.first = number;
      open_.push_back(id);
    } else {
      active_[static_cast<std::size_t>(queue.last)].next = number;
    }
    queue.last = number;
    active_.push_back({&t});
  }
}

Result<bool> Transfers::advance() {
  bool moved = false;
  bool emptied = false;
  for (const int id : open_) {
    Queue& queue = queues_[static_cast<std::size_t>(id)];
    while (queue.first != kNone) {
      Active& active = active_[static_cast<std::size_t>(queue.first)];
      TUTTI_ASSIGN(const Progress progress, advance(active));
      moved = moved || progress != Progress::none;
      if (progress != Progress::done) break;
      queue.first = active.next;
    }
    emptied = emptied || queue.first == kNone;
  }
  if (emptied) {
    std::erase_if(open_, [this](int id) { return queues_[static_cast<std::size_t>(id)].first == kNone; });
  }
  return moved || open_.empty();
}

Status Transfers::run(std::span<const Transfer> transfers) {
  enqueue(transfers);
  Status failure;
  const auto any_progress = [&] {
    const Result<bool> moved = advance();
    if (!moved.ok()) failure = moved.status();
    return !moved.ok() || moved.value();
  };
  const auto first_of = [this](int id) -> const Active& {
    return active_[static_cast<std::size_t>(queues_[static_cast<std::size_t>(id)].first)];
  };
  any_progress();
  while (!open_.empty() && failure.ok()) {
    const Transfer& next = *first_of(open_.front()).transfer;
    const auto describe = [this, &next] {
      return fmt::format("{}({} x {}) {} {}", next.sending ? "send" : "recv", next.count, name_of(next.type),
                         next.sending ? "to" : "from", waiter_.name()(next.peer));
    };
    // What to sleep on: the counter that the other side raises.
    Pair& pair =
        next.sending ? outgoing_[static_cast<std::size_t>(next.peer)] : incoming_[static_cast<std::size_t>(next.peer)];
    Word* word = open_.size() > 1 ? nullptr : next.sending ? &pair.box->emptied.count : &pair.box->filled.count;
    peers_.clear();
    for (const int id : open_) peers_.push_back(id / 2);
    waiter_.begin_transfer(describe, peers_);
    const Status waited = waiter_.until(any_progress, next.peer, word);
    waiter_.end_transfer();
    if (!waited.ok()) failure = waited;
  }
  if (failure.ok()) return {};
  for (const int id : open_) {
    if (queues_[static_cast<std::size_t>(id)].first != kNone) withdraw(first_of(id));
  }
  return failure;
}

void Transfers::withdraw(const Active& active) {
  if (active.handed_over == 0) return;
  const int peer = active.transfer->peer;
  Mailbox* box = outgoing_[static_cast<std::size_t>(peer)].box;
  if (take(slot(box, active.handed_over - 1)) != kTaken) return;
  const std::int64_t since = now_ns();
  while (box->emptied.count.load(std::memory_order_acquire) < active.handed_over && transport_.alive(peer) &&
         now_ns() - since < kWithdrawNs) {
    sched_yield();
  }
}

}  // namespace tutti::executor
