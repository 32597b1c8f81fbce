#ifdef TUTTI_HAS_VERBS
#include "transport/verbs/rc_wire.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "transport/blocks.h"

namespace tutti::transport::verbs {

namespace {

constexpr std::int64_t kProbeEvery = 500'000'000;
constexpr std::int64_t kLastWords = 3'000'000'000;  // what is under way when the wire goes gets so long
constexpr std::size_t kLeastKept = 16 << 10;        // a block is not registered for less, which is soon copied

}  // namespace

Result<std::unique_ptr<Wire>> RcWire::open(const WireJob& job, const std::string& devices) {
  TUTTI_ASSIGN(const Library* verbs, library());
  std::unique_ptr<RcWire> wire(new RcWire(*verbs, job));
  TUTTI_TRY(wire->start(devices));
  return std::unique_ptr<Wire>(std::move(wire));
}

Status RcWire::start(const std::string& devices) {
  TUTTI_ASSIGN(const std::vector<Port> ports, list_ports(verbs_));
  const auto most = static_cast<std::size_t>(std::max(job_.lanes, 1));
  TUTTI_ASSIGN(const std::vector<RailChoice> choices, choose_rails(ports, devices, job_.own_ip, most));
  int linked = 0;
  for (int m = 0; m < job_.members(); ++m) linked += job_.linked(m) ? 1 : 0;
  info_.name = "verbs";
  info_.alpha_us = 2;
  info_.copied = Link::kMostInline;
  info_.to_devices = verbs_.ibv_reg_dmabuf_mr_ != nullptr;
  for (const RailChoice& choice : choices) {
    TUTTI_ASSIGN(std::unique_ptr<Rail> rail, Rail::open(verbs_, ports[choice.port], choice.gid, linked));
    info_.devices += (rails_.empty() ? "" : ", ") + rail->text();
    info_.gb_per_s += rail->port().gb_per_s;
    rails_.push_back(std::move(rail));
  }
  TUTTI_TRY(make_staging());
  if (job_.blocks != nullptr) job_.blocks->watch(this, [this](std::byte* base) { forget(base); });
  members_.resize(static_cast<std::size_t>(job_.members()));
  for (int m = 0; m < job_.members(); ++m) {
    if (!job_.linked(m)) continue;
    for (std::size_t r = 0; r < rails_.size(); ++r) {
      TUTTI_ASSIGN(std::unique_ptr<Link> link,
                   Link::make(*rails_[r], links_.size(), job_.names[static_cast<std::size_t>(m)],
                              {pool_, staging_, staging_memory_[r]->lkey, kChunkBytes}));
      info_.copied = std::min(info_.copied, link->inline_bytes());
      link_by_pair_[std::uint64_t{r} << 32 | link->queue_pair()] = link.get();
      members_[static_cast<std::size_t>(m)].links.push_back(link.get());
      links_.push_back(std::move(link));
    }
  }
  return write_address(linked);
}

Status RcWire::write_address(int linked) {
  Address own;
  for (const std::unique_ptr<Rail>& rail : rails_) own.rails.push_back(rail->end());
  for (const Member& member : members_) {
    for (std::size_t r = 0; r < rails_.size(); ++r) {
      own.pairs.push_back(member.links.empty() ? 0 : member.links[r]->queue_pair());
    }
  }
  address_ = text_of(own);
  if (address_.size() <= kMostAddressBytes) return {};
  return unsupported(fmt::format("verbs: {} members on {} rails make an address of {} bytes; {} are allowed", linked,
                                 rails_.size(), address_.size(), kMostAddressBytes));
}

Status RcWire::meet(const std::vector<std::string>& addresses) {
  const std::lock_guard lock(mutex_);
  for (int m = 0; m < job_.members(); ++m) {
    if (job_.linked(m)) TUTTI_TRY(connect(m, addresses[static_cast<std::size_t>(m)]));
  }
  return {};
}

Status RcWire::connect(int member, const std::string& text) {
  const std::string& who = job_.names[static_cast<std::size_t>(member)];
  TUTTI_ASSIGN(const Address address, address_of(text, job_.members(), who));
  std::vector<Link*>& links = members_[static_cast<std::size_t>(member)].links;
  links.resize(std::min(links.size(), address.rails.size()));
  for (std::size_t r = 0; r < links.size(); ++r) {
    TUTTI_TRY(links[r]->connect(address.rails[r], address.pair(job_.own, r)));
  }
  return {};
}

Status RcWire::make_staging() {
  void* memory = ::mmap(nullptr, kChunks * kChunkBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return system_error("verbs: cannot allocate staging memory", errno);
  staging_ = static_cast<std::byte*>(memory);
  for (const std::unique_ptr<Rail>& rail : rails_) {
    TUTTI_ASSIGN(ibv_mr * registered, rail->register_memory(staging_, kChunks * kChunkBytes, false));
    staging_memory_.push_back(registered);
  }
  return {};
}

RcWire::~RcWire() {
  if (job_.blocks != nullptr) job_.blocks->unwatch(this);
  finish();
  links_.clear();
  for (std::size_t r = 0; r < staging_memory_.size(); ++r) rails_[r]->deregister(staging_memory_[r]);
  for (const RegisteredMemory* all : {&exposed_, &kept_}) {
    for (const auto& [base, memory] : *all) deregister(memory);
  }
  if (staging_ != nullptr) ::munmap(staging_, kChunks * kChunkBytes);
}

/// What was put and signalled is still to arrive: a queue pair that goes takes what is under way with it.
void RcWire::finish() {
  std::unique_lock lock(mutex_);
  for (const std::unique_ptr<Link>& link : links_) {
    if (!link->connected() || !link->broken().ok()) continue;
    if (!link->idle() && make_room(*link, lock).ok()) link->hold_probe();  // its completion stands for all before it
    link->send();
  }
  const auto is_idle = [](const std::unique_ptr<Link>& link) { return !link->connected() || link->idle(); };
  for (const std::int64_t begin = now_ns(); !std::all_of(links_.begin(), links_.end(), is_idle);) {
    if (!poll()) cpu_relax();
    if (now_ns() - begin > kLastWords) break;
  }
}

Result<std::vector<ibv_mr*>> RcWire::register_with_all(std::byte* base, std::size_t bytes, bool for_peers,
                                                       const Dmabuf* device) {
  std::vector<ibv_mr*> all;
  for (const std::unique_ptr<Rail>& rail : rails_) {
    Result<ibv_mr*> memory =
        device != nullptr ? rail->register_device(base, bytes, *device) : rail->register_memory(base, bytes, for_peers);
    if (!memory.ok()) {
      for (std::size_t r = 0; r < all.size(); ++r) rails_[r]->deregister(all[r]);
      return memory.status();
    }
    all.push_back(memory.take());
  }
  return all;
}

void RcWire::deregister(const Registered& memory) {
  for (std::size_t r = 0; r < memory.by_rail.size(); ++r) rails_[r]->deregister(memory.by_rail[r]);
}

Result<std::string> RcWire::expose(std::byte* base, std::size_t bytes, const Dmabuf* device) {
  const std::lock_guard lock(mutex_);
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  if (bytes == 0 || exposed_.count(address) != 0) {
    return invalid_argument(fmt::format("verbs: {} bytes at {} cannot be exposed: {}", bytes, fmt::ptr(base),
                                        bytes == 0 ? "there is nothing" : "memory there is exposed already"));
  }
  Registered exposed{bytes, device != nullptr, {}};
  TUTTI_ASSIGN(exposed.by_rail, register_with_all(base, bytes, true, device));
  const std::uint64_t words[2] = {address, bytes};
  std::string key(reinterpret_cast<const char*>(words), sizeof words);
  for (const ibv_mr* memory : exposed.by_rail)
    key.append(reinterpret_cast<const char*>(&memory->rkey), sizeof memory->rkey);
  exposed_on_device_ += exposed.on_device ? 1 : 0;
  exposed_[address] = std::move(exposed);
  return key;
}

void RcWire::conceal(std::byte* base) {
  const std::lock_guard lock(mutex_);
  const auto found = exposed_.find(reinterpret_cast<std::uintptr_t>(base));
  if (found == exposed_.end()) return;
  deregister(found->second);
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

const RcWire::Registered* RcWire::keep(const std::byte* from, std::size_t bytes) {
  if (job_.blocks == nullptr) return nullptr;
  const Registered* known = find(kept_, from, bytes);
  if (known == nullptr) {
    if (bytes < kLeastKept) return nullptr;
    const Blocks::Block block = job_.blocks->block_of(from, bytes);
    if (block.base == nullptr) return nullptr;
    Registered& kept = kept_[reinterpret_cast<std::uintptr_t>(block.base)];
    kept.bytes = block.bytes;
    // Half of what may be locked is left to windows, which cannot do without.
    const std::size_t most = Rail::lockable_bytes() / 2, cost = locked_by(kept);
    if (cost <= most && kept_bytes_ <= most - cost) {
      Result<std::vector<ibv_mr*>> memory = register_with_all(block.base, block.bytes, false, nullptr);
      if (memory.ok()) {
        kept.by_rail = memory.take();
        kept_bytes_ += cost;
      } else {
        log::info("{}; what is sent from there is copied", memory.status().message());
      }
    }
    known = &kept;
  }
  return known->by_rail.empty() ? nullptr : known;
}

void RcWire::forget(std::byte* base) {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(reinterpret_cast<std::uintptr_t>(base));
  if (found == kept_.end()) return;
  if (!found->second.by_rail.empty()) kept_bytes_ -= locked_by(found->second);
  deregister(found->second);
  kept_.erase(found);
}

Result<Region> RcWire::attach(int member, std::string_view key, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  std::uint64_t words[2] = {};
  if (key.size() <= sizeof words || (key.size() - sizeof words) % sizeof(std::uint32_t) != 0) {
    return invalid_argument(fmt::format("verbs: {} bytes are no key of exposed memory", key.size()));
  }
  std::memcpy(words, key.data(), sizeof words);
  const std::string& who = job_.names[static_cast<std::size_t>(member)];
  const std::size_t rails = members_[static_cast<std::size_t>(member)].links.size();
  if ((key.size() - sizeof words) / sizeof(std::uint32_t) < rails) {
    return invalid_argument(fmt::format("verbs: the key of {} serves fewer than {} rails", who, rails));
  }
  if (words[1] != bytes) {
    return invalid_argument(fmt::format("verbs: {} exposes {} bytes; {} were expected", who, words[1], bytes));
  }
  Attached region{member, words[0], words[1], std::vector<std::uint32_t>((key.size() - sizeof words) / 4)};
  std::memcpy(region.keys.data(), key.data() + sizeof words, region.keys.size() * 4);
  auto free = std::find_if(regions_.begin(), regions_.end(), [](const Attached& r) { return r.member < 0; });
  if (free == regions_.end()) free = regions_.insert(free, Attached());
  *free = std::move(region);
  return static_cast<Region>(free - regions_.begin()) + 1;  // never 0
}

void RcWire::detach(Region region) {
  const std::lock_guard lock(mutex_);
  regions_[region - 1] = Attached();
}

bool RcWire::settled(Ticket ticket) {
  if (ticket == 0) return true;
  const std::lock_guard lock(mutex_);
  const Link& link = *links_[ticket >> kTicketBits];
  const std::uint64_t number = number_of(ticket);
  if (link.settled(number)) return true;
  (void)poll();
  return link.settled(number);
}

Status RcWire::broken(int member) {
  const std::lock_guard lock(mutex_);
  return members_[static_cast<std::size_t>(member)].broken;
}

Status RcWire::post() {
  const std::lock_guard lock(mutex_);
  send_all();
  return {};
}

bool RcWire::progress() {
  const std::lock_guard lock(mutex_);
  if (++polls_ % 1024 == 0) probe_silent_links();
  return poll();
}

void RcWire::doze(std::chrono::nanoseconds most) {
  std::vector<pollfd> watched;
  std::chrono::nanoseconds nap{};
  {
    const std::lock_guard lock(mutex_);
    probe_silent_links();
    if (poll()) return;
    for (const std::unique_ptr<Rail>& rail : rails_) {
      rail->arm();
      watched.push_back({rail->event_fd(), POLLIN, 0});
    }
    if (poll()) return;  // it came before the arming
    nap = std::min<std::chrono::nanoseconds>(naps_.next(), most);
  }
  const timespec limit{nap.count() / 1'000'000'000, nap.count() % 1'000'000'000};
  if (::ppoll(watched.data(), watched.size(), &limit, nullptr) <= 0) return;
  const std::lock_guard lock(mutex_);
  for (std::size_t r = 0; r < rails_.size(); ++r) {
    if (watched[r].revents != 0) rails_[r]->drain_events();
  }
  (void)poll();
}

bool RcWire::poll() {
  bool any = false;
  for (std::size_t r = 0; r < rails_.size(); ++r) {
    any |= rails_[r]->poll([&](const ibv_wc& completion) {
      const auto found = link_by_pair_.find(std::uint64_t{r} << 32 | completion.qp_num);
      if (found == link_by_pair_.end()) return;
      found->second->take(completion);
      any_break_ |= !found->second->broken().ok();
    });
  }
  if (any_break_) spread_breaks();
  if (any) naps_.something_happened();
  return any;
}

/// A member whose link has broken on one rail is not to be reached by the others either: order and completeness of what
/// it gets are gone.
void RcWire::spread_breaks() {
  any_break_ = false;
  for (Member& member : members_) {
    if (!member.broken.ok()) continue;
    for (const Link* link : member.links) {
      if (!link->broken().ok()) member.broken = link->broken();
    }
    if (member.broken.ok()) continue;
    for (Link* link : member.links) link->break_off(member.broken.code(), "another rail to the same peer is broken");
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
  for (const Member& member : members_) {
    if (!member.broken.ok()) continue;
    for (Link* link : member.links) {
      // What is under way and asks for completions serves as well; what does not ask is told by the probe.
      if (!link->connected() || !link->can_hold() || link->holds()) continue;
      link->hold_probe();
      link->send();
    }
  }
}

}  // namespace tutti::transport::verbs
#endif
