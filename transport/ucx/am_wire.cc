#include "transport/ucx/am_wire.h"

#ifdef TUTTI_HAS_UCX

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace tutti::ucx {

Result<std::unique_ptr<transport::Wire>> AmWire::open(const WireJob& job) {
  TUTTI_ASSIGN(std::unique_ptr<Context> context, Context::open(job));
  std::unique_ptr<AmWire> wire(new AmWire(job, std::move(context)));
  TUTTI_TRY(wire->links_.start());
  return std::unique_ptr<Wire>(std::move(wire));
}

AmWire::AmWire(const WireJob& job, std::unique_ptr<Context> context)
    : job_(job), links_(job_, *context, exposed_, sources_), context_(std::move(context)) {
  // What TCP and what an RDMA device give, roughly; to be measured by who wants to know.
  const bool rdma = context_->rdma();
  // Some devices leave a message less room than others.
  const std::size_t copied = std::min(kInline, (context_->message_bytes() - sizeof(Head) - sizeof(Entry)) / 8 * 8);
  info_ = {"ucx", context_->devices(), copied, rdma ? 2.0 : 12.0, rdma ? 10.0 : 1.0};
}

AmWire::~AmWire() {
  const std::lock_guard lock(mutex_);
  if (!links_.close_all(has_failed_)) {
    // The worker is left behind. No thread moves it any more, so it makes no callback.
    (void)context_.release();
    return;
  }
  for (const transport::Exposed& one : exposed_.all()) {
    if (one.base == nullptr) continue;
    (void)context_->ucp().mem_unmap(context_->context(), static_cast<ucp_mem_h>(one.registration));
  }
}

Status AmWire::meet(const std::vector<std::string>& addresses) {
  const std::lock_guard lock(mutex_);
  return links_.meet(addresses);
}

Result<std::string> AmWire::expose(std::byte* base, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  ucp_mem_h memory = nullptr;
  ucp_mem_map_params_t what{};
  what.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  what.address = base;
  what.length = bytes;
  const ucs_status_t mapped = context_->ucp().mem_map(context_->context(), &what, &memory);
  if (mapped != UCS_OK) {
    return Status(
        check(mapped, "").code(),
        fmt::format("UCX: {} bytes cannot be registered on {}: {}. If the limit of locked memory is low (ulimit "
                    "-l), raise it",
                    bytes, context_->devices(), words_of(mapped)));
  }
  return transport::print_key(exposed_.add(base, bytes, memory), bytes);
}

void AmWire::unexpose(std::byte* base) {
  const std::lock_guard lock(mutex_);
  const transport::Exposed one = exposed_.remove(base);
  if (one.base == nullptr) return;
  (void)context_->ucp().mem_unmap(context_->context(), static_cast<ucp_mem_h>(one.registration));
}

Result<Region> AmWire::attach(int rank, std::string_view key, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  return attached_.add("UCX", job_.names[static_cast<std::size_t>(rank)], rank, key, bytes);
}

void AmWire::detach(Region region) {
  const std::lock_guard lock(mutex_);
  attached_.remove(region);
}

Status AmWire::put(int rank, int lane, Region to, std::size_t at, const void* from, std::size_t bytes, Ticket& ticket) {
  ticket = 0;
  const std::lock_guard lock(mutex_);
  Links::Link& link = links_.link_of(rank);
  TUTTI_TRY(links_.connect(link));
  const transport::Attached& region = attached_.of(rank, to, at + bytes);
  if (bytes == 0) return {};
  if (bytes <= info_.copied) {
    Links::Lane& way = link.lanes[static_cast<std::size_t>(lane)];
    links_.open_in(link, way, bytes).message.put(region.number, at, from, bytes);
  } else {
    links_.large_put(link, lane, region, at, static_cast<const std::byte*>(from), bytes, ticket);
  }
  return link.broken ? link.why : Status();
}

Status AmWire::signal(int rank, int lane, Region to, std::size_t at, std::uint64_t count, std::uint64_t tag,
                      Flush flush) {
  const std::lock_guard lock(mutex_);
  Links::Link& link = links_.link_of(rank);
  TUTTI_TRY(links_.connect(link));
  const transport::Attached& region = attached_.of(rank, to, at + 2 * sizeof count);
  links_.open_in(link, link.lanes[static_cast<std::size_t>(lane)], 0).message.signal(region.number, at, count, tag);
  if (flush == Flush::now) links_.send(link, lane);
  return link.broken ? link.why : Status();
}

bool AmWire::completed(Ticket ticket) {
  if (ticket == 0) return true;
  const std::lock_guard lock(mutex_);
  const Source* source = sources_.find(ticket);
  if (source == nullptr) return true;
  // Who waits for it need not call flush() first.
  Links::Link& link = links_.link_of(source->rank);
  for (int lane = 0; lane < job_.lanes; ++lane) {
    const Links::Sending* open = link.lanes[static_cast<std::size_t>(lane)].open;
    if (open != nullptr && open->source == source) links_.send(link, lane);
  }
  return sources_.find(ticket) == nullptr;
}

void AmWire::release_source(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  links_.release(ticket);
}

void AmWire::give_up() {
  const std::lock_guard lock(mutex_);
  has_failed_ = true;
}

Status AmWire::flush() {
  const std::lock_guard lock(mutex_);
  for (int rank = 0; rank < job_.size(); ++rank) {
    for (int lane = 0; lane < job_.lanes; ++lane) links_.send(links_.link_of(rank), lane);
  }
  return {};
}

// What a full socket did not take of the last message lies in UCX's own buffer, which only a flush would tell; but a
// flush takes 2 ms (measured between namespaces), and the next send finds out.
bool AmWire::idle(std::span<const int> ranks) {
  const std::lock_guard lock(mutex_);
  return std::all_of(ranks.begin(), ranks.end(), [this](int rank) {
    const Links::Link& link = links_.link_of(rank);
    return link.outstanding == 0 || link.endpoint == nullptr;
  });
}

bool AmWire::progress() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock.owns_lock() && links_.move();  // else another thread is at it
}

void AmWire::sleep(std::chrono::nanoseconds most) {
  if (most <= std::chrono::nanoseconds(0)) return;
  {
    const std::lock_guard lock(mutex_);
    if (!links_.prepare_to_sleep()) return;
  }
  links_.sleep(most);
}

Status AmWire::broken(int rank) {
  const Links::Link& link = links_.link_of(rank);
  return link.broken.load(std::memory_order_acquire) ? link.why : Status();
}

std::string AmWire::obstacle(int rank) {
  const std::lock_guard lock(mutex_);
  return links_.obstacle(rank);
}

}  // namespace tutti::ucx

#endif
