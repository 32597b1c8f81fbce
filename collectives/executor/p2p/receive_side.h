// The receiving half of Transfers: which receive gets a message, and what becomes of a message that none waits for.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/call.h"
#include "collectives/executor/p2p/mailbox.h"
#include "collectives/executor/p2p/message_pool.h"
#include "collectives/executor/wait/health.h"
#include "collectives/executor/wait/wait.h"
#include "transport/transport.h"
#include "transport/wire/net_links.h"

namespace tutti::executor {

class ReceiveSide {
 public:
  /// `pending`: what names a message in errors. `streaming_above`: bytes of a message. `room`: bytes for unexpected
  /// messages.
  ReceiveSide(transport::Transport& transport, Waiter& waiter, Health& health, MessagePool& pool,
              const PendingTransfers& pending, int rank, std::size_t streaming_above, std::size_t room);

  // These move something or not; what goes wrong is in failure() then.
  /// Gives a new receive what has come already, or puts it where it waits.
  void start(int index);
  bool advance();
  /// Forgets all.
  void drop();

  const Status& failure() const { return failure_; }  // final
  bool idle() const { return receiving_.empty() && any_.empty(); }
  /// Peers from which something is in progress.
  const std::vector<int>& peers() const { return receiving_; }
  bool needs(int peer) const { return incoming_[static_cast<std::size_t>(peer)].open; }
  bool needs_anyone() const { return !any_.empty(); }
  /// Returns the word that a rank which waits for this peer alone sleeps on.
  Word& word(int peer) { return from(peer).box.filled(); }
  std::uint64_t bytes() const { return bytes_; }
  std::size_t unexpected_bytes() const { return kept_; }
  template <class Visit>
  void each_pending(Visit&& visit) const {
    for (const int peer : receiving_) {
      const Incoming& in = incoming_[static_cast<std::size_t>(peer)];
      if (in.arrival.message != MessagePool::kNone) visit(pool_.at(in.arrival.message));
      pool_.each(in.posted, visit);
    }
    pool_.each(any_, visit);
  }
  /// ", before which lies one of tag 7 ...", if a message that no receive wants is in the way of those behind it.
  std::string obstacle(int peer) const;

 private:
  struct Unexpected {
    std::int32_t tag = 0;
    std::uint8_t type = 0;
    std::uint64_t count = 0;
    std::size_t bytes = 0;
    std::unique_ptr<std::byte[]> data;
  };
  // The message whose slots are just being emptied.
  struct Arrival {
    int message = MessagePool::kNone;  // its receive
    bool unexpected = false;           // goes into the last of Incoming::unexpected instead
    std::byte* to = nullptr;
    std::size_t bytes = 0;
    std::size_t done = 0;

    bool active() const { return message != MessagePool::kNone || unexpected; }
  };
  struct Incoming {  // from one peer
    MailboxEnd box;
    transport::Board* board = nullptr;  // the peer's
    MessageList posted;                 // receives from this peer that have no message yet
    Arrival arrival;
    std::list<Unexpected> unexpected;  // in the order in which they came
    bool open = false;                 // in receiving_
    bool remote = false;

    bool busy() const { return !posted.empty() || arrival.message != MessagePool::kNone; }
  };
  struct Place {  // in a list
    int index = MessagePool::kNone;
    int previous = MessagePool::kNone;
  };

  Incoming& from(int peer) { return incoming_[static_cast<std::size_t>(peer)]; }
  void open(int peer);
  bool take_unexpected(int index, int peer);
  bool receive(int peer);
  /// Decides what becomes of the message in front of `peer`'s mailbox. Returns false if it stays there.
  bool begin_arrival(int peer, SlotHeader& header);
  bool empty_slot(int peer, SlotHeader& header);
  /// Passes on the slot that was just emptied.
  void pass_emptied(int peer);
  Place first_of(const MessageList& list, std::int32_t tag) const;
  /// Returns the receive that is to have it, no longer in its list; or kNone.
  int match(int peer, std::int32_t tag);
  bool keep(Incoming& in, const SlotHeader& header);
  static std::size_t cost(std::size_t bytes) { return bytes + sizeof(Unexpected); }
  bool has_room(std::size_t bytes) const { return kept_ <= room_ && cost(bytes) <= room_ - kept_; }
  static bool fits(std::uint64_t count, std::uint8_t type, const Transfer& receive) {
    return count == receive.count && type == static_cast<std::uint8_t>(receive.type);
  }
  void deliver(int index, int peer);
  Status mismatch(int peer, std::uint64_t count, std::uint8_t type, const Transfer& receive) const;

  transport::Transport& transport_;
  transport::NetLinks* const net_;  // null: all ranks are on this host
  Waiter& waiter_;
  Health& health_;
  MessagePool& pool_;
  const PendingTransfers& pending_;
  const int ranks_;
  const std::size_t streaming_above_;
  const std::size_t room_;
  std::size_t kept_ = 0;
  std::vector<Incoming> incoming_;
  MessageList any_;             // receives from any rank that have no message yet
  std::vector<int> receiving_;  // peers from which something is in progress
  int next_source_ = 0;         // the rank that is looked at first for a receive from any rank
  std::uint64_t bytes_ = 0;
  Status failure_;
};

}  // namespace tutti::executor
