// The control half of a walker: one thread block that carries out one strip of one lane of a program (program.h), with
// its peers' walkers in other kernels. Host and device run this same code; see reduce-inl.h for what a Block is.
//
// A call, in every block: read its number from the window; block 0 announces it to all; the gate: all ranks have entered
// the call before. Then this rank may touch the half of scratch that call k - 2 used, and the cells of its parity, since
// whoever has entered call k - 1 is done with call k - 2. Then the steps. The last block to end writes the number back,
// so the next kernel, or the next replay of a graph, finds it.
//
// Why each access has the order and scope that it has: docs/cuda.md.
#pragma once

#include "collectives/executor/cuda/launch.h"
#include "collectives/executor/cuda/reduce-inl.h"
#include "collectives/executor/history.h"

namespace tutti::executor::cuda {

/// What the threads of a block share.
struct Shared {
  struct Opened {
    std::uint64_t input = 0;
    std::uint64_t output = 0;
    double factor = 1.0;
  };
  Pass passes[2];  // in turns: one is filled while slow threads are busy with the other
  Opened opened[transport::kMostDeviceRanks];
};

/// `kReduces`: false leaves the reductions out (kernel of movements only).
template <class Block, DataType kType, bool kReduces>
class Walker : public Block {
 public:
  template <class... Args>
  TUTTI_MEMBER Walker(const LaunchArguments& arguments, Args&&... args)
      : Block(static_cast<Args&&>(args)...), a_(arguments), own_(window(a_.rank)) {}

  TUTTI_MEMBER void run() {
    State* state = this->state();
    call_ = this->load(&state->sequence) + 1;
    previous_history_ = this->load(&state->history);
    history_ = history_of(previous_history_, a_.fingerprint);
    if (this->load(&state->failed) == 0) {
      if (this->index() == 0 && (!a_.segment.on || a_.segment.begins)) announce();
      if (a_.segment.on) {
        begin(a_.first);
        walk_segment();
      } else if (gate()) {
        const Program* program = choose();
        if (program != nullptr && this->index() < static_cast<std::uint32_t>(program->lanes * program->strips)) {
          begin(program);
          walk();
        }
      }
    }
    leave();
  }

  /// Of reduce-inl.h: until `come` says so.
  template <class Come>
  TUTTI_MEMBER bool await_line(Come&& come, std::uint8_t peer) {
    return until(come, peer);
  }

 private:
  using State = transport::DeviceState;
  using Call = transport::DeviceCall;
  using Signal = transport::DeviceSignal;
  using Link = transport::DeviceLink;

  // ---- Where things are

  TUTTI_MEMBER std::uint64_t window(int rank) const { return a_.peers[rank].window; }
  TUTTI_MEMBER State* state() const { return reinterpret_cast<State*>(own_); }
  TUTTI_MEMBER Call* call_of(std::uint64_t at, int sender, std::uint64_t call) const {
    return reinterpret_cast<Call*>(at + a_.sizes.call_offset(sender, call));
  }
  TUTTI_MEMBER Signal* signal_at(std::uint64_t at, int sender, int channel) const {
    return reinterpret_cast<Signal*>(at + a_.sizes.signals_at()) +
           a_.sizes.link_index(sender, link_lane(), channel);
  }
  TUTTI_MEMBER int link_lane() const { return a_.segment.on ? 0 : static_cast<int>(this->index()); }
  TUTTI_MEMBER Link* link(int peer, int channel) const {
    return reinterpret_cast<Link*>(own_ + a_.sizes.links_at()) +
           a_.sizes.link_index(peer, link_lane(), channel);
  }
  TUTTI_MEMBER std::uint64_t cell(int at, int sender) const {
    return window(at) + a_.sizes.cell_offset(sender, call_) +
           static_cast<std::uint64_t>(strip_) * p_->cell_strip_bytes * 2;
  }
  template <class T>
  TUTTI_MEMBER const T* array(std::uint32_t at) const {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(p_) + at);
  }

  // ---- Waiting, and how it fails

  template <class Holds>
  TUTTI_MEMBER bool until(Holds&& holds, int peer) {
    std::uint64_t since = 0;
    for (std::uint32_t turns = 1; !holds(); ++turns) {
      if (turns % Block::kTurnsBetweenLooks == 0 && !may_wait(peer, since)) return false;
    }
    return true;
  }

