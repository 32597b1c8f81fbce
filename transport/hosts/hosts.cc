#include "transport/hosts/hosts.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/clock.h"

namespace tutti::transport {

namespace {

constexpr std::int64_t kPartNs = 1'000'000'000;  // for far ranks that end their communicator a little later
constexpr std::int64_t kTellNs = 100'000'000;    // for a failure to leave this process; to a dead rank nothing does

// Of a failure: the code is the signal's count, and the text is put before it, so that whoever sees the code sees the
// text.
static_assert(offsetof(Board, failure_code) == 0 && offsetof(Board, failure_text) == sizeof(std::uint64_t));

/// Where a far rank tells that it has sent its last in this lane: signals of lanes do not wait for each other.
std::atomic<std::uint64_t>& last_in(Board& board, int lane) { return board.regroup.alive[2 * lane]; }

Board& mirror_of(std::byte* own, const WindowSizes& sizes, int rank) {
  return *reinterpret_cast<Board*>(own + mirror_offset(sizes, rank));
}

}  // namespace

void LeaveMarks::set(int rank, bool came) {
  const std::lock_guard lock(mutex_);
  if (own_ == nullptr) return;
  Board& mirror = mirror_of(own_, sizes_, rank);
  if (came) mirror.pulse.departed.store(1, std::memory_order_release);
  for (int lane = 0; lane < sizes_.lanes; ++lane) last_in(mirror, lane).store(1, std::memory_order_release);
}

void LeaveMarks::end() {
  const std::lock_guard lock(mutex_);
  own_ = nullptr;
}

Result<std::unique_ptr<HostsTransport>> HostsTransport::connect(Setup setup) {
  const std::vector<std::string> keys = std::move(setup.keys);
  std::unique_ptr<HostsTransport> transport(new HostsTransport(std::move(setup)));
  TUTTI_TRY(transport->attach(keys));
  transport->connected_ = true;
  return transport;
}

HostsTransport::HostsTransport(Setup setup)
    : rank_(setup.rank),
      sizes_(setup.sizes),
      capabilities_(setup.near->capabilities()),
      near_(std::move(setup.near)),
      wire_(std::move(setup.wire)),
      members_(std::move(setup.members)),
      own_(setup.own),
      alive_(std::move(setup.alive)),
      server_alive_(std::move(setup.server_alive)),
      marks_(std::move(setup.marks)),
      send_leave_notice_(std::move(setup.send_leave_notice)),
      keep_(std::move(setup.keep)),
      windows_(members_.size()),
      peers_(members_.size()) {
  for (int r = 0; r < sizes_.ranks; ++r) {
    if (far(r)) far_members_.push_back(member(r));
  }
  capabilities_.load_store = false;
}

Status HostsTransport::attach(const std::vector<std::string>& keys) {
  const std::size_t bytes = exposed_bytes(sizes_);
  for (int r = 0; r < sizes_.ranks; ++r) {
    if (!far(r)) {
      windows_[static_cast<std::size_t>(r)] = near_->window(r);
      continue;
    }
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      return Status(Code::memory_limit, fmt::format("no address space for the {} bytes of a far rank's draft", bytes));
    }
    (void)madvise(memory, bytes, MADV_NOHUGEPAGE);  // little of it is written, here and there
    peer(r).draft = {static_cast<std::byte*>(memory), [bytes](std::byte* p) { munmap(p, bytes); }};
    TUTTI_ASSIGN(peer(r).region, wire_->attach(member(r), keys[static_cast<std::size_t>(r)], bytes));
    Window& window = windows_[static_cast<std::size_t>(r)] = window_at(peer(r).draft.get(), sizes_);
    window.board = &mirror_of(own_, sizes_, r);
  }
  return {};
}

// The pulse goes as one signal, here and in a wait.
static_assert(offsetof(Pulse, beats) == 0 && offsetof(Pulse, departed) == 8);

HostsTransport::~HostsTransport() {
  if (connected_ && shared_board(*this).failure_code.load(std::memory_order_acquire) != 0) wire_->give_up();
  const Gone all_gone = gone();
  std::vector<int> others;
  std::vector<int> other_members;
  for (int r = 0; r < sizes_.ranks; ++r) {
    if (!far(r) || (has_written_to(r) && broken(r).ok())) continue;
    others.push_back(r);
    other_members.push_back(member(r));
  }
  if (!others.empty()) (void)send_leave_notice_(other_members, connected_);
  const auto passed_on = [&] {
    return others.empty() || last_in(mirror_of(own_, sizes_, rank_), 0).load(std::memory_order_acquire) != 0;
  };
  bool said = false;
  for (const std::int64_t since = now_ns();;) {
    const bool server_alive = server_alive_();  // asked first: what it has passed on is seen before its end
    const bool over = !connected_ || now_ns() - since > kPartNs;
    if (!server_alive && !passed_on()) others.clear();
    // By the wire it is said when the bootstrap server has passed it on: rank 0, which it needs, leaves when it has
    // heard all.
    if (!said && (passed_on() || over)) {
      said = true;
      for (int r = 0; r < sizes_.ranks; ++r) {
        if (far(r) && !std::binary_search(others.begin(), others.end(), r)) send_leave_notice_by_wire(r);
      }
    }
    if (over || (said && all_gone())) break;
    if (!wire_->progress()) wire_->doze(std::chrono::milliseconds(1));
  }
  for (int r = 0; r < sizes_.ranks; ++r) {
    if (peer(r).region != 0) wire_->detach(peer(r).region);
  }
  keep_(all_gone);
}

