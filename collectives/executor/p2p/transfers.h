// Sends and receives: messages between pairs of ranks, any number at once. They progress independently of each other:
// each moves whenever its own peer lets it, whatever else is in progress and in which order it was started.
//
//   Batch batch;
//   TUTTI_TRY(transfers.start(messages, batch));            // more batches may be started at any time
//   while (batch.left > 0) TUTTI_TRY(transfers.progress());
//
// A small message is copied through the slots of a mailbox (mailbox.h). Of a large one only the place is sent, where
// the receiver can reach it, and the receiver copies it from there and then empties the slot, which tells the sender
// that it is done: one copy in all.
//
// Matching. A receive takes the first message of its tag, from its peer or from any; of several receives that want the
// same message the one that was started first gets it. A message that nobody wants stays in its mailbox, until a
// receive waits for something behind it: then it is taken out into memory of this rank's own (it was *unexpected*), at
// most `room` bytes in all; where there is no room, it stays, and the receive waits. Receives from any rank look at the
// ranks in turn, so that none is passed over for ever.
//
// Deadlines. A batch is overdue when none of its messages has moved for the waiter's timeout.
//
// Threads: one at a time. Any failure is final for the communicator; then drop() before anything else.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/call.h"
#include "collectives/executor/p2p/mailbox.h"
#include "collectives/executor/wait/health.h"
#include "collectives/executor/wait/wait.h"
#include "transport/transport.h"

namespace tutti::executor {

/// Messages that were started together. Stays where it is until none is left, or drop().
struct Batch {
  std::size_t left = 0;          // messages that are not done
  std::int64_t still_since = 0;  // ns: when it was first found not to have moved; 0: has moved since the last look
};

class Transfers final : public PendingTransfers {
 public:
  /// `streaming_above`: bytes of a message. `room`: bytes for unexpected messages.
  Transfers(transport::Transport& transport, Waiter& waiter, Health& health, int rank, std::size_t streaming_above,
            std::size_t room);

  /// Carries out all transfers; returns when each is done.
  Status run(std::span<const Transfer> transfers);
  /// Puts them behind those that are in progress. The messages are copied, their buffers are not.
  Status start(std::span<const Transfer> transfers, Batch& batch);
  /// Moves what can be moved now.
  Status poll();
  /// Whether all that went to remote ranks has left this one. A message is done before that: its buffer is free. But
  /// who goes away computing then keeps it from its receiver.
  bool settled();
  /// Moves until a batch is done, or `news` is true (null: nobody has news), or nothing is in progress and all is
  /// settled. Whoever sets `news` then calls wake_any() on this rank's doze.
  Status progress(const std::atomic<bool>* news = nullptr);
  /// After a failure: takes messages back whose place was sent, since their buffers may be freed when this returns, and
  /// forgets all batches. When a receiver is just reading one, waits for that (half a second at most: it may be
  /// stopped).
  void drop();

  std::uint64_t bytes() const { return bytes_; }  // moved
  /// Bytes of the unexpected messages that are kept.
  std::size_t unexpected_bytes() const { return kept_; }

  // For the waiter.
  bool needs(int rank) const override;
  bool needs_anyone() const override { return any_.first != kNone; }
  std::string text(int rank) const override;
  std::optional<Overdue> overdue(std::int64_t now_ns, std::int64_t limit_ns) override;

 private:
  static constexpr int kNone = -1;

  struct Message {  // in messages_, which are used again
    Transfer transfer;
    Batch* batch = nullptr;
    std::uint64_t number = 0;       // in the order of the calls
    std::size_t done = 0;           // bytes; sending
    bool begun = false;             // sending
    std::uint64_t handed_over = 0;  // sending by place: the slot whose emptying ends it
    int next = kNone;               // in the same list
  };
  struct List {
    int first = kNone;
    int last = kNone;
  };
  struct Outgoing {  // to one peer
    MailboxEnd box;
    transport::Board* board = nullptr;  // the peer's
    List waiting;                       // to be put into slots: only the first one moves
    List handed_over;                   // by place, until they are read
    bool open = false;                  // in sending_
    bool remote = false;

    bool busy() const { return waiting.first != kNone || handed_over.first != kNone; }
  };
  struct Unexpected {
    std::int32_t tag = 0;
    std::uint8_t type = 0;
    std::uint64_t count = 0;
    std::size_t bytes = 0;
    std::unique_ptr<std::byte[]> data;
  };
  // The message whose slots are just being emptied.
  struct Arrival {
    int message = kNone;      // its receive
    bool unexpected = false;  // goes into the last of Incoming::unexpected instead
    std::byte* to = nullptr;
    std::size_t bytes = 0;
    std::size_t done = 0;

