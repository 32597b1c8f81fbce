#ifdef TUTTI_HAS_VERBS
#include "transport/verbs/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "transport/wire/blocks.h"

namespace tutti::transport::verbs {

namespace {

constexpr std::size_t kLeastKept = 16 << 10;  // a block is not registered for less, which is soon copied

// A key: the address of the memory and its bytes, then what each rail calls it; 0: it is not used.
static_assert(2 * sizeof(std::uint64_t) + kMostRails * sizeof(std::uint32_t) <= Wire::kMostKeyBytes);

}  // namespace

Memory::~Memory() {
  deregister(bounce_memory_);
  for (const RegisteredMemory* all : {&exposed_, &kept_}) {
    for (const auto& [base, memory] : *all) deregister(memory.by_rail);
  }
  if (bounce_ != nullptr) ::munmap(bounce_, kChunks * kChunkBytes);
}

Status Memory::make_bounce_buffers() {
  void* memory = ::mmap(nullptr, kChunks * kChunkBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return system_error("verbs: cannot allocate bounce buffers", errno);
  bounce_ = static_cast<std::byte*>(memory);
  bounce_memory_.resize(rails_.all.size());
  for (const std::size_t r : rails_.used) {
    TUTTI_ASSIGN(bounce_memory_[r], rails_.all[r]->register_memory(bounce_, kChunks * kChunkBytes, false));
  }
  return {};
}

Result<Memory::ByRail> Memory::register_for_peers(std::byte* base, std::size_t bytes, const Dmabuf* device) {
  ByRail all(rails_.all.size());
  for (const std::size_t r : rails_.used) {
    Result<ibv_mr*> memory = device != nullptr ? rails_.all[r]->register_device(base, bytes, *device)
                                               : rails_.all[r]->register_memory(base, bytes, true);
    if (!memory.ok()) {
      deregister(all);
      return memory.status();
    }
    all[r] = memory.take();
  }
  return all;
}

void Memory::deregister(const ByRail& memory) {
  for (std::size_t r = 0; r < memory.size(); ++r) {
    if (memory[r] != nullptr) rails_.all[r]->deregister(memory[r]);
  }
}

Result<std::string> Memory::expose(std::byte* base, std::size_t bytes, const Dmabuf* device) {
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

void Memory::unexpose(std::byte* base) {
  const auto found = exposed_.find(reinterpret_cast<std::uintptr_t>(base));
  if (found == exposed_.end()) return;
  deregister(found->second.by_rail);
  exposed_on_device_ -= found->second.on_device ? 1 : 0;
  exposed_.erase(found);
}

const Memory::Registered* Memory::find(const RegisteredMemory& all, const std::byte* from, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(from);
  auto found = all.upper_bound(address);
  if (found == all.begin()) return nullptr;
  --found;
  const std::size_t at = address - found->first;
  return at <= found->second.bytes && bytes <= found->second.bytes - at ? &found->second : nullptr;
}

const ibv_mr* Memory::source(const std::byte* from, std::size_t bytes, bool small, std::size_t rail) {
  const Registered* memory = small && exposed_on_device_ == 0 ? nullptr : find(exposed_, from, bytes);
  if (small && memory != nullptr && !memory->on_device) memory = nullptr;  // it goes along with the request
  return memory != nullptr ? memory->by_rail[rail] : small ? nullptr : keep(from, bytes, rail);
}

ibv_mr* Memory::keep(const std::byte* from, std::size_t bytes, std::size_t rail) {
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
  kept.by_rail.resize(rails_.all.size());
  Result<ibv_mr*> memory = rails_.all[rail]->register_memory(block.base, block.bytes, false);
  kept.is_copied = !memory.ok();
  if (kept.is_copied) {
    log::info("{}; what is sent from there is copied", memory.status().message());
    return nullptr;
  }
  kept_bytes_ += kept.bytes;
  return kept.by_rail[rail] = memory.take();
}

void Memory::forget(std::byte* base) {
  const auto found = kept_.find(reinterpret_cast<std::uintptr_t>(base));
  if (found == kept_.end()) return;
  for (const ibv_mr* memory : found->second.by_rail) kept_bytes_ -= memory != nullptr ? found->second.bytes : 0;
  deregister(found->second.by_rail);
  kept_.erase(found);
}

Result<Region> Memory::attach(int rank, const topology::RailShare& theirs, std::string_view key, std::size_t bytes) {
  std::uint64_t words[2] = {};
  if (key.size() <= sizeof words || (key.size() - sizeof words) % sizeof(std::uint32_t) != 0) {
    return invalid_argument(fmt::format("verbs: {} bytes are no key of exposed memory", key.size()));
  }
  std::memcpy(words, key.data(), sizeof words);
  const std::string& who = job_.names[static_cast<std::size_t>(rank)];
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

Result<RemoteBuffer> Memory::place_of(int rank, const topology::RailShare& theirs, int lane, Region region,
                                      std::size_t at, std::size_t bytes) const {
  static const Attached kNone;
  const Attached& there = region == 0 || region > regions_.size() ? kNone : regions_[region - 1];
  if (there.rank != rank || at > there.bytes || bytes > there.bytes - at) {
    return invalid_argument(fmt::format("verbs: {} bytes at {} are not in region {} ({} bytes of {}) of {}", bytes, at,
                                        region, there.bytes, there.rank < 0 ? "no rank" : job_.names[there.rank],
                                        job_.names[static_cast<std::size_t>(rank)]));
  }
  return RemoteBuffer{there.base + at, there.keys[static_cast<std::size_t>(theirs.of_lane(lane))]};
}

}  // namespace tutti::transport::verbs
#endif
