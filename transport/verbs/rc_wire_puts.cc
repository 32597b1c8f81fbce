// The hot path of the wire: puts and signals, and the wait for room in front of them.
#ifdef TUTTI_HAS_VERBS
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <thread>

#include "base/clock.h"
#include "transport/verbs/rc_wire.h"

namespace tutti::transport::verbs {

namespace {

constexpr std::size_t kPiece = 1 << 20;             // larger puts are several writes
constexpr std::size_t kSentAtOnce = 16 << 10;       // so many held bytes do not wait for more
constexpr std::int64_t kPatience = 20'000'000'000;  // with a device that reports neither success nor failure

/// Who waits for room must not keep other threads, of other communicators perhaps, from theirs. What they put meanwhile
/// may come between two pieces of one put, which nobody minds: the order is that of each thread's own calls.
void let_others(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  std::this_thread::yield();
  lock.lock();
}

}  // namespace

Result<Link*> RcWire::link_to(int member, int lane) {
  const Member& peer = members_[static_cast<std::size_t>(member)];
  if (!peer.broken.ok()) return peer.broken;
  if (peer.links.empty()) {
    return invalid_argument(
        fmt::format("verbs: {} is on this host, and not linked", job_.names[static_cast<std::size_t>(member)]));
  }
  return peer.links[static_cast<std::size_t>(lane) % peer.links.size()];
}

Result<Remote> RcWire::place_of(int member, int lane, Region region, std::size_t at, std::size_t bytes) const {
  static const Attached kNone;
  const Attached& there = region == 0 || region > regions_.size() ? kNone : regions_[region - 1];
  if (there.member != member || at > there.bytes || bytes > there.bytes - at) {
    return invalid_argument(fmt::format("verbs: {} bytes at {} are not in region {} ({} bytes of {}) of {}", bytes, at,
                                        region, there.bytes, there.member < 0 ? "nobody" : job_.names[there.member],
                                        job_.names[static_cast<std::size_t>(member)]));
  }
  const int rail = members_[static_cast<std::size_t>(member)].peers.of_lane(lane);
  return Remote{there.base + at, there.keys[static_cast<std::size_t>(rail)]};
}

Status RcWire::make_room(Link& link, std::unique_lock<std::mutex>& lock) {
  if (link.can_hold()) return {};
  link.send();
  for (const std::int64_t begin = now_ns(); link.broken().ok() && !link.can_hold();) {
    if (poll()) continue;
    let_others(lock);
    if (now_ns() - begin > kPatience) link.break_off(Code::timeout, "the device has reported nothing for 20 s");
  }
  if (link.broken().ok()) return {};
  spread_breaks();
  return link.broken();
}

Status RcWire::write_copied(Link& link, const std::byte* from, std::size_t bytes, const Remote& to,
                            std::unique_lock<std::mutex>& lock) {
  for (const std::int64_t begin = now_ns();;) {
    TUTTI_TRY(make_room(link, lock));
    if (bytes <= link.inline_bytes()) {
      link.hold_inline(from, bytes, to);
      return {};
    }
    if (link.hold_staged(from, bytes, to) != 0) return {};
    // All staging memory is in use. What is held back must go for it to come back.
    send_all();
    if (!poll()) let_others(lock);
    if (now_ns() - begin > kPatience) link.break_off(Code::timeout, "no staging memory has come free for 20 s");
    if (!link.broken().ok()) {
      spread_breaks();
      return link.broken();
    }
  }
}

/// Whether the device has taken what was sent; else the other rails break too.
Status RcWire::told(const Link& link) {
  if (link.broken().ok()) return {};
  any_break_ = true;
  spread_breaks();
  return link.broken();
}

Status RcWire::put(int member, int lane, Region to, std::size_t at, const void* from, std::size_t bytes,
                   Ticket& ticket) {
  std::unique_lock lock(mutex_);
  ticket = 0;
  TUTTI_ASSIGN(Link * link, link_to(member, lane));
  TUTTI_ASSIGN(Remote there, place_of(member, lane, to, at, bytes));
  naps_.something_happened();
  const auto* source = static_cast<const std::byte*>(from);
  const bool small = bytes <= link->inline_bytes();
  const Registered* memory = small && exposed_on_device_ == 0 ? nullptr : find(exposed_, source, bytes);
  if (small && memory != nullptr && !memory->on_device) memory = nullptr;  // it goes along with the request
  const auto rail = static_cast<std::size_t>(members_[static_cast<std::size_t>(member)].own.of_lane(lane));
  const ibv_mr* registered = memory != nullptr ? memory->by_rail[rail] : small ? nullptr : keep(source, bytes, rail);
  const std::uint32_t key = registered != nullptr ? registered->lkey : 0;
  const std::size_t most = registered != nullptr ? kPiece : kChunkBytes;
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(most, bytes - done);
    if (registered != nullptr) {
      TUTTI_TRY(make_room(*link, lock));
      const std::uint64_t number = link->hold(source + done, key, piece, there);
      ticket = link->place() << kTicketBits | number;
    } else {
      TUTTI_TRY(write_copied(*link, source + done, piece, there, lock));
    }
    there.address += piece;
    done += piece;
    if (link->held_bytes() >= kSentAtOnce) link->send();
  }
  return told(*link);
}

/// The device reads it until the write is done, or the queue pair is taken from it.
void RcWire::let_go(Ticket ticket) {
  if (ticket == 0) return;
  std::unique_lock lock(mutex_);
  Link& link = *links_[ticket >> kTicketBits];
  const std::uint64_t number = number_of(ticket);
  if (link.settled(number)) return;
  link.break_off(Code::system, "it has been closed: a call has failed here, and not all that it had put was taken");
  spread_breaks();
  while (!link.settled(number)) {  // a second at most: then the link is finished
    if (!poll()) let_others(lock);
  }
}

Status RcWire::signal(int member, int lane, Region to, std::size_t at, std::uint64_t count, std::uint64_t tag,
                      Push push) {
  const std::array<std::uint64_t, 2> both{count, tag};
  return note(member, lane, to, at, both.data(), sizeof both, push);
}

/// One write.
Status RcWire::note(int member, int lane, Region to, std::size_t at, const void* from, std::size_t bytes, Push push) {
  std::unique_lock lock(mutex_);
  TUTTI_ASSIGN(Link * link, link_to(member, lane));
  TUTTI_ASSIGN(const Remote there, place_of(member, lane, to, at, bytes));
  naps_.something_happened();
  TUTTI_TRY(write_copied(*link, static_cast<const std::byte*>(from), bytes, there, lock));
  if (push == Push::now) link->send();
  return told(*link);
}

}  // namespace tutti::transport::verbs
#endif
