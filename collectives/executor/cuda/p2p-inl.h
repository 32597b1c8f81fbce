// Carries a list of messages (p2p.h): host and device run this same code; see reduce-inl.h for what a Block is.
// How: a block looks at its units in turn, and moves the next chunk of each that has a free slot or a filled one.
// Errors: Failure (launch.h) in the host's words, once: message, deadline or aborted. The block then ends.
// Threads: all threads of a block call run(); thread 0 decides for each unit, and all of them copy.
#pragma once

#include "collectives/executor/cuda/launch.h"
#include "collectives/executor/cuda/p2p.h"
#include "collectives/executor/cuda/reduce-inl.h"

namespace tutti::executor::cuda {

/// Memory that the threads of a block share.
struct P2pShared {
  enum Action : std::uint32_t { wait, go, give_up };

  Pass pass;
  Action action = wait;  // what the block does about the unit in question
  // By unit of this block: where it stands.
  std::uint32_t message[kMostUnits];
  std::uint64_t chunk[kMostUnits];
  std::uint32_t done[kMostUnits];
};

template <class Block>
class P2pRunner : public Block {
 public:
  template <class... Args>
  TUTTI_MEMBER P2pRunner(const P2pArguments& arguments, Args&&... args)
      : Block(static_cast<Args&&>(args)...), a_(arguments), p2p_(*arguments.p2p), own_(window(arguments.rank)) {}

  TUTTI_MEMBER void run() {
    if (a_.mark != 0 && this->index() == 0 && this->thread() == 0) this->store(&a_.host->p2p, a_.mark);
    const int all = p2p_.tasks * p2p_.strips;
    const int first = static_cast<int>(this->index());
    const int step = static_cast<int>(this->blocks());
    const int units = first < all ? (all - first + step - 1) / step : 0;
    for (int k = static_cast<int>(this->thread()); k < units; k += static_cast<int>(this->threads())) {
      start(k, first + k * step);
    }
    this->sync();
    std::uint64_t since = 0;
    for (std::uint32_t turns = 1;; ++turns) {
      int left = 0;
      bool moved = false;
      int peer = 0;
      for (int k = 0; k < units; ++k) {
        if (this->shared().done[k] != 0) continue;
        const Unit unit = unit_of(first + k * step);
        ++left;
        peer = unit.task.peer;
        if (this->thread() == 0) this->shared().action = look(unit, k);
        this->sync();
        const P2pShared::Action action = this->shared().action;
        if (action == P2pShared::give_up) return;
        if (action == P2pShared::go) {
          move_chunk(unit, k);
          moved = true;
        }
        this->sync();  // the next unit may change what has been read here
      }
      if (left == 0) return;
      if (moved) {
        since = 0;
        turns = 0;
      } else if (turns % Block::kTurnsBetweenLooks == 0) {
        if (this->thread() == 0 && !may_wait(peer, since)) this->shared().action = P2pShared::give_up;
        this->sync();
        if (this->shared().action == P2pShared::give_up) return;
        this->sync();
      }
    }
  }

  /// reduce-inl.h needs it; there are no flagged lines here.
  template <class Come>
  TUTTI_MEMBER bool await_line(Come&&, std::uint8_t) {
    return false;
  }

 private:
  struct Unit {
    P2pTask task;
    int strip;
  };

  TUTTI_MEMBER std::uint64_t window(int rank) const { return a_.peers[rank].window; }
  TUTTI_MEMBER transport::DeviceState* state() const { return reinterpret_cast<transport::DeviceState*>(own_); }
  TUTTI_MEMBER transport::DeviceSignal* signal_at(std::uint64_t at, int peer, int strip, int channel) const {
    return reinterpret_cast<transport::DeviceSignal*>(at + a_.sizes.p2p_signals_at()) +
           a_.sizes.p2p_index(peer, strip, channel);
  }
  TUTTI_MEMBER transport::DeviceLink* link(const Unit& unit) const {
    return reinterpret_cast<transport::DeviceLink*>(own_ + a_.sizes.p2p_links_at()) +
           a_.sizes.p2p_index(unit.task.peer, unit.strip, 0);
  }
  TUTTI_MEMBER Unit unit_of(int number) const {
    const auto* tasks = reinterpret_cast<const P2pTask*>(reinterpret_cast<const char*>(&p2p_) + p2p_.tasks_at);
    return {tasks[number / p2p_.strips], number % p2p_.strips};
  }
  TUTTI_MEMBER const P2pMessage& message(const Unit& unit, std::uint32_t m) const {
    return reinterpret_cast<const P2pMessage*>(reinterpret_cast<const char*>(&p2p_) +
                                               p2p_.messages_at)[unit.task.first + m];
  }
  TUTTI_MEMBER P2pPart part(const Unit& unit, std::uint32_t m) const {
    return p2p_part(message(unit, m).bytes, unit.strip, p2p_.most, a_.sizes.p2p_bytes);
  }

  /// Sets unit k to its first chunk, or to that of the round.
  TUTTI_SLOW void start(int k, int number) {
    const Unit unit = unit_of(number);
    std::uint64_t skip = a_.one_round != 0 ? a_.round : 0;
    std::uint32_t m = 0;
    for (; m < unit.task.messages; ++m) {
      const std::uint64_t chunks = part(unit, m).chunks;
      if (skip < chunks) break;
      skip -= chunks;
    }
    P2pShared& shared = this->shared();
    shared.message[k] = m;
    shared.chunk[k] = skip;
    const bool other_way = a_.one_round != 0 && unit.task.sending != a_.sending;
    shared.done[k] = m == unit.task.messages || other_way ? 1 : 0;
  }

