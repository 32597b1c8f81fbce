// The flags by which ranks of one host order what they do with each other's memory. Each protocol names the functions
// that it is the outline of. Loops that wait are single looks here: all moments of a look are tried.
#include "tests/ordering/model.h"

namespace tutti::ordering::flags_test {
namespace {

/// PlanWalker::signal() and wait(): a slot is put, read, given back by a signal of the reader, and put again.
struct Signal : rl::test_suite<Signal, 2> {
  static constexpr int kOrders = 4;
  Plain slot;
  Word count, tag, back;

  void before() { count($) = tag($) = back($) = 0; }
  void thread(unsigned rank) {
    if (rank == 0) {
      put(1);
      if (back.load(acquire(1), $) >= 1) put(2);
      return;
    }
    if (count.load(acquire(2), $) != 1) return;
    RL_ASSERT(tag.load(rl::mo_relaxed, $) != 0);
    RL_ASSERT(slot($) == 1);
    back.store(1, release(3), $);
  }
  void put(int call) {
    slot($) = call;
    tag.store(call, rl::mo_relaxed, $);
    count.store(call, release(4), $);
  }
};

/// PlanWalker::signal_express() and wait_express(): the data lies beside its tag. The cell is used again when the
/// gate, which looks at the reader's record, has seen the reader in a later call.
struct Express : rl::test_suite<Express, 2> {
  static constexpr int kOrders = 4;
  Plain payload;
  Word tag, sequence_of_reader;

  void before() { tag($) = sequence_of_reader($) = 0; }
  void thread(unsigned rank) {
    if (rank == 0) {
      give(1);
      if (sequence_of_reader.load(acquire(1), $) >= 2) give(2);
      return;
    }
    if (tag.load(acquire(2), $) != 1) return;
    RL_ASSERT(payload($) == 1);
    sequence_of_reader.store(2, release(3), $);
  }
  void give(int call) {
    payload($) = call;
    tag.store(call, release(4), $);
  }
};

/// write() and snapshot() of executor/record.cc: a record that is written again while it is read is dropped. The first
/// call's lies there.
struct Record : rl::test_suite<Record, 2> {
  static constexpr int kOrders = 6;
  Word sequence, count, bytes;

  void before() { sequence($) = count($) = bytes($) = 1; }
  void thread(unsigned rank) {
    if (rank == 0) {
      sequence.store(0, rl::mo_relaxed, $);
      count.store(2, release(1), $);
      bytes.store(2, release(2), $);
      sequence.store(2, release(3), $);
      return;
    }
    const int call = sequence.load(acquire(4), $);
    const int n = count.load(acquire(5), $);
    const int b = bytes.load(acquire(6), $);
    if (call == 0 || sequence.load(rl::mo_relaxed, $) != call) return;
    RL_ASSERT(n == call);
    RL_ASSERT(b == call);
  }
};

/// CallEntry::open(): of the call in progress one acquire shows the whole record.
struct Opened : rl::test_suite<Opened, 2> {
  static constexpr int kOrders = 2;
  Word sequence, input;

  void before() { sequence($) = input($) = 0; }
  void thread(unsigned rank) {
    if (rank == 0) {
      input.store(7, rl::mo_relaxed, $);
      sequence.store(1, release(1), $);
    } else if (sequence.load(acquire(2), $) == 1) {
      RL_ASSERT(input.load(rl::mo_relaxed, $) == 7);
    }
  }
};

/// CallEntry::withdraw() and Waiter::part() on one side, open() and leave() on the other: after a failure a rank
/// takes its buffer back, which a peer must be reading no longer. The peer's fence costs it nothing: the other side's
/// membarrier() makes it.
struct Withdrawn : rl::test_suite<Withdrawn, 2> {
  static constexpr int kOrders = 4;
  Plain buffer;
  Word fingerprint, sequence_of_peer, peer_is_done;

  void before() {
    buffer($) = 1;
    fingerprint($) = 1;
    sequence_of_peer($) = peer_is_done($) = 0;
  }
  void thread(unsigned rank) {
    if (rank == 0) {
      fingerprint.store(0, rl::mo_relaxed, $);
      fence(1);
      const bool inside = sequence_of_peer.load(rl::mo_acquire, $) == 1;
      if (!inside || peer_is_done.load(acquire(3), $) == 1) buffer($) = 2;
      return;
    }
    sequence_of_peer.store(1, rl::mo_release, $);
    fence(2);
    if (fingerprint.load(rl::mo_relaxed, $) == 1) RL_ASSERT(buffer($) == 1);
    peer_is_done.store(1, release(4), $);
  }
};

/// MailboxEnd::pass(), Transfers::send_at_once() and receive(), with one slot. RegionLogs::append() and
/// CudaIpc::apply_events() do the same with events.
struct Mailbox : rl::test_suite<Mailbox, 2> {
  static constexpr int kOrders = 4;
  Plain header, payload;
  Word filled, emptied;

