// Sends and receives: messages between pairs of ranks, any number at once. They progress independently of each other:
// each moves whenever its own peer lets it, whatever else is in progress and in which order it was started.
//
//   Batch batch;
//   TUTTI_TRY(transfers.start(messages, batch));            // more batches may be started at any time
//   while (batch.left > 0) TUTTI_TRY(transfers.progress());
//
// A small message is copied through the slots of a mailbox (mailbox.h). Of a large one only the place is sent, if the
// receiver can reach it. The receiver copies it from there and then empties the slot, by which the sender sees that it
// is done: one copy in all.
//
// Matching. A receive takes the first message of its tag, from its peer or from any; of several receives that want the
// same message the one that was started first gets it. A message that no receive wants stays in its mailbox, until a
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
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "collectives/call.h"
#include "collectives/executor/p2p/message_pool.h"
#include "collectives/executor/p2p/receive_side.h"
#include "collectives/executor/p2p/send_side.h"
#include "collectives/executor/wait/health.h"
#include "collectives/executor/wait/wait.h"
#include "transport/transport.h"

namespace tutti::executor {

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
  /// Whether all that went to remote ranks has left this one. A message is done before that: its buffer is free. But a
  /// rank that goes away computing then keeps it from its receiver.
  bool settled() { return sends_.settled(); }
  /// Moves until a batch is done, or `news` is true, or nothing is in progress and all is settled. `news` may be null.
  /// The thread that sets `news` then calls wake_any() on this rank's sleep.
  Status progress(const std::atomic<bool>* news = nullptr);
  /// Takes messages back, after a failure, whose place was sent: their buffers may be freed when this returns. Forgets
  /// all batches. If a receiver is just reading one, waits for that (half a second at most: it may be stopped).
  void drop();

  std::uint64_t bytes() const { return sends_.bytes() + receives_.bytes(); }  // moved
  /// Bytes of the unexpected messages that are kept.
  std::size_t unexpected_bytes() const { return receives_.unexpected_bytes(); }

  // For the waiter.
  bool needs(int rank) const override { return sends_.needs(rank) || receives_.needs(rank); }
  bool needs_anyone() const override { return receives_.needs_anyone(); }
  std::string text(int rank) const override;
  std::optional<Overdue> overdue(std::int64_t now_ns, std::int64_t limit_ns) override;

 private:
  bool idle() const { return sends_.idle() && receives_.idle(); }
  /// Moves what can be moved. Returns true if something has moved, or nothing is left, or there is a failure.
  bool advance();
  /// Now and then while things move: the failure of some rank, or of one batch that stands still among others.
  Status look();
  template <class Visit>
  void each_pending(Visit&& visit) const;
  std::string describe(const Message& message) const;

  Waiter& waiter_;
  Health& health_;
  const int rank_;
  const int ranks_;
  MessagePool pool_;
  SendSide sends_;
  ReceiveSide receives_;
  std::uint64_t moves_ = 0;
};

}  // namespace tutti::executor
