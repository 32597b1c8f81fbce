#ifdef TUTTI_HAS_VERBS
#include "transport/verbs/rc_wire.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "transport/verbs/devices.h"
#include "transport/wire/blocks.h"

namespace tutti::transport::verbs {

namespace {

/// Who waits must not keep other threads, of other communicators perhaps, from theirs.
void let_others(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  std::this_thread::yield();
  lock.lock();
}

}  // namespace

Result<std::unique_ptr<Wire>> RcWire::open(const WireJob& job, const std::string& devices) {
  TUTTI_ASSIGN(const Library* verbs, library());
  std::unique_ptr<RcWire> wire(new RcWire(*verbs, job));
  TUTTI_TRY(wire->start(devices));
  return std::unique_ptr<Wire>(std::move(wire));
}

Status RcWire::start(const std::string& devices) {
  TUTTI_ASSIGN(const std::vector<Port> ports, list_ports(verbs_));
  TUTTI_ASSIGN(const std::vector<RailChoice> choices, choose_rails(ports, devices, job_.own_ip));
  const std::vector<int> links_by_rail = links_.share(static_cast<int>(choices.size()));
  info_.name = "verbs";
  info_.alpha_us = 2;
  info_.copied = Link::kMostInline;
  info_.to_devices = verbs_.ibv_reg_dmabuf_mr_ != nullptr;
  for (std::size_t r = 0; r < choices.size(); ++r) {
    TUTTI_ASSIGN(std::unique_ptr<Rail> rail,
                 Rail::open(verbs_, ports[choices[r].port], choices[r].gid, links_by_rail[r]));
    info_.devices += (rails_.all.empty() ? "" : ", ") + rail->text();
    info_.gb_per_s += rail->port().gb_per_s;
    rails_.all.push_back(std::move(rail));
    if (links_by_rail[r] > 0) rails_.used.push_back(r);
  }
  TUTTI_TRY(memory_.make_bounce_buffers());
  if (job_.blocks != nullptr) {
    job_.blocks->watch(this, [this](std::byte* base) {
      const std::lock_guard lock(mutex_);
      memory_.forget(base);
    });
  }
  TUTTI_TRY(links_.make(memory_));
  for (const std::unique_ptr<Link>& link : links_.all()) info_.copied = std::min(info_.copied, link->inline_bytes());
  address_ = links_.address();
  if (address_.size() <= kMostAddressBytes) return {};
  return unsupported(fmt::format("verbs: {} ranks on {} rails make an address of {} bytes; {} are allowed", job_.size(),
                                 rails_.all.size(), address_.size(), kMostAddressBytes));
}

RcWire::~RcWire() {
  if (job_.blocks != nullptr) job_.blocks->unwatch(this);
  const std::lock_guard lock(mutex_);
  links_.finish();
}

Status RcWire::meet(const std::vector<std::string>& addresses) {
  const std::lock_guard lock(mutex_);
  for (int m = 0; m < job_.size(); ++m) {
    if (job_.linked(m)) TUTTI_TRY(links_.connect(m, addresses[static_cast<std::size_t>(m)]));
  }
  return {};
}

Result<std::string> RcWire::expose(std::byte* base, std::size_t bytes, const Dmabuf* device) {
  const std::lock_guard lock(mutex_);
  return memory_.expose(base, bytes, device);
}

void RcWire::unexpose(std::byte* base) {
  const std::lock_guard lock(mutex_);
  memory_.unexpose(base);
}

Result<Region> RcWire::attach(int rank, std::string_view key, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  return memory_.attach(rank, links_.peer(rank).theirs, key, bytes);
}

void RcWire::detach(Region region) {
  const std::lock_guard lock(mutex_);
  memory_.detach(region);
}

// Puts and signals. None of them waits: what finds no room stays in its link's backlog.

Status RcWire::put(int rank, int lane, Region to, std::size_t at, const void* from, std::size_t bytes, Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  ticket = 0;
  TUTTI_ASSIGN(Link * link, links_.to(rank, lane));
  TUTTI_ASSIGN(const RemoteBuffer there, place_of(rank, lane, to, at, bytes));
  links_.backoff().reset();
  const auto* source = static_cast<const std::byte*>(from);
  const bool small = bytes <= link->inline_bytes();
  const auto rail = static_cast<std::size_t>(links_.peer(rank).own.of_lane(lane));
  const ibv_mr* registered = memory_.source(source, bytes, small, rail);
  Link::Write write{source, bytes, there, {}};
  if (registered != nullptr) write.key = registered->lkey;
  const std::uint64_t read = link->write(write);
  if (read != 0 && !(small && link->copy_out(read))) ticket = link->place() << kTicketBits | read;
  return links_.after_write(rank, *link);
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
  TUTTI_ASSIGN(Link * link, links_.to(rank, lane));
  TUTTI_ASSIGN(const RemoteBuffer there, place_of(rank, lane, to, at, bytes));
  links_.backoff().reset();
  (void)link->copy_out(link->write({static_cast<const std::byte*>(from), bytes, there, {}}));
  if (flush == Flush::now) link->send();
  return links_.after_write(rank, *link);
}

bool RcWire::completed(Ticket ticket) {
  if (ticket == 0) return true;
  const std::lock_guard lock(mutex_);
  const Link& link = *links_.all()[ticket >> kTicketBits];
  const std::uint64_t number = number_of(ticket);
  if (link.completed(number)) return true;
  (void)links_.poll();
  return link.completed(number);
}

/// The device reads it until the write is done, or the queue pair is taken from it.
void RcWire::release_source(Ticket ticket) {
  if (ticket == 0) return;
  std::unique_lock lock(mutex_);
  Link& link = *links_.all()[ticket >> kTicketBits];
  const std::uint64_t number = number_of(ticket);
  if (link.completed(number) || link.copy_out(number)) return;
  link.break_off(Code::system, "it has been closed: a call has failed here, and not all that it had put was taken");
  links_.spread_breaks();
  while (!link.completed(number)) {  // a second at most: then the link is finished
    if (!links_.poll()) let_others(lock);
  }
}

// Moving.

Status RcWire::broken(int rank) {
  const std::lock_guard lock(mutex_);
  return links_.peer(rank).broken;
}

Status RcWire::flush() {
  const std::lock_guard lock(mutex_);
  links_.send_all();
  return {};
}

bool RcWire::idle(std::span<const int> ranks) {
  const std::lock_guard lock(mutex_);
  return std::none_of(ranks.begin(), ranks.end(), [this](int m) {
    const std::vector<Link*>& links = links_.peer(m).links;
    return std::any_of(links.begin(), links.end(), [](const Link* link) { return link->backlogged(); });
  });
}

bool RcWire::progress() {
  const std::lock_guard lock(mutex_);
  if (++polls_ % 1024 == 0) links_.probe_silent_links();
  return links_.poll();
}

void RcWire::sleep(std::chrono::nanoseconds most) {
  std::vector<pollfd> watched;
  std::chrono::nanoseconds pause{};
  {
    const std::lock_guard lock(mutex_);
    links_.probe_silent_links();
    if (links_.poll()) return;
    for (const std::size_t r : rails_.used) {
      rails_.all[r]->arm();
      watched.push_back({rails_.all[r]->event_fd(), POLLIN, 0});
    }
    if (links_.poll()) return;  // it came before the arming
    pause = std::min(links_.backoff().next(), most);
  }
  const timespec limit{pause.count() / 1'000'000'000, pause.count() % 1'000'000'000};
  if (::ppoll(watched.data(), watched.size(), &limit, nullptr) <= 0) return;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < watched.size(); ++i) {
    if (watched[i].revents != 0) rails_.all[rails_.used[i]]->drain_events();
  }
  (void)links_.poll();
}

}  // namespace tutti::transport::verbs
#endif
