// Sends and receives: messages between pairs of ranks, any number at once, in any order.
//
// Every ordered pair of ranks has a mailbox in the receiver's window: a ring of slots with a counter of slots filled
// (written by the sender) and one of slots emptied (written by the receiver). A small message is copied through the
// slots. Of a large one only the place is sent, where the receiver can reach it, and the receiver copies it from there
// and then empties the slot, which tells the sender that it is done: one copy in all.
//
// Messages of a pair and direction are matched in the order of the calls. Threads: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/call.h"
#include "collectives/executor/host/health.h"
#include "collectives/executor/host/wait.h"
#include "transport/transport.h"

namespace tutti::executor {

class Transfers {
 public:
  /// `streaming_above`: bytes of a message.
  Transfers(transport::Transport& transport, Waiter& waiter, Health& health, int rank, std::size_t streaming_above);

  /// Carries out all transfers; returns when each is done. Any failure is final for the communicator.
  Status run(std::span<const Transfer> transfers);

  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Mailbox;
  struct Pair {  // this rank and one peer, one direction
    Mailbox* box = nullptr;
    std::uint64_t slots = 0;  // filled (sending) or emptied (receiving) so far
  };
  struct Active {
    const Transfer* transfer = nullptr;
    std::size_t done = 0;  // bytes
    bool begun = false;
    std::uint64_t handed_over = 0;  // sending by place: the slot whose emptying ends it
    int next = kNone;               // of the same queue
  };
  // The messages of a pair and direction that are not done, in the order of the calls: only the first one moves.
  struct Queue {
    int first = kNone;  // in active_
    int last = kNone;
  };
  static constexpr int kNone = -1;
  enum class Progress { none, some, done };

  void enqueue(std::span<const Transfer> transfers);
  /// Moves what can be moved. True when something has moved, or nothing is left.
  Result<bool> advance();
  Result<Progress> advance(Active& active);
  Progress send_more(Active& active);
  Result<Progress> receive_more(Active& active);
  /// After a failure: takes a message back whose place was sent, since its buffer may be freed when run() returns; when
  /// the receiver is just reading it, waits for that (half a second at most: it may be stopped).
  void withdraw(const Active& active);
  bool reachable_by_peer(transport::Handle handle) const;
  Mailbox* mailbox(int receiver, int sender) const;
  std::byte* slot(Mailbox* box, std::uint64_t number) const;

  transport::Transport& transport_;
  Waiter& waiter_;
  Health& health_;
  int rank_;
  std::size_t streaming_above_;
  std::uint64_t slots_;         // of a mailbox
  std::size_t payload_;         // bytes in a slot
  std::vector<Active> active_;  // of the call in progress; kept for their memory, as the three below
  std::vector<Queue> queues_;   // index 2 * peer + sending
  std::vector<int> open_;       // queues that are not empty
  std::vector<int> peers_;      // of these
  std::vector<Pair> outgoing_;
  std::vector<Pair> incoming_;
  std::uint64_t bytes_ = 0;
};

}  // namespace tutti::executor
