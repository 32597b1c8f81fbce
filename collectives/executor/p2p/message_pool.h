// The sends and receives in progress, in one array whose places are used again, and lists of them.
// How: a list links messages by their index in the pool, so a message is in one list at a time.
// Threads: one at a time, the thread that uses the Transfers.
// Limits: a reference from at() is valid until the next add() or clear().
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/call.h"

namespace tutti::executor {

/// Messages that were started together. Stays where it is until none is left, or Transfers::drop().
struct Batch {
  std::size_t left = 0;          // messages that are not done
  std::int64_t still_since = 0;  // ns: when it was first found not to have moved; 0: has moved since the last look
};

struct Message {
  Transfer transfer;
  Batch* batch = nullptr;
  std::uint64_t number = 0;       // in the order of the calls
  std::size_t done = 0;           // bytes; sending
  bool begun = false;             // sending
  std::uint64_t handed_over = 0;  // sending by place: the slot whose emptying ends it
  int next = -1;                  // in the same list
};

/// A list of messages, by their index in the pool.
struct MessageList {
  int first = -1;
  int last = -1;
  bool empty() const { return first < 0; }
};

class MessagePool {
 public:
  static constexpr int kNone = -1;

  Message& at(int index) { return messages_[static_cast<std::size_t>(index)]; }
  const Message& at(int index) const { return messages_[static_cast<std::size_t>(index)]; }
  int add(const Transfer& transfer, Batch& batch) {
    int index = static_cast<int>(messages_.size());
    if (unused_.empty()) {
      messages_.emplace_back();
    } else {
      index = unused_.back();
      unused_.pop_back();
    }
    at(index) = Message{transfer, &batch, ++numbers_};
    return index;
  }
  /// The message is done.
  void finish(int index) {
    Batch& batch = *at(index).batch;
    batch.still_since = 0;
    if (--batch.left == 0) ++finished_batches_;
    unused_.push_back(index);
  }
  void append(MessageList& list, int index) {
    at(index).next = kNone;
    (list.empty() ? list.first : at(list.last).next) = index;
    list.last = index;
  }
  /// Takes out the message behind `previous`; the first one for kNone.
  int take_after(MessageList& list, int previous) {
    int& link = previous == kNone ? list.first : at(previous).next;
    const int index = link;
    link = at(index).next;
    if (list.last == index) list.last = previous;
    return index;
  }
  template <class Visit>
  void each(const MessageList& list, Visit&& visit) const {
    for (int i = list.first; i != kNone; i = at(i).next) visit(at(i));
  }
  std::uint64_t finished_batches() const { return finished_batches_; }
  void clear() {
    messages_.clear();
    unused_.clear();
  }

 private:
  std::vector<Message> messages_;
  std::vector<int> unused_;  // of these
  std::uint64_t numbers_ = 0;
  std::uint64_t finished_batches_ = 0;
};

/// Lets each of `peers` move, and forgets those that are done. Returns true if something has moved.
template <class Move, class Ends>
bool advance_peers(std::vector<int>& peers, std::vector<Ends>& ends, Move&& move) {
  bool moved = false;
  for (std::size_t i = 0; i < peers.size();) {
    Ends& end = ends[static_cast<std::size_t>(peers[i])];
    moved = move(peers[i]) || moved;
    end.open = end.busy();
    if (end.open) {
      ++i;
    } else {
      peers[i] = peers.back();
      peers.pop_back();
    }
  }
  return moved;
}

}  // namespace tutti::executor
