// The hot path of the wire: puts and signals. None of them waits: what finds no room stays in its link's backlog.
#ifdef TUTTI_HAS_VERBS
#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>

#include "transport/verbs/rc_wire.h"

namespace tutti::transport::verbs {

namespace {

/// Who waits must not keep other threads, of other communicators perhaps, from theirs.
void let_others(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  std::this_thread::yield();
  lock.lock();
}

}  // namespace

Result<Link*> RcWire::link_to(int rank, int lane) {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (!peer.broken.ok()) return peer.broken;
  if (peer.links.empty()) {
    return invalid_argument(
        fmt::format("verbs: {} is on this host, and not linked", job_.names[static_cast<std::size_t>(rank)]));
  }
  return peer.links[static_cast<std::size_t>(lane) % peer.links.size()];
}

Result<RemoteBuffer> RcWire::place_of(int rank, int lane, Region region, std::size_t at, std::size_t bytes) const {
  static const Attached kNone;
  const Attached& there = region == 0 || region > regions_.size() ? kNone : regions_[region - 1];
  if (there.rank != rank || at > there.bytes || bytes > there.bytes - at) {
    return invalid_argument(fmt::format("verbs: {} bytes at {} are not in region {} ({} bytes of {}) of {}", bytes, at,
                                        region, there.bytes, there.rank < 0 ? "nobody" : job_.names[there.rank],
                                        job_.names[static_cast<std::size_t>(rank)]));
  }
  const int rail = peers_[static_cast<std::size_t>(rank)].theirs.of_lane(lane);
  return RemoteBuffer{there.base + at, there.keys[static_cast<std::size_t>(rail)]};
}

/// What is to be said of a rank after something has been given to its link.
Status RcWire::told(int rank, const Link& link) {
  if (link.backlogged()) {  // perhaps for bounce buffers, which others hold back
    is_waiting_ = true;
    send_all();
  }
  if (!link.broken().ok()) spread_breaks();
  return peers_[static_cast<std::size_t>(rank)].broken;
}

Status RcWire::put(int rank, int lane, Region to, std::size_t at, const void* from, std::size_t bytes, Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  ticket = 0;
  TUTTI_ASSIGN(Link * link, link_to(rank, lane));
  TUTTI_ASSIGN(const RemoteBuffer there, place_of(rank, lane, to, at, bytes));
  naps_.something_happened();
  const auto* source = static_cast<const std::byte*>(from);
  const bool small = bytes <= link->inline_bytes();
  const Registered* memory = small && exposed_on_device_ == 0 ? nullptr : find(exposed_, source, bytes);
  if (small && memory != nullptr && !memory->on_device) memory = nullptr;  // it goes along with the request
  const auto rail = static_cast<std::size_t>(peers_[static_cast<std::size_t>(rank)].own.of_lane(lane));
  const ibv_mr* registered = memory != nullptr ? memory->by_rail[rail] : small ? nullptr : keep(source, bytes, rail);
  Link::Write write{source, bytes, there, {}};
  if (registered != nullptr) write.key = registered->lkey;
  const std::uint64_t read = link->write(write);
  if (read != 0 && !(small && link->copy_out(read))) ticket = link->place() << kTicketBits | read;
  return told(rank, *link);
}

/// The device reads it until the write is done, or the queue pair is taken from it.
void RcWire::release_source(Ticket ticket) {
  if (ticket == 0) return;
  std::unique_lock lock(mutex_);
  Link& link = *links_[ticket >> kTicketBits];
  const std::uint64_t number = number_of(ticket);
  if (link.completed(number) || link.copy_out(number)) return;
  link.break_off(Code::system, "it has been closed: a call has failed here, and not all that it had put was taken");
  spread_breaks();
  while (!link.completed(number)) {  // a second at most: then the link is finished
    if (!poll()) let_others(lock);
  }
}

Status RcWire::signal(int rank, int lane, Region to, std::size_t at, std::uint64_t count, std::uint64_t tag,
                      Flush flush) {
  const std::array<std::uint64_t, 2> both{count, tag};
  return put_inline(rank, lane, to, at, both.data(), sizeof both, flush);
}

/// One write.
Status RcWire::put_inline(int rank, int lane, Region to, std::size_t at, const void* from, std::size_t bytes,
                          Flush flush) {
  const std::lock_guard lock(mutex_);
  TUTTI_ASSIGN(Link * link, link_to(rank, lane));
  TUTTI_ASSIGN(const RemoteBuffer there, place_of(rank, lane, to, at, bytes));
  naps_.something_happened();
  (void)link->copy_out(link->write({static_cast<const std::byte*>(from), bytes, there, {}}));
  if (flush == Flush::now) link->send();
  return told(rank, *link);
}

}  // namespace tutti::transport::verbs
#endif