void HostsTransport::send_leave_notice_by_wire(int rank) {
  if (peer(rank).region == 0) return;
  // Who has never been there has not left: that would be another failure than the one that is told.
  if (connected_) {
    const Pulse& pulse = near_->window(rank_).board->pulse;
    (void)signal(rank, 0, &mirror_at(rank).pulse, pulse.beats.load(std::memory_order_relaxed), 1, Push::now);
  }
  for (int lane = 0; lane < sizes_.lanes; ++lane) {
    (void)signal(rank, lane, &last_in(mirror_at(rank), lane), 1, 0, Push::now);
  }
}

HostsTransport::Gone HostsTransport::gone() const {
  struct Far {
    int member;
    Board* mirror;
    std::shared_ptr<std::byte> draft;
  };
  std::vector<Far> all;
  for (int r = 0; r < sizes_.ranks; ++r) {
    // Also where connect() has failed: they may have got further, and write.
    if (!far(r)) continue;
    const Peer& peer = peers_[static_cast<std::size_t>(r)];
    all.push_back({member(r), &mirror_of(own_, sizes_, r), peer.draft});
  }
  // A wire that has ended with its job's last communicator moves nothing any more.
  return [all = std::move(all), weak = std::weak_ptr<Wire>(wire_), alive = alive_, own = own_, lanes = sizes_.lanes,
          members = far_members_, marks = marks_] {
    const std::shared_ptr<Wire> wire = weak.lock();
    if (wire == nullptr) {
      marks->end();
      return true;
    }
    (void)wire->progress();
    for (const Far& far : all) {
      bool departed = true;
      for (int lane = 0; lane < lanes; ++lane) {
        departed = departed && last_in(*far.mirror, lane).load(std::memory_order_acquire) != 0;
      }
      if (!departed && wire->broken(far.member).ok() && alive(far.member)) return false;
    }
    if (!wire->idle(members)) return false;
    wire->conceal(own);
    marks->end();
    return true;
  };
}

std::size_t HostsTransport::memory() const {
  std::size_t bytes = exposed_bytes(sizes_);
  for (int r = 0; r < sizes_.ranks; ++r) bytes += far(r) ? draft_bytes(sizes_) : 0;
  return bytes;
}

bool HostsTransport::alive(int rank) const { return far(rank) ? alive_(member(rank)) : near_->alive(rank); }

void HostsTransport::tell(Code code, const std::string& sentence) {
  for (int r = 0; r < sizes_.ranks; ++r) {
    if (!far(r)) continue;
    Board& there = mirror_at(r);
    char* text = there.failure_text;
    sentence.copy(text, sizeof there.failure_text - 1);  // the rest is zeros
    std::uint64_t begin = 0;                             // which the signal writes once more
    std::memcpy(&begin, text, sizeof begin);
    Ticket ticket = 0;
    (void)put(r, 0, text, text, sizeof there.failure_text, ticket);
    (void)signal(r, 0, &there, static_cast<std::uint64_t>(code), begin, Push::now);
  }
  for (const std::int64_t since = now_ns(); !idle() && now_ns() - since < kTellNs;) {
    if (!wire_->progress()) wire_->doze(std::chrono::milliseconds(1));
  }
}

Board& HostsTransport::mirror_at(int rank) {
  return *reinterpret_cast<Board*>(peer(rank).draft.get() + mirror_offset(sizes_, rank_));
}

Status HostsTransport::put(int rank, int lane, const void* to, const void* from, std::size_t bytes, Ticket& ticket) {
  return wire_->put(member(rank), lane, region_of(rank), place_of(rank, to), from, bytes, ticket);
}

Status HostsTransport::signal(int rank, int lane, const void* to, std::uint64_t count, std::uint64_t tag, Push push) {
  return wire_->signal(member(rank), lane, region_of(rank), place_of(rank, to), count, tag, push);
}

Status HostsTransport::note(int rank, const void* to, const void* from, std::size_t bytes, Push push) {
  return wire_->note(member(rank), 0, region_of(rank), place_of(rank, to), from, bytes, push);
}

}  // namespace tutti::transport
