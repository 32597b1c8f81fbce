#include "transport/tcp/stream_wire.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace tutti::tcp {

Result<std::unique_ptr<transport::Wire>> StreamWire::open(const WireJob& job) {
  std::unique_ptr<StreamWire> wire(new StreamWire(job));
  TUTTI_TRY(wire->links_->listen());
  return std::unique_ptr<Wire>(std::move(wire));
}

StreamWire::~StreamWire() {
  const std::lock_guard lock(mutex_);
  links_.reset();
}

Status StreamWire::meet(const std::vector<std::string>& addresses) {
  const std::lock_guard lock(mutex_);
  return links_->meet(addresses);
}

Result<std::string> StreamWire::expose(std::byte* base, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  return transport::print_key(exposed_.add(base, bytes), bytes);
}

void StreamWire::unexpose(std::byte* base) {
  const std::lock_guard lock(mutex_);
  (void)exposed_.remove(base);
}

Result<Region> StreamWire::attach(int rank, std::string_view key, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  return attached_.add("TCP", job_.names[static_cast<std::size_t>(rank)], rank, key, bytes);
}

void StreamWire::detach(Region region) {
  const std::lock_guard lock(mutex_);
  attached_.remove(region);
}

Status StreamWire::put(int rank, int /*lane*/, Region to, std::size_t at, const void* from, std::size_t bytes,
                       Ticket& ticket) {
  ticket = 0;
  const std::lock_guard lock(mutex_);
  Links::Link& link = links_->link_of(rank);
  TUTTI_TRY(links_->connect(link));
  const transport::Attached& there = attached_.of(rank, to, at + bytes);
  if (bytes == 0) return {};
  if (bytes <= kCopied) {
    link.outbox.put(there.number, at, from, bytes);
    return {};
  }
  Source& source = sources_.open(rank, 1);
  ticket = source.ticket();
  link.outbox.large_put(there.number, at, from, bytes, source);
  return {};
}

Status StreamWire::signal(int rank, int /*lane*/, Region to, std::size_t at, std::uint64_t count, std::uint64_t tag,
                          Flush flush) {
  const std::lock_guard lock(mutex_);
  Links::Link& link = links_->link_of(rank);
  TUTTI_TRY(links_->connect(link));
  link.outbox.signal(attached_.of(rank, to, at + 2 * sizeof count).number, at, count, tag);
  if (flush == Flush::now) links_->flush(link);
  return link.broken ? link.why : Status();
}

void StreamWire::redirect(const void* slot, std::size_t bytes, void* to) {
  const std::lock_guard lock(mutex_);
  redirects_.add(static_cast<const std::byte*>(slot), bytes, static_cast<std::byte*>(to));
}

bool StreamWire::end_redirect(const void* slot) {
  const std::lock_guard lock(mutex_);
  return redirects_.remove(static_cast<const std::byte*>(slot));
}

bool StreamWire::completed(Ticket ticket) {
  if (ticket == 0) return true;
  const std::lock_guard lock(mutex_);
  const Source* source = sources_.find(ticket);
  if (source == nullptr) return true;
  links_->flush(links_->link_of(source->rank));  // who waits for it need not call flush() first
  return sources_.find(ticket) == nullptr;
}

void StreamWire::release_source(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  const Source* source = sources_.find(ticket);
  if (source != nullptr) links_->release(*source);
}

Status StreamWire::flush() {
  const std::lock_guard lock(mutex_);
  for (int rank = 0; rank < job_.size(); ++rank) links_->flush(links_->link_of(rank));
  return {};
}

bool StreamWire::idle(std::span<const int> ranks) {
  const std::lock_guard lock(mutex_);
  return std::all_of(ranks.begin(), ranks.end(), [this](int rank) { return !links_->link_of(rank).to_send; });
}

bool StreamWire::progress() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock.owns_lock() && links_->move(nullptr, false);  // else another thread is at it
}

bool StreamWire::progress_for(int rank) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock.owns_lock() && links_->move(&links_->link_of(rank), false);
}

void StreamWire::sleep(std::chrono::nanoseconds most) {
  if (most <= std::chrono::nanoseconds(0)) return;
  {
    const std::lock_guard lock(mutex_);
    if (!links_->prepare_to_sleep()) return;
  }
  links_->sleep(most);
}

Status StreamWire::broken(int rank) {
  const Links::Link& link = links_->link_of(rank);
  return link.broken.load(std::memory_order_acquire) ? link.why : Status();
}

std::string StreamWire::obstacle(int rank) {
  const std::lock_guard lock(mutex_);
  return links_->obstacle(rank);
}

}  // namespace tutti::tcp