  /// Now and then in a long wait, which began at `since` (0: not yet looked at the clock).
  TUTTI_SLOW bool may_wait(int peer, std::uint64_t& since) {
    if (this->load(&state()->failed) != 0) return false;
    if (this->load(&a_.host->abort) != 0) return fail(Failure::aborted, peer, call_, 0);
    const std::uint64_t now = this->now_ns();
    if (since == 0) since = now;
    if (now - since > this->load(&a_.host->limit_ns)) return fail(Failure::deadline, peer, call_, now - since);
    this->relax();
    return true;
  }

  TUTTI_SLOW bool fail(Failure kind, int peer, std::uint64_t call, std::uint64_t waited_ns) {
    if (!this->claim(&state()->failed)) return false;  // somebody has told already
    transport::DeviceVerdict* verdict = &a_.host->verdict;
    this->store(&verdict->kind, static_cast<std::uint64_t>(kind));
    this->store(&verdict->peer, static_cast<std::uint64_t>(peer));
    this->store(&verdict->call, call);
    this->store(&verdict->waited_ns, waited_ns);
    std::uint64_t absent = 0;
    for (int rank = 0; rank < a_.sizes.ranks; ++rank) {
      if (this->load(&call_of(own_, rank, call)->sequence) < call) absent |= std::uint64_t{1} << rank;
    }
    this->store(&verdict->absent, absent);
    tell(&verdict->own, call_of(own_, a_.rank, call));
    tell(&verdict->other, call_of(own_, peer, call));
    this->store_release(&verdict->state, 1);
    return false;
  }

  TUTTI_MEMBER void tell(Call* to, const Call* from) {
    auto* words = reinterpret_cast<std::uint64_t*>(to);
    const auto* values = reinterpret_cast<const std::uint64_t*>(from);
    for (std::size_t i = 0; i < sizeof(Call) / sizeof(std::uint64_t); ++i) this->store(words + i, this->load(values + i));
  }

  TUTTI_MEMBER bool aliased(int peer) const { return (a_.peers[peer].flags & transport::kAliased) != 0; }

  /// Until `peer` has entered `call`, the present one or the one before; and that it made the same calls until then.
  TUTTI_SLOW bool see_entered(int peer, std::uint64_t call) {
    const Call* theirs = call_of(own_, peer, call);
    if (!until([&] { return this->load_acquire(&theirs->sequence) >= call; }, peer)) return false;
    if (aliased(peer)) this->fence_alias();
    if (this->load(&theirs->history) == (call == call_ ? history_ : previous_history_)) return true;
    return fail(Failure::mismatch, peer, call, 0);
  }

  // ---- The call's beginning and end

  TUTTI_MEMBER void announce() {
    if ((call_ % kCleanEvery == 1 || call_ % kCleanEvery == 2) && call_ > 2) {
      // Nobody writes to the cells of the other parity before this rank has entered the present call.
      clean(call_ + 1);
    }
    if (this->thread() == 0) {
      this->store(&a_.host->entered_ns, this->now_ns());
      this->store(&a_.host->entered, call_);
    }
    for (int peer = static_cast<int>(this->thread()); peer < a_.sizes.ranks; peer += static_cast<int>(this->threads())) {
      Call* record = call_of(window(peer), a_.rank, call_);
      this->store(&record->history, history_);
      this->store(&record->input, a_.announcement.input);
      this->store(&record->output, a_.announcement.output);
      this->store(&record->factor, a_.announcement.factor);
      this->store(&record->what, a_.announcement.what);
      this->store(&record->count, a_.announcement.count);
      this->store(&record->flags, a_.announcement.flags);
      if (aliased(peer)) this->fence_alias();
      this->store_release(&record->sequence, call_);
    }
  }

  TUTTI_SLOW void clean(std::uint64_t parity) {
    const std::uint64_t words = a_.sizes.cell_bytes() / sizeof(std::uint64_t);
    for (int sender = 0; sender < a_.sizes.ranks; ++sender) {
      auto* cell = reinterpret_cast<std::uint64_t*>(own_ + a_.sizes.cell_offset(sender, parity));
      for (std::uint64_t i = this->thread(); i < words; i += this->threads()) this->store(cell + i, 0);
    }
    this->sync();  // the announcement is behind all of it
  }

  TUTTI_MEMBER bool gate() {
    bool well = true;
    for (int peer = static_cast<int>(this->thread()); call_ > 1 && peer < a_.sizes.ranks;
         peer += static_cast<int>(this->threads())) {
      well = well && see_entered(peer, call_ - 1);
    }
    return !this->any(!well);
  }