    bool active() const { return message != kNone || unexpected; }
  };
  struct Incoming {  // from one peer
    MailboxEnd box;
    transport::Board* board = nullptr;  // the peer's
    List posted;                        // receives from this peer that have no message yet
    Arrival arrival;
    std::list<Unexpected> unexpected;  // in the order in which they came
    bool open = false;                 // in receiving_
    bool remote = false;

    bool busy() const { return posted.first != kNone || arrival.message != kNone; }
  };

  Outgoing& to(int peer) { return outgoing_[static_cast<std::size_t>(peer)]; }
  Incoming& from(int peer) { return incoming_[static_cast<std::size_t>(peer)]; }
  Message& at(int index) { return messages_[static_cast<std::size_t>(index)]; }
  const Message& at(int index) const { return messages_[static_cast<std::size_t>(index)]; }
  int add(const Transfer& transfer, Batch& batch);
  void append(List& list, int index);
  int take_after(List& list, int previous);
  bool idle() const { return sending_.empty() && receiving_.empty() && any_.first == kNone; }
  void open_sending(int peer);
  void open_receiving(int peer);
  void finish(int index);
  /// Moves what can be moved. True when something has moved, or nothing is left, or failure_ is one.
  bool advance();
  /// Of the peers in progress; forgets those that are done.
  template <class Move, class Ends>
  bool advance(std::vector<int>& peers, std::vector<Ends>& ends, Move&& move);

  // Sending.
  /// The commonest message: small, with room for it, and nothing before it. It is not even put in the queue.
  bool send_at_once(const Transfer& transfer);
  bool send(int peer);
  enum class Sent { nothing, some, handed_over, all };
  Sent send_more(int peer, Message& message);
  bool reachable_by_peer(const Outgoing& out, transport::Handle handle) const;
  /// The slot that was just filled, or emptied.
  void pass_filled(int peer);
  void pass_emptied(int peer);

  // Receiving.
  // These move something or not; what goes wrong is in failure_ then.
  /// Gives a new receive what has come already, or puts it where it waits.
  void post(int index);
  bool take_unexpected(int index, int peer);
  bool receive(int peer);
  /// What becomes of the message in front of `peer`'s mailbox? False: it stays there.
  bool begin_arrival(int peer, SlotHeader& header);
  bool empty_slot(int peer, SlotHeader& header);
  struct Place {  // in a list
    int index = kNone;
    int previous = kNone;
  };
  Place first_of(const List& list, std::int32_t tag) const;
  /// The receive that is to have it, no longer in its list; or kNone.
  int match(int peer, std::int32_t tag);
  bool keep(Incoming& in, const SlotHeader& header);
  static std::size_t cost(std::size_t bytes) { return bytes + sizeof(Unexpected); }
  bool has_room(std::size_t bytes) const { return kept_ <= room_ && cost(bytes) <= room_ - kept_; }
  static bool fits(std::uint64_t count, std::uint8_t type, const Transfer& receive) {
    return count == receive.count && type == static_cast<std::uint8_t>(receive.type);
  }
  void deliver(int index, int peer);

  // Ends (transfers_ends.cc).
  /// Now and then while things move: whether somebody has failed, and whether one batch stands still among others.
  Status look();
  Status mismatch(int peer, std::uint64_t count, std::uint8_t type, const Transfer& receive) const;
  void withdraw(const Outgoing& out, const Message& message);
  template <class Visit>
  void each_pending(Visit&& visit) const;
  std::string describe(const Message& message) const;

  transport::Transport& transport_;
  transport::FarLinks* const net_;  // null: all ranks are on this host
  Waiter& waiter_;
  Health& health_;
  const int rank_;
  const int ranks_;
  const std::size_t streaming_above_;
  const std::size_t room_;
  std::size_t kept_ = 0;
  std::vector<Message> messages_;
  std::vector<int> unused_;  // of these
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  List any_;                    // receives from any rank that have no message yet
  std::vector<int> sending_;    // peers to which something is in progress
  std::vector<int> receiving_;  // likewise
  int turn_ = 0;                // who is looked at first for a receive from any rank
  std::uint64_t numbers_ = 0;
  std::uint64_t finished_batches_ = 0;
  std::uint64_t turns_ = 0;
  std::uint64_t bytes_ = 0;
  std::vector<transport::Ticket> unsettled_;  // of what went to remote ranks
  Status failure_;                            // final
};

}  // namespace tutti::executor
