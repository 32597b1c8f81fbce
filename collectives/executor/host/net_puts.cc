#include "collectives/executor/host/net_puts.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace tutti::executor {

namespace {

constexpr std::int64_t kDropNs = 500'000'000;

}  // namespace

Status NetPuts::put(int peer, int lane, const void* to, const void* from, std::size_t bytes, bool fixed) {
  transport::Ticket ticket = 0;
  const Status status = links_.put(peer, lane, to, from, bytes, ticket);
  return keep(status, ticket, peer, from, bytes, fixed);
}

Status NetPuts::put(int peer, int lane, transport::Region to, std::size_t at, const void* from, std::size_t bytes) {
  transport::Ticket ticket = 0;
  const Status status = links_.wire().put(links_.world_rank(peer), lane, to, at, from, bytes, ticket);
  return keep(status, ticket, peer, from, bytes, true);
}

Status NetPuts::keep(const Status& status, transport::Ticket ticket, int peer, const void* from, std::size_t bytes,
                     bool fixed) {
  const auto* begin = static_cast<const std::byte*>(from);
  if (ticket != 0) pending_.push_back({ticket, peer, begin, begin + bytes, fixed});
  return status.ok() ? status : waiter_.lost(peer, status);
}

template <class Matters>
Status NetPuts::settle(Matters&& matters) {
  for (std::size_t i = 0; i < pending_.size();) {
    const Pending put = pending_[i];
    // The others are not asked after: to ask sends what is held back, and a put should go with the signal behind it.
    if (!matters(put)) {
      ++i;
      continue;
    }
    if (!links_.completed(put.ticket)) {
      TUTTI_TRY(waiter_.until([&] { return links_.completed(put.ticket); }, put.peer));
    }
    pending_[i] = pending_.back();
    pending_.pop_back();
  }
  return {};
}

bool NetPuts::reads(const void* begin, std::size_t bytes) const {
  return std::any_of(pending_.begin(), pending_.end(), [&](const Pending& put) { return put.overlaps(begin, bytes); });
}

Status NetPuts::before_write(const void* begin, std::size_t bytes) {
  if (pending_.empty()) return {};
  return settle([&](const Pending& put) { return put.overlaps(begin, bytes); });
}

Status NetPuts::before_signal(int peer) {
  if (pending_.empty()) return {};
  return settle([&](const Pending& put) { return !put.fixed && put.peer != peer; });
}

Status NetPuts::finish(bool flush) {
  TUTTI_TRY(settle([](const Pending&) { return true; }));
  if (flush) TUTTI_TRY(links_.flush());
  const auto idle = [&] { return links_.idle(); };
  return idle() ? Status() : waiter_.until(idle, waiter_.rank());
}

void NetPuts::drop() {
  const std::int64_t since = now_ns();
  for (const Pending& put : pending_) {
    while (!links_.completed(put.ticket) && now_ns() - since < kDropNs) {
      if (!links_.progress()) links_.sleep(std::chrono::milliseconds(1));
    }
    links_.wire().release_source(put.ticket);
  }
  pending_.clear();
}

}  // namespace tutti::executor