  TUTTI_MEMBER const Program* choose() {
    if (a_.if_plain == nullptr && a_.if_in_place == nullptr) return a_.first;
    bool well = true;
    std::uint64_t flags = 0;
    for (int peer = static_cast<int>(this->thread()); peer < a_.sizes.ranks; peer += static_cast<int>(this->threads())) {
      well = well && see_entered(peer, call_);
      if (well) flags |= this->load(&call_of(own_, peer, call_)->flags);
    }
    if (this->any(!well)) return nullptr;
    const bool in_place = this->any((flags & transport::kDeviceInPlace) != 0);
    const bool plain = this->any((flags & transport::kDevicePlain) != 0);
    if (in_place && a_.if_in_place != nullptr) return a_.if_in_place;
    return plain && a_.if_plain != nullptr ? a_.if_plain : a_.first;
  }

  TUTTI_MEMBER void leave() {
    this->sync();  // behind all that this block's threads have done
    if (this->thread() != 0) return;
    State* state = this->state();
    if (this->add(&state->exits, 1) + 1 != this->blocks()) return;
    this->store(&state->exits, 0);
    if (this->load(&state->failed) != 0) return;
    if (a_.segment.on) {
      give_signals();
      if (!a_.segment.ends) return;
    }
    this->store(&state->history, history_);
    this->store(&state->sequence, call_);
    this->store(&a_.host->finished, call_);
  }

  // ---- The steps

  TUTTI_MEMBER void begin(const Program* program) {
    p_ = program;
    strip_ = static_cast<int>(this->index()) % p_->strips;
    tag_ = tag_of(history_, call_);
  }

  /// Whatever this segment waits for has come before its kernel was launched: one block looks whether it is of this
  /// call, and for the others the launch is behind it.
  TUTTI_MEMBER void walk_segment() {
    const auto* steps = array<ProgramStep>(p_->steps_at) + array<ProgramLane>(p_->lanes_at)->steps;
    for (std::uint32_t s = a_.segment.first_step; s < a_.segment.end_step; ++s) {
      const ProgramStep& now = steps[s];
      if (!passes(now.guard, a_.segment.round) || now.verb == Verb::signal) continue;
      if (now.verb == Verb::wait && this->index() != 0) continue;
      if (!step(now, a_.segment.round)) return;
    }
  }

  /// By the last block's first thread: all data of the segment is behind the others' exits.
  TUTTI_SLOW void give_signals() {
    const auto* steps = array<ProgramStep>(p_->steps_at) + array<ProgramLane>(p_->lanes_at)->steps;
    for (std::uint32_t s = a_.segment.first_step; s < a_.segment.end_step; ++s) {
      const ProgramStep& now = steps[s];
      if (!passes(now.guard, a_.segment.round) || now.verb != Verb::signal) continue;
      for (std::uint32_t i = 0; i < now.peer_count; ++i) {
        signal(array<std::int32_t>(p_->peers_at)[now.peers + i], now.channel);
      }
    }
  }

  TUTTI_MEMBER void walk() {
    const ProgramLane lane = array<ProgramLane>(p_->lanes_at)[static_cast<int>(this->index()) / p_->strips];
    const auto* steps = array<ProgramStep>(p_->steps_at) + lane.steps;
    for (int round = 0; round < p_->rounds; ++round) {
      for (std::uint32_t s = 0; s < lane.step_count; ++s) {
        if (passes(steps[s].guard, round) && !step(steps[s], round)) return;
      }
    }
  }

  // plan::Guard
  TUTTI_MEMBER bool passes(std::uint8_t guard, int round) const {
    return guard == 0 || (guard == 1 ? round >= 2 : round + 2 < p_->rounds);
  }

  TUTTI_MEMBER bool step(const ProgramStep& s, int round) {
    switch (s.verb) {
      case Verb::move:
      case Verb::reduce: return data(s, round);
      case Verb::signal: this->sync(); break;  // behind what all threads have done before it
      case Verb::flag: this->sync(); break;    // what it tells is that the rank is here
      default: break;
    }
    bool well = true;
    const auto* peers = array<std::int32_t>(p_->peers_at) + s.peers;
    for (std::uint32_t i = this->thread(); i < s.peer_count; i += this->threads()) well = well && meet(s, peers[i]);
    if (s.verb == Verb::signal || s.verb == Verb::flag) return true;
    return !this->any(!well);
  }