  void before() { filled($) = emptied($) = 0; }
  void thread(unsigned rank) {
    if (rank == 0) {
      fill(1);
      if (emptied.load(acquire(1), $) == 1) fill(2);
      return;
    }
    if (filled.load(acquire(2), $) != 1) return;
    RL_ASSERT(header($) == 1);
    RL_ASSERT(payload($) == 1);
    emptied.store(1, release(3), $);
  }
  void fill(int message) {
    header($) = message;
    payload($) = message;
    filled.store(message, release(4), $);
  }
};

/// Transfers::withdraw() and empty_slot(): a message by place is read by its receiver, or taken back by its sender,
/// who then uses the buffer again.
struct TakenBack : rl::test_suite<TakenBack, 2> {
  static constexpr int kOrders = 4;
  static constexpr int kPlace = 1, kTaken = -1;
  Plain buffer;
  Word place, filled, emptied;

  void before() { place($) = filled($) = emptied($) = 0; }
  void thread(unsigned rank) {
    if (rank == 0) {
      buffer($) = 1;
      place.store(kPlace, rl::mo_relaxed, $);
      filled.store(1, release(1), $);
      const bool mine = place($).exchange(kTaken) != kTaken;
      if (mine || emptied.load(acquire(2), $) == 1) buffer($) = 2;
      return;
    }
    if (filled.load(acquire(3), $) != 1 || place($).exchange(kTaken) == kTaken) return;
    RL_ASSERT(buffer($) == 1);
    emptied.store(1, release(4), $);
  }
};

/// Health::claim(), publish() and status(): two ranks fail, a third reads the sentence of the one that came first.
struct Failure : rl::test_suite<Failure, 3> {
  static constexpr int kOrders = 2;
  static constexpr int kWriting = -1;
  Plain text;
  Word code;

  void before() { code($) = 0; }
  void thread(unsigned rank) {
    if (rank == 2) {
      const int failed = code.load(acquire(1), $);
      if (failed > 0) RL_ASSERT(text($) == failed);
      return;
    }
    int none = 0;
    if (!code($).compare_exchange_strong(none, kWriting, rl::mo_acq_rel, rl::mo_relaxed)) return;
    text($) = static_cast<int>(rank) + 1;
    code.store(static_cast<int>(rank) + 1, release(2), $);
  }
};

/// DetachedRanks, of a Board or of the GPUs' notes: a window ends when every rank has said that it will not touch it
/// again.
struct Left : rl::test_suite<Left, 3> {
  static constexpr int kOrders = 2;
  Plain window;
  Word detached;

  void before() {
    window($) = 1;
    detached($) = 0;
  }
  void thread(unsigned rank) {
    if (rank == 0) {
      if (detached.load(acquire(1), $) == 6) window($) = 0;
      return;
    }
    RL_ASSERT(window($) == 1);
    detached.fetch_or(1 << rank, release(2), $);
  }
};

/// write(), agree_on_boards() and meet_on_boards() of collectives/communicator/shrink.cc: who finds a new set of
/// survivors does not take an earlier set's stage for that of this one.
struct SurvivorsAgreed : rl::test_suite<SurvivorsAgreed, 2> {
  static constexpr int kOrders = 4;
  static constexpr int kBegun = 0, kAgreed = 1, kExchanged = 2;
  Word alive, stage, value;

  void before() {
    alive($) = 7;
    stage($) = kExchanged;
    value($) = 7;
  }
  void thread(unsigned rank) {
    if (rank == 0) {
      stage.store(kBegun, rl::mo_relaxed, $);
      alive.store(5, release(1), $);
      stage.store(kAgreed, rl::mo_release, $);
      value.store(5, rl::mo_relaxed, $);
      stage.store(kExchanged, release(2), $);
      return;
    }
    if (alive.load(acquire(3), $) != 5) return;
    if (stage.load(acquire(4), $) == kExchanged) RL_ASSERT(value.load(rl::mo_relaxed, $) == 5);
  }
};

TEST(Ordering, ASignalShowsTheSlotAndASignalBackFreesIt) { expect_tight<Signal>(); }
TEST(Ordering, AnExpressCellShowsItsDataAndTheGateFreesIt) { expect_tight<Express>(); }
TEST(Ordering, ARecordIsReadWholeOrDropped) { expect_tight<Record>(); }
TEST(Ordering, OneAcquireShowsARecord) { expect_tight<Opened>(); }
TEST(Ordering, AWithdrawnBufferIsReadByNoRank) { expect_tight<Withdrawn>(); }
TEST(Ordering, AMailboxShowsAMessageAndIsEmptied) { expect_tight<Mailbox>(); }
TEST(Ordering, AMessageByPlaceIsTakenOnce) { expect_tight<TakenBack>(); }
TEST(Ordering, TheFirstFailureIsReadWhole) { expect_tight<Failure>(); }
TEST(Ordering, AWindowEndsAfterItsLastUse) { expect_tight<Left>(); }
TEST(Ordering, AStageIsThatOfItsSurvivors) { expect_tight<SurvivorsAgreed>(); }

}  // namespace
}  // namespace tutti::ordering::flags_test
