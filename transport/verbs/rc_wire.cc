#ifdef TUTTI_HAS_VERBS
#include "transport/verbs/rc_wire.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/log.h"
#include "transport/wire/blocks.h"

namespace tutti::transport::verbs {

namespace {

constexpr std::int64_t kProbeEvery = 500'000'000;
constexpr std::int64_t kLastWords = 3'000'000'000;  // what is under way when the wire goes gets so long
constexpr std::size_t kLeastKept = 16 << 10;        // a block is not registered for less, which is soon copied

// A key: the address of the memory and its bytes, then what each rail calls it; 0: it is not used.
static_assert(2 * sizeof(std::uint64_t) + kMostRails * sizeof(std::uint32_t) <= Wire::kMostKeyBytes);

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
  std::vector<int> links_by_rail(choices.size());
  peers_.resize(static_cast<std::size_t>(job_.size()));
  for (int m = 0; m < job_.size(); ++m) {
    if (!job_.linked(m)) continue;
    // The peer may have fewer, which meet() will tell.
    const int rails = static_cast<int>(choices.size());
    topology::RailShare& own = peers_[static_cast<std::size_t>(m)].own;
    own = shares_.between(job_.rank, rails, m, rails);
    own.count = std::min(own.count, std::max(job_.lanes, 1));
    for (int k = 0; k < own.count; ++k) ++links_by_rail[static_cast<std::size_t>(own.of_lane(k))];
  }
  info_.name = "verbs";
  info_.alpha_us = 2;
  info_.copied = Link::kMostInline;
  info_.to_devices = verbs_.ibv_reg_dmabuf_mr_ != nullptr;
  for (std::size_t r = 0; r < choices.size(); ++r) {
    TUTTI_ASSIGN(std::unique_ptr<Rail> rail,
                 Rail::open(verbs_, ports[choices[r].port], choices[r].gid, links_by_rail[r]));
    info_.devices += (rails_.empty() ? "" : ", ") + rail->text();
    info_.gb_per_s += rail->port().gb_per_s;
    rails_.push_back(std::move(rail));
    if (links_by_rail[r] > 0) used_rails_.push_back(r);
  }
  TUTTI_TRY(make_bounce_buffers());
  if (job_.blocks != nullptr) job_.blocks->watch(this, [this](std::byte* base) { forget(base); });
  TUTTI_TRY(make_links());
  return write_address();
}

Status RcWire::make_links() {
  for (int m = 0; m < job_.size(); ++m) {
    if (!job_.linked(m)) continue;
    Peer& peer = peers_[static_cast<std::size_t>(m)];
    for (int k = 0; k < peer.own.count; ++k) {
      const auto r = static_cast<std::size_t>(peer.own.of_lane(k));
      TUTTI_ASSIGN(std::unique_ptr<Link> link,
                   Link::make(*rails_[r], links_.size(), job_.names[static_cast<std::size_t>(m)],
                              {pool_, bounce_, bounce_memory_[r]->lkey, kChunkBytes}));
      info_.copied = std::min(info_.copied, link->inline_bytes());
      link_by_pair_[std::uint64_t{r} << 32 | link->queue_pair()] = link.get();
      peer.links.push_back(link.get());
      links_.push_back(std::move(link));
    }
  }
  return {};
}

Status RcWire::write_address() {
  Address own;
  own.lanes = static_cast<std::size_t>(std::max(job_.lanes, 1));
  for (const std::unique_ptr<Rail>& rail : rails_) own.rails.push_back(rail->end());
  for (const Peer& peer : peers_) {
    for (std::size_t k = 0; k < own.lanes; ++k) {
      own.pairs.push_back(k < peer.links.size() ? peer.links[k]->queue_pair() : 0);
    }
  }
  address_ = text_of(own);
  if (address_.size() <= kMostAddressBytes) return {};
  return unsupported(fmt::format("verbs: {} ranks on {} rails make an address of {} bytes; {} are allowed", job_.size(),
                                 rails_.size(), address_.size(), kMostAddressBytes));
}

Status RcWire::meet(const std::vector<std::string>& addresses) {
  const std::lock_guard lock(mutex_);
  for (int m = 0; m < job_.size(); ++m) {
    if (job_.linked(m)) TUTTI_TRY(connect(m, addresses[static_cast<std::size_t>(m)]));
  }
  return {};
}

Status RcWire::connect(int m, const std::string& text) {
  const std::string& who = job_.names[static_cast<std::size_t>(m)];
  const int lanes = std::max(job_.lanes, 1);
  TUTTI_ASSIGN(const Address address, address_of(text, job_.size(), static_cast<std::size_t>(lanes), who));
  Peer& peer = peers_[static_cast<std::size_t>(m)];
  const int here = static_cast<int>(rails_.size());
  const int there = static_cast<int>(address.rails.size());
  peer.own = shares_.between(job_.rank, here, m, there);
  peer.theirs = shares_.between(m, there, job_.rank, here);
  peer.own.count = peer.theirs.count = std::min(peer.own.count, lanes);
  peer.links.resize(static_cast<std::size_t>(peer.own.count));
  for (std::size_t k = 0; k < peer.links.size(); ++k) {
    const auto rail = static_cast<std::size_t>(peer.theirs.of_lane(static_cast<int>(k)));
    TUTTI_TRY(peer.links[k]->connect(address.rails[rail], address.pair(job_.rank, k)));
  }
  return {};
}

Status RcWire::make_bounce_buffers() {
  void* memory = ::mmap(nullptr, kChunks * kChunkBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return system_error("verbs: cannot allocate bounce buffers", errno);
  bounce_ = static_cast<std::byte*>(memory);
  bounce_memory_.resize(rails_.size());
  for (const std::size_t r : used_rails_) {
    TUTTI_ASSIGN(bounce_memory_[r], rails_[r]->register_memory(bounce_, kChunks * kChunkBytes, false));
  }
  return {};
}

RcWire::~RcWire() {
  if (job_.blocks != nullptr) job_.blocks->unwatch(this);
  finish();
  links_.clear();
  deregister(bounce_memory_);
  for (const RegisteredMemory* all : {&exposed_, &kept_}) {
    for (const auto& [base, memory] : *all) deregister(memory.by_rail);
  }
  if (bounce_ != nullptr) ::munmap(bounce_, kChunks * kChunkBytes);
}

/// What was put and signalled is still to arrive: a queue pair that goes takes what is under way with it.
void RcWire::finish() {
  const std::lock_guard lock(mutex_);
  send_all();
  std::vector<bool> probed(links_.size());
  const auto is_done = [&](const std::unique_ptr<Link>& link) {
    if (!link->connected() || link->idle()) return true;
    const std::size_t l = link->place();
    if (!probed[l]) probed[l] = link->broken().ok() && link->probe();  // its completion stands for all before it
    return false;
  };
  for (const std::int64_t begin = now_ns(); !std::all_of(links_.begin(), links_.end(), is_done);) {
    if (!poll()) cpu_relax();
    if (now_ns() - begin > kLastWords) break;
  }
}

Result<RcWire::ByRail> RcWire::register_for_peers(std::byte* base, std::size_t bytes, const Dmabuf* device) {
  ByRail all(rails_.size());
  for (const std::size_t r : used_rails_) {
    Result<ibv_mr*> memory = device != nullptr ? rails_[r]->register_device(base, bytes, *device)
                                               : rails_[r]->register_memory(base, bytes, true);
    if (!memory.ok()) {
      deregister(all);
      return memory.status();
    }
    all[r] = memory.take();
  }
  return all;
}

void RcWire::deregister(const ByRail& memory) {
  for (std::size_t r = 0; r < memory.size(); ++r) {
    if (memory[r] != nullptr) rails_[r]->deregister(memory[r]);
  }
}

Result<std::string> RcWire::expose(std::byte* base, std::size_t bytes, const Dmabuf* device) {
  const std::lock_guard lock(mutex_);
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  if (bytes == 0 || exposed_.count(address) != 0) {
    return invalid_argument(fmt::format("verbs: {} bytes at {} cannot be exposed: {}", bytes, fmt::ptr(base),
                                        bytes == 0 ? "there is nothing" : "memory there is exposed already"));
  }
  Registered exposed{bytes, device != nullptr, {}, false};
  TUTTI_ASSIGN(exposed.by_rail, register_for_peers(base, bytes, device));
  const std::uint64_t words[2] = {address, bytes};
  std::string key(reinterpret_cast<const char*>(words), sizeof words);
  for (const ibv_mr* memory : exposed.by_rail) {
    const std::uint32_t for_peers = memory != nullptr ? memory->rkey : 0;
    key.append(reinterpret_cast<const char*>(&for_peers), sizeof for_peers);
  }
  exposed_on_device_ += exposed.on_device ? 1 : 0;
  exposed_[address] = std::move(exposed);
  return key;
}

void RcWire::unexpose(std::byte* base) {
  const std::lock_guard lock(mutex_);
  const auto found = exposed_.find(reinterpret_cast<std::uintptr_t>(base));
  if (found == exposed_.end()) return;
  deregister(found->second.by_rail);
  exposed_on_device_ -= found->second.on_device ? 1 : 0;
  exposed_.erase(found);
}

const RcWire::Registered* RcWire::find(const RegisteredMemory& all, const std::byte* from, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(from);
  auto found = all.upper_bound(address);
  if (found == all.begin()) return nullptr;
  --found;
  const std::size_t at = address - found->first;
  return at <= found->second.bytes && bytes <= found->second.bytes - at ? &found->second : nullptr;
}

ibv_mr* RcWire::keep(const std::byte* from, std::size_t bytes, std::size_t rail) {
  if (job_.blocks == nullptr) return nullptr;
  const Registered* known = find(kept_, from, bytes);
  if (known != nullptr && (known->by_rail[rail] != nullptr || known->is_copied)) return known->by_rail[rail];
  if (bytes < kLeastKept) return nullptr;
  const Blocks::Block block = job_.blocks->block_of(from, bytes);
  if (block.base == nullptr) return nullptr;
  // Half of what may be locked is left to windows, which cannot do without.
  const std::size_t most = Rail::lockable_bytes() / 2;
  if (block.bytes > most || kept_bytes_ > most - block.bytes) return nullptr;
  Registered& kept = kept_[reinterpret_cast<std::uintptr_t>(block.base)];
  kept.bytes = block.bytes;
  kept.by_rail.resize(rails_.size());
  Result<ibv_mr*> memory = rails_[rail]->register_memory(block.base, block.bytes, false);
  kept.is_copied = !memory.ok();
  if (kept.is_copied) {
    log::info("{}; what is sent from there is copied", memory.status().message());
    return nullptr;
  }
  kept_bytes_ += kept.bytes;
  return kept.by_rail[rail] = memory.take();
}

void RcWire::forget(std::byte* base) {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(reinterpret_cast<std::uintptr_t>(base));
  if (found == kept_.end()) return;
  for (const ibv_mr* memory : found->second.by_rail) kept_bytes_ -= memory != nullptr ? found->second.bytes : 0;
  deregister(found->second.by_rail);
  kept_.erase(found);
}

Result<Region> RcWire::attach(int rank, std::string_view key, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  std::uint64_t words[2] = {};
  if (key.size() <= sizeof words || (key.size() - sizeof words) % sizeof(std::uint32_t) != 0) {
    return invalid_argument(fmt::format("verbs: {} bytes are no key of exposed memory", key.size()));
  }
  std::memcpy(words, key.data(), sizeof words);
  const std::string& who = job_.names[static_cast<std::size_t>(rank)];
  const topology::RailShare& theirs = peers_[static_cast<std::size_t>(rank)].theirs;
  const std::size_t rails = (key.size() - sizeof words) / sizeof(std::uint32_t);
  if (rails < static_cast<std::size_t>(theirs.first + theirs.count)) {
    return invalid_argument(fmt::format("verbs: the key of {} serves {} rails, fewer than it has", who, rails));
  }
  if (words[1] != bytes) {
    return invalid_argument(fmt::format("verbs: {} exposes {} bytes; {} were expected", who, words[1], bytes));
  }
  Attached region{rank, words[0], words[1], std::vector<std::uint32_t>(rails)};
  std::memcpy(region.keys.data(), key.data() + sizeof words, rails * sizeof(std::uint32_t));
  auto free = std::find_if(regions_.begin(), regions_.end(), [](const Attached& r) { return r.rank < 0; });
  if (free == regions_.end()) free = regions_.insert(free, Attached());
  *free = std::move(region);
  return static_cast<Region>(free - regions_.begin()) + 1;  // never 0
}

void RcWire::detach(Region region) {
  const std::lock_guard lock(mutex_);
  regions_[region - 1] = Attached();
}

bool RcWire::completed(Ticket ticket) {
  if (ticket == 0) return true;
  const std::lock_guard lock(mutex_);
  const Link& link = *links_[ticket >> kTicketBits];
  const std::uint64_t number = number_of(ticket);
  if (link.completed(number)) return true;
  (void)poll();
  return link.completed(number);
}

Status RcWire::broken(int rank) {
  const std::lock_guard lock(mutex_);
  return peers_[static_cast<std::size_t>(rank)].broken;
}

Status RcWire::flush() {
  const std::lock_guard lock(mutex_);
  send_all();
  return {};
}

bool RcWire::idle(std::span<const int> ranks) {
  const std::lock_guard lock(mutex_);
  return std::none_of(ranks.begin(), ranks.end(), [this](int m) {
    const std::vector<Link*>& links = peers_[static_cast<std::size_t>(m)].links;
    return std::any_of(links.begin(), links.end(), [](const Link* link) { return link->backlogged(); });
  });
}

bool RcWire::progress() {
  const std::lock_guard lock(mutex_);
  if (++polls_ % 1024 == 0) probe_silent_links();
  return poll();
}

void RcWire::sleep(std::chrono::nanoseconds most) {
  std::vector<pollfd> watched;
  std::chrono::nanoseconds nap{};
  {
    const std::lock_guard lock(mutex_);
    probe_silent_links();
    if (poll()) return;
    for (const std::size_t r : used_rails_) {
      rails_[r]->arm();
      watched.push_back({rails_[r]->event_fd(), POLLIN, 0});
    }
    if (poll()) return;  // it came before the arming
    nap = std::min<std::chrono::nanoseconds>(naps_.next(), most);
  }
  const timespec limit{nap.count() / 1'000'000'000, nap.count() % 1'000'000'000};
  if (::ppoll(watched.data(), watched.size(), &limit, nullptr) <= 0) return;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < watched.size(); ++i) {
    if (watched[i].revents != 0) rails_[used_rails_[i]]->drain_events();
  }
  (void)poll();
}

bool RcWire::poll() {
  bool any = false;
  for (const std::size_t r : used_rails_) {
    const int completed = rails_[r]->poll([&](const ibv_wc& completion) {
      const auto found = link_by_pair_.find(std::uint64_t{r} << 32 | completion.qp_num);
      if (found == link_by_pair_.end()) return;
      found->second->take(completion);
      any_break_ |= !found->second->broken().ok();
    });
    any |= completed > 0;
    if (completed < 0) break_rail(r);
  }
  if (any_break_) spread_breaks();
  if (is_waiting_) any |= advance();
  if (any) naps_.something_happened();
  return any;
}

void RcWire::break_rail(std::size_t rail) {
  for (const auto& [pair, link] : link_by_pair_) {
    if (pair >> 32 == rail) link->break_off(Code::system, "ibv_poll_cq failed");
  }
  any_break_ = true;
}

/// BounceBuffers memory that one link gives back may be what another one waits for.
bool RcWire::advance() {
  bool any = false;
  is_waiting_ = false;
  for (const std::unique_ptr<Link>& link : links_) {
    if (!link->waits()) continue;
    any |= link->advance();
    any_break_ |= !link->broken().ok();
    is_waiting_ |= link->waits();
  }
  if (any_break_) spread_breaks();
  return any;
}

/// A rank whose link has broken on one rail is not to be reached by the others either: order and completeness of what
/// it gets are gone.
void RcWire::spread_breaks() {
  any_break_ = false;
  for (Peer& peer : peers_) {
    if (!peer.broken.ok()) continue;
    for (const Link* link : peer.links) {
      if (!link->broken().ok()) peer.broken = link->broken();
    }
    if (peer.broken.ok()) continue;
    for (Link* link : peer.links) link->break_off(peer.broken.code(), "another rail to the same peer is broken");
    is_waiting_ = true;
  }
}

void RcWire::send_all() {
  for (const std::unique_ptr<Link>& link : links_) {
    link->send();
    any_break_ |= !link->broken().ok();
  }
  if (any_break_) spread_breaks();
}

void RcWire::probe_silent_links() {
  const std::int64_t now = now_ns();
  if (now - probed_ns_ < kProbeEvery) return;
  probed_ns_ = now;
  for (const Peer& peer : peers_) {
    if (!peer.broken.ok()) continue;
    // What is to be sent serves as well; what is under way and asked for no completion is told by the probe.
    for (Link* link : peer.links) {
      (void)link->probe();
      any_break_ |= !link->broken().ok();
    }
  }
  if (any_break_) spread_breaks();
}

}  // namespace tutti::transport::verbs
#endif