  /// What one thread does about one peer.
  TUTTI_MEMBER bool meet(const ProgramStep& s, int peer) {
    switch (s.verb) {
      case Verb::open: return open(peer);
      case Verb::signal: signal(peer, s.channel); return true;
      case Verb::wait: return wait(peer, s.channel);
      case Verb::flag: {
        const std::uint64_t word = std::uint64_t{flag_of(call_)} << 32;
        this->store_line(cell(peer, a_.rank), word, word);
        return true;
      }
      case Verb::expect: {
        const std::uint64_t at = cell(a_.rank, peer);
        const auto come = [&] {
          std::uint64_t low = 0;
          std::uint64_t high = 0;
          this->load_line(at, low, high);
          return low >> 32 == flag_of(call_);
        };
        if (!until(come, peer)) return false;
        return this->index() != 0 || see_entered(peer, call_);
      }
      case Verb::check: return this->index() != 0 || see_entered(peer, call_);
      default: return true;
    }
  }

  TUTTI_MEMBER bool open(int peer) {
    if (!see_entered(peer, call_)) return false;
    const Call* record = call_of(own_, peer, call_);
    Shared::Opened& opened = this->shared().opened[peer];
    const std::uint64_t factor = this->load(&record->factor);
    memcpy(&opened.factor, &factor, sizeof(double));
    return resolve(peer, this->load(&record->input), &opened.input) &&
           resolve(peer, this->load(&record->output), &opened.output);
  }

  TUTTI_SLOW bool resolve(int peer, std::uint64_t handle, std::uint64_t* address) {
    const transport::DevicePeer& p = a_.peers[peer];
    *address = handle;
    if (handle == 0) return true;  // has none, and no step asks for it
    if ((handle & transport::kDeviceRegion) == 0) {
      return (p.flags & transport::kSameAddresses) != 0 || fail(Failure::unreachable, peer, call_, 0);
    }
    const std::uint64_t region = (handle & ~transport::kDeviceRegion) >> transport::kDeviceRegionShift;
    const std::uint64_t base = region < p.region_count ? this->load(reinterpret_cast<const std::uint64_t*>(p.regions) + region) : 0;
    if (base == 0) return fail(Failure::unreachable, peer, call_, 0);
    *address = base + (handle & ((std::uint64_t{1} << transport::kDeviceRegionShift) - 1));
    return true;
  }

  TUTTI_MEMBER void signal(int peer, int channel) {
    Link* mine = link(peer, channel);
    Signal* theirs = signal_at(window(peer), a_.rank, channel);
    mine->sent += 1;
    if (aliased(peer)) this->fence_alias();
    this->store(&theirs->tag, tag_);
    this->store_release(&theirs->count, mine->sent);
  }

  TUTTI_MEMBER bool wait(int peer, int channel) {
    Link* mine = link(peer, channel);
    const Signal* theirs = signal_at(own_, peer, channel);
    const std::uint64_t wanted = mine->seen + 1;
    if (!until([&] { return this->load_acquire(&theirs->count) >= wanted; }, peer)) return false;
    if (aliased(peer)) this->fence_alias();
    mine->seen = wanted;
    if (this->load(&theirs->tag) == tag_) return true;
    // Of another call; or of the next one already, behind the signal that was waited for.
    return see_entered(peer, call_);
  }

  // ---- Data

  TUTTI_MEMBER bool data(const ProgramStep& s, int round) {
    const std::uint64_t* numbers = array<std::uint64_t>(p_->numbers_at);
    for (int piece = 0; piece < s.pieces; ++piece) {
      std::uint64_t in_slice = 0;
      const Part part =
          part_of(numbers[s.sizes + piece], p_->element, p_->rounds, round, p_->strips, strip_, &in_slice);
      if (part.size == 0) continue;
      if (!pass(s, piece, round, part)) return false;
    }
    return true;
  }

