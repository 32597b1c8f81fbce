#include "transport/hosts/wire_links.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "base/clock.h"

namespace tutti::transport {

namespace {

constexpr std::int64_t kAnnounceNs = 100'000'000;  // for a failure to leave this process; to a dead rank nothing does

// The code of a failure is the signal's count, and the text is put before it: a rank that sees the code sees the text.
static_assert(offsetof(Board, failure_code) == 0 && offsetof(Board, failure_text) == sizeof(std::uint64_t));

// The pulse goes as one signal, here and in a wait.
static_assert(offsetof(Pulse, beats) == 0 && offsetof(Pulse, has_left) == 8);

}  // namespace

std::size_t shadow_bytes(const WindowSizes& sizes) {
  std::size_t bytes = 0;
  for (const std::size_t part : {sizes.mailbox, sizes.express_offset(1, 0), offsetof(Board, pulse)}) {
    bytes += round_up(part, page_bytes()) + page_bytes();  // it need not begin with a page
  }
  return bytes;
}

WireLinks::WireLinks(Setup setup) : setup_(std::move(setup)), peers_(setup_.world_ranks.size()) {
  for (int r = 0; r < setup_.sizes.ranks; ++r) {
    peer(r).remote = setup_.remote[static_cast<std::size_t>(r)];
    if (peer(r).remote) remote_world_ranks_.push_back(world_rank(r));
  }
}

WireLinks::~WireLinks() {
  for (const Peer& one : peers_) {
    if (one.region != 0) wire_->detach(one.region);
  }
}

Result<Window> WireLinks::attach(int rank, const std::string& key) {
  const std::size_t bytes = exposed_bytes(setup_.sizes);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Status(Code::memory_limit,
                  fmt::format("no address space for the {} bytes of a remote rank's shadow", bytes));
  }
  (void)madvise(memory, bytes, MADV_NOHUGEPAGE);  // little of it is written, here and there
  peer(rank).shadow = {static_cast<std::byte*>(memory), [bytes](std::byte* p) { munmap(p, bytes); }};
  TUTTI_ASSIGN(peer(rank).region, wire_->attach(world_rank(rank), key, bytes));
  Window window = window_at(peer(rank).shadow.get(), setup_.sizes);
  window.board = &mirror_of(setup_.own, setup_.sizes, rank);
  return window;
}

void WireLinks::send_leave_notice(int rank, const Pulse* pulse) {
  if (peer(rank).region == 0) return;
  // A rank that never joined has not left: that would be another failure than the one that is reported.
  if (pulse != nullptr) {
    (void)signal(rank, 0, &mirror_at(rank).pulse, pulse->beats.load(std::memory_order_relaxed), 1, Flush::now);
  }
  for (int lane = 0; lane < setup_.sizes.lanes; ++lane) {
    (void)signal(rank, lane, &last_in(mirror_at(rank), lane), 1, 0, Flush::now);
  }
}

void WireLinks::announce_failure(Code code, const std::string& sentence) {
  for (int r = 0; r < setup_.sizes.ranks; ++r) {
    if (!is_remote(r)) continue;
    Board& there = mirror_at(r);
    char* text = there.failure_text;
    sentence.copy(text, sizeof there.failure_text - 1);  // the rest is zeros
    std::uint64_t begin = 0;                             // which the signal writes once more
    std::memcpy(&begin, text, sizeof begin);
    Ticket ticket = 0;
    (void)put(r, 0, text, text, sizeof there.failure_text, ticket);
    (void)signal(r, 0, &there, static_cast<std::uint64_t>(code), begin, Flush::now);
  }
  for (const std::int64_t since = now_ns(); !idle() && now_ns() - since < kAnnounceNs;) {
    if (!wire_->progress()) wire_->sleep(std::chrono::milliseconds(1));
  }
}

Board& WireLinks::mirror_at(int rank) {
  return *reinterpret_cast<Board*>(peer(rank).shadow.get() + mirror_offset(setup_.sizes, setup_.rank));
}

Status WireLinks::put(int rank, int lane, const void* to, const void* from, std::size_t bytes, Ticket& ticket) {
  return wire_->put(world_rank(rank), lane, region_of(rank), offset_of(rank, to), from, bytes, ticket);
}

Status WireLinks::signal(int rank, int lane, const void* to, std::uint64_t count, std::uint64_t tag, Flush flush) {
  return wire_->signal(world_rank(rank), lane, region_of(rank), offset_of(rank, to), count, tag, flush);
}

Status WireLinks::put_inline(int rank, const void* to, const void* from, std::size_t bytes, Flush flush) {
  return wire_->put_inline(world_rank(rank), 0, region_of(rank), offset_of(rank, to), from, bytes, flush);
}

}  // namespace tutti::transport
