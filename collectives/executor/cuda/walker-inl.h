// The control half of a walker: one thread block that runs one strip of one lane of a program (program.h), with
// its peers' walkers in other kernels. Host and device run this same code; see reduce-inl.h for what a Block is.
// How: every block reads the number of the call from the window; block 0 announces it to all. At the gate the block
//   waits until all ranks have entered the call before. A rank that has entered call k - 1 is done with call k - 2. So
//   this rank may then touch the half of scratch that call k - 2 used, and the cells of its parity. Then come the
//   steps. The last block to end writes the number back, for the next kernel or the next replay of a graph. Blocks of a
//   kernel that a group's calls share wait for that number before each further call.
// Errors: those of Caller (caller-inl.h), and unreachable: a handle that is not mapped here. After a failure
//   no call of this window runs any more.
// Threads: all threads of a block call run(). docs/cuda.md says why each access has its order and scope.
#pragma once

#include "collectives/executor/cuda/caller-inl.h"

namespace tutti::executor::cuda {

/// `kReduces`: false leaves the reductions out (kernel of movements only).
template <class Block, DataType kType, bool kReduces>
class Walker : public Caller<Block> {
 public:
  template <class... Args>
  TUTTI_MEMBER Walker(const LaunchArguments& arguments, Args&&... args)
      : Base(arguments, static_cast<Args&&>(args)...) {}

  TUTTI_MEMBER void run() {
    State* state = this->state();
    call_ = this->load(&state->sequence);
    history_ = this->load(&state->history);
    for (int i = 0; i < a_.count; ++i) {
      c_ = &a_.calls[i];
      ++call_;
      previous_history_ = history_;
      history_ = history_of(history_, c_->fingerprint);
      if (!this->any(this->load(&state->failed) != 0)) run_call();
      if (!leave(i + 1 < a_.count)) return;
    }
  }

 private:
  using Base = Caller<Block>;
  using Base::a_;
  using Base::aliased;
  using Base::c_;
  using Base::call_;
  using Base::call_of;
  using Base::fail;
  using Base::history_;
  using Base::own_;
  using Base::previous_history_;
  using Base::see_entered;
  using Base::until;
  using Base::window;
  using typename Base::Call;
  using typename Base::State;
  using Signal = transport::DeviceSignal;
  using Link = transport::DeviceLink;

  // ---- Where things are

  TUTTI_MEMBER Signal* signal_at(std::uint64_t at, int sender, int channel) const {
    return reinterpret_cast<Signal*>(at + a_.sizes.signals_at()) + a_.sizes.link_index(sender, link_lane(), channel);
  }
  TUTTI_MEMBER int link_lane() const { return a_.segment.on ? 0 : static_cast<int>(this->index()); }
  TUTTI_MEMBER Link* link(int peer, int channel) const {
    return reinterpret_cast<Link*>(own_ + a_.sizes.links_at()) + a_.sizes.link_index(peer, link_lane(), channel);
  }
  TUTTI_MEMBER std::uint64_t cell(int at, int sender) const {
    return window(at) + a_.sizes.cell_offset(sender, call_) +
           static_cast<std::uint64_t>(strip_) * p_->cell_strip_bytes * 2;
  }
  template <class T>
  TUTTI_MEMBER const T* array(std::uint32_t at) const {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(p_) + at);
  }

  // ---- A call from its beginning to its end

  TUTTI_MEMBER void run_call() {
    if (this->index() == 0 && (!a_.segment.on || a_.segment.begins)) this->announce();
    if (a_.segment.on) {
      begin(c_->first);
      walk_segment();
    } else if (this->gate()) {
      const Program* program = this->choose();
      if (program != nullptr && this->index() < static_cast<std::uint32_t>(program->lanes * program->strips)) {
        begin(program);
        walk();
      }
    }
  }