  /// Returns whether the unit's next chunk can be carried. Called by one thread.
  TUTTI_SLOW P2pShared::Action look(const Unit& unit, int k) {
    const transport::DeviceLink* mine = link(unit);
    const int peer = unit.task.peer;
    if (unit.task.sending != 0) {
      const std::uint64_t free = this->load_acquire(&signal_at(own_, peer, unit.strip, 1)->count);
      return mine->sent - free < transport::kP2pSlots ? P2pShared::go : P2pShared::wait;
    }
    if (this->load_acquire(&signal_at(own_, peer, unit.strip, 0)->count) <= mine->seen) return P2pShared::wait;
    if (aliased(peer)) this->fence_alias();
    const auto* header =
        reinterpret_cast<const transport::P2pHeader*>(own_ + a_.sizes.p2p_slot(peer, unit.strip, mine->seen));
    const P2pMessage& expected = message(unit, this->shared().message[k]);
    if (header->count == expected.count && header->type == expected.type) return P2pShared::go;
    transport::DeviceVerdict verdict;
    verdict.own.count = expected.count;
    verdict.own.what = expected.type;
    verdict.other.count = header->count;
    verdict.other.what = header->type;
    fail(Failure::message, peer, verdict);
    return P2pShared::give_up;
  }

  /// Copies the chunk with all threads; one then sends the signal.
  TUTTI_MEMBER void move_chunk(const Unit& unit, int k) {
    P2pShared& shared = this->shared();
    const P2pMessage& m = message(unit, shared.message[k]);
    const P2pPart p = part(unit, shared.message[k]);
    const std::uint64_t done = shared.chunk[k] * a_.sizes.p2p_bytes;
    const int peer = unit.task.peer;
    const bool sending = unit.task.sending != 0;
    transport::DeviceLink* mine = link(unit);
    if (this->thread() == 0) {
      const std::uint64_t slot = sending ? window(peer) + a_.sizes.p2p_slot(a_.rank, unit.strip, mine->sent)
                                         : own_ + a_.sizes.p2p_slot(peer, unit.strip, mine->seen);
      const std::uint64_t there = m.address + p.offset + done;
      const std::uint64_t here = slot + transport::kDeviceLine;
      Pass& pass = shared.pass;
      pass.bytes = p.bytes - done < a_.sizes.p2p_bytes ? p.bytes - done : a_.sizes.p2p_bytes;
      pass.sources = pass.destinations = 1;
      pass.entries[0].address = sending ? there : here;
      pass.entries[1].address = sending ? here : there;
      pass.entries[0].form = form_of(pass.entries[0].address);
      pass.entries[1].form = form_of(pass.entries[1].address);
      if (sending) {
        auto* header = reinterpret_cast<transport::P2pHeader*>(slot);
        header->count = m.count;
        header->type = m.type;
      }
    }
    this->sync();
    copy_pass(*this, shared.pass);
    this->sync();  // the signal is behind what all threads have done
    if (this->thread() != 0) return;
    if (aliased(peer)) this->fence_alias();
    if (sending) {
      mine->sent += 1;
      this->store_release(&signal_at(window(peer), a_.rank, unit.strip, 0)->count, mine->sent);
    } else {
      mine->seen += 1;
      this->store_release(&signal_at(window(peer), a_.rank, unit.strip, 1)->count, mine->seen);
    }
    if (a_.one_round != 0 || advance(unit, k)) shared.done[k] = 1;
  }

  /// Returns true if that was the unit's last chunk.
  TUTTI_SLOW bool advance(const Unit& unit, int k) {
    P2pShared& shared = this->shared();
    if (++shared.chunk[k] < part(unit, shared.message[k]).chunks) return false;
    shared.chunk[k] = 0;
    while (++shared.message[k] < unit.task.messages) {
      if (part(unit, shared.message[k]).chunks > 0) return false;  // others have no part in this strip
    }
    return true;
  }

  TUTTI_MEMBER bool aliased(int peer) const { return (a_.peers[peer].flags & transport::kAliased) != 0; }

  TUTTI_SLOW bool may_wait(int peer, std::uint64_t& since) {
    if (this->load(&state()->failed) != 0) return false;
    transport::DeviceVerdict verdict;
    if (this->load(&a_.host->abort) != 0) return fail(Failure::aborted, peer, verdict);
    const std::uint64_t now = this->now_ns();
    if (since == 0) since = now;
    verdict.waited_ns = now - since;
    if (verdict.waited_ns > this->load(&a_.host->limit_ns)) return fail(Failure::deadline, peer, verdict);
    this->relax();
    return true;
  }

  TUTTI_SLOW bool fail(Failure kind, int peer, const transport::DeviceVerdict& details) {
    if (!this->claim(&state()->failed)) return false;
    transport::DeviceVerdict* verdict = &a_.host->verdict;
    this->store(&verdict->kind, static_cast<std::uint64_t>(kind));
    this->store(&verdict->peer, static_cast<std::uint64_t>(peer));
    this->store(&verdict->call, 0);  // messages have no number
    this->store(&verdict->waited_ns, details.waited_ns);
    this->store(&verdict->own.count, details.own.count);
    this->store(&verdict->own.what, details.own.what);
    this->store(&verdict->other.count, details.other.count);
    this->store(&verdict->other.what, details.other.what);
    this->store_release(&verdict->state, 1);
    return false;
  }

  const P2pArguments& a_;
  const P2pList& p2p_;
  const std::uint64_t own_;
};

}  // namespace tutti::executor::cuda