  TUTTI_MEMBER bool pass(const ProgramStep& s, int piece, int round, const Part& part) {
    Pass& pass = this->shared().passes[turn_ % 2];
    ++turn_;
    const auto* ranges = array<ProgramRange>(p_->ranges_at) + s.ranges;
    const std::uint32_t count = std::uint32_t{s.sources} + s.destinations;
    for (std::uint32_t i = this->thread(); i < count; i += this->threads()) {
      pass.entries[i] = entry_of(ranges[i], piece, round, part);
    }
    if (this->thread() == 0) {
      pass.bytes = part.size * p_->element;
      pass.divide_by = s.last && p_->op == ReduceOp::avg ? static_cast<double>(p_->ranks) : 0.0;
      pass.sources = s.sources;
      pass.destinations = s.destinations;
      pass.flag = flag_of(call_);
    }
    // Behind this every thread has done with all passes before, so what they wrote may be read here.
    this->sync();
    std::uint32_t head = part.size * p_->element < kLeastShifted ? 0 : head_of(pass, count);
    if (head > 0) resize(pass, head);
    for (;;) {
      const bool well = perform(s, pass);
      if (head == 0) return !p_->express || !this->any(!well);
      // In large passes only, whose entries no flagged line is among: nothing fails.
      this->sync();
      for (std::uint32_t i = this->thread(); i < count; i += this->threads()) {
        pass.entries[i].address += head;
        pass.entries[i].form = Form::quads;
      }
      resize(pass, part.size * p_->element - head);
      head = 0;
    }
  }

  TUTTI_MEMBER void resize(Pass& pass, std::uint64_t bytes) {
    this->sync();
    if (this->thread() == 0) pass.bytes = bytes;
    this->sync();
  }

  TUTTI_MEMBER bool perform(const ProgramStep& s, const Pass& pass) {
    if constexpr (kReduces) {
      if (s.verb == Verb::reduce) return reduce_pass<kType>(*this, p_->op, pass);
    }
    return copy_pass(*this, pass);
  }

  TUTTI_MEMBER Entry entry_of(const ProgramRange& range, int piece, int round, const Part& part) const {
    Entry entry;
    entry.peer = static_cast<std::uint8_t>(range.rank);
    const Shared::Opened& opened = this->shared().opened[range.rank];
    const std::uint64_t offset = is_slot(range.place)
                                     ? 0
                                     : (array<std::uint64_t>(p_->numbers_at)[range.offsets + piece] + part.offset) *
                                           p_->element;
    switch (range.place) {
      case Place::input:
        entry.address = a_.input + offset;
        if (range.raw_input) memcpy(&entry.factor, &a_.announcement.factor, sizeof(double));
        break;
      case Place::output: entry.address = a_.output + offset; break;
      case Place::peer_input:
        entry.address = opened.input + offset;
        if (range.raw_input) entry.factor = opened.factor;
        break;
      case Place::peer_output: entry.address = opened.output + offset; break;
      case Place::scratch: entry.address = slot(range, piece, round, a_.sizes.scratch_at(), a_.sizes.scratch_half,
                                                p_->scratch); break;
      case Place::published: entry.address = slot(range, piece, round, a_.sizes.published_at(),
                                                  a_.sizes.published_half, p_->published); break;
      case Place::arrived: entry.address = cell(a_.rank, range.rank); break;
      case Place::depart: entry.address = cell(range.rank, a_.rank); break;
    }
    const bool flagged = range.place == Place::arrived || range.place == Place::depart;
    entry.form = flagged ? Form::flagged : form_of(entry.address);
    return entry;
  }

  TUTTI_MEMBER bool is_slot(Place place) const { return place >= Place::scratch; }

  TUTTI_MEMBER std::uint64_t slot(const ProgramRange& range, int piece, int round, std::uint64_t at, std::uint64_t half,
                                  const ProgramSlots& slots) const {
    const auto number = static_cast<std::uint64_t>(round % slots.sets * slots.count + range.slot + piece);
    return window(range.rank) + at + call_ % 2 * transport::DeviceWindowSizes::up(half) + number * slots.bytes +
           static_cast<std::uint64_t>(strip_) * slots.strip_bytes;
  }

  /// Where all ranges lie equally far from a multiple of 16 bytes, what comes before it goes alone, and the rest in
  /// whole vectors. Pays for large passes only.
  TUTTI_MEMBER std::uint32_t head_of(const Pass& pass, std::uint32_t count) const {
    const auto off = static_cast<std::uint32_t>(pass.entries[0].address % 16);
    if (off == 0 || off % p_->element != 0) return 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      if (pass.entries[i].form == Form::flagged || pass.entries[i].address % 16 != off) return 0;
    }
    return 16 - off;
  }

  static constexpr std::uint64_t kLeastShifted = 1024;

  const LaunchArguments& a_;
  const std::uint64_t own_;  // the own window
  const Program* p_ = nullptr;
  std::uint64_t call_ = 0;
  std::uint64_t history_ = 0;
  std::uint64_t previous_history_ = 0;
  std::uint64_t tag_ = 0;
  int strip_ = 0;
  std::uint32_t turn_ = 0;
};

}  // namespace tutti::executor::cuda