  /// `goes_on`: another call follows in this kernel. Returns true if all blocks have then ended this one, well.
  TUTTI_MEMBER bool leave(bool goes_on) {
    this->sync();  // behind all that this block's threads have done
    bool well = goes_on;
    if (this->thread() == 0) {
      if (this->add(&this->state()->exits, 1) + 1 == this->blocks()) end_call(goes_on);
      if (goes_on) well = await_end();
    }
    return goes_on && !this->any(!well);
  }

  /// Ends the call or the segment. Called by the first thread of the last block.
  TUTTI_MEMBER void end_call(bool goes_on) {
    State* state = this->state();
    this->store(&state->exits, 0);
    if (this->load(&state->failed) != 0) return;
    if (a_.segment.on) {
      give_signals();
      if (!a_.segment.ends) return;
    }
    this->store(&state->history, history_);
    if (goes_on) {
      this->store_release(&state->sequence, call_);
    } else {
      this->store(&state->sequence, call_);  // the end of the kernel is a release of its own
    }
    this->store(&a_.host->finished, call_);
  }

  /// Waits until the last block has ended the call. It needs no deadline: every block ends, or says that it has failed.
  TUTTI_SLOW bool await_end() {
    const State* state = this->state();
    for (std::uint32_t turns = 1; this->load_acquire(&state->sequence) < call_; ++turns) {
      if (turns % Block::kTurnsBetweenLooks != 0) continue;
      if (this->load(&state->failed) != 0) return false;
      this->relax();
    }
    return true;
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

  /// Sends the segment's signals: all its data is behind the other blocks' exits. Called as end_call().
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
      case Verb::flag: this->sync(); break;    // it shows that the rank is here
      default: break;
    }
    bool well = true;
    const auto* peers = array<std::int32_t>(p_->peers_at) + s.peers;
    for (std::uint32_t i = this->thread(); i < s.peer_count; i += this->threads()) well = well && meet(s, peers[i]);
    if (s.verb == Verb::signal || s.verb == Verb::flag) return true;
    return !this->any(!well);
  }

  /// Carries out one step with one peer, by one thread.
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
    const std::uint64_t base =
        region < p.region_count ? this->load(reinterpret_cast<const std::uint64_t*>(p.regions) + region) : 0;
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
    const std::uint64_t offset =
        is_slot(range.place)
            ? 0
            : (array<std::uint64_t>(p_->numbers_at)[range.offsets + piece] + part.offset) * p_->element;
    switch (range.place) {
      case Place::input:
        entry.address = c_->input + offset;
        if (range.raw_input) memcpy(&entry.factor, &c_->announcement.factor, sizeof(double));
        break;
      case Place::output: entry.address = c_->output + offset; break;
      case Place::peer_input:
        entry.address = opened.input + offset;
        if (range.raw_input) entry.factor = opened.factor;
        break;
      case Place::peer_output: entry.address = opened.output + offset; break;
      case Place::scratch:
        entry.address = slot(range, piece, round, a_.sizes.scratch_at(), a_.sizes.scratch_half, p_->scratch);
        break;
      case Place::published:
        entry.address = slot(range, piece, round, a_.sizes.published_at(), a_.sizes.published_half, p_->published);
        break;
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

  /// Returns how many bytes come before a multiple of 16, if all ranges lie equally far from one: these are moved
  /// alone, the rest in whole vectors. Pays for large passes only.
  TUTTI_MEMBER std::uint32_t head_of(const Pass& pass, std::uint32_t count) const {
    const auto off = static_cast<std::uint32_t>(pass.entries[0].address % 16);
    if (off == 0 || off % p_->element != 0) return 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      if (pass.entries[i].form == Form::flagged || pass.entries[i].address % 16 != off) return 0;
    }
    return 16 - off;
  }

  static constexpr std::uint64_t kLeastShifted = 1024;

  const Program* p_ = nullptr;
  std::uint64_t tag_ = 0;
  int strip_ = 0;
  std::uint32_t turn_ = 0;
};

}  // namespace tutti::executor::cuda
