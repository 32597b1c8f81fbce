#include "transport/shm/attach_trial.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "base/clock.h"
#include "base/cpu.h"
#include "transport/shm/cross_memory.h"

namespace tutti::transport {

namespace {

constexpr std::size_t kBytes = std::size_t{2} << 20;  // as much as scratch takes turns through
constexpr std::size_t kChunk = std::size_t{256} << 10;
constexpr int kLaps = 3;  // the first one finds the pages; of the others the better one counts
// What the kernel's copy must win by: a reduction reads its slots in place, and needs no copy out of them.
constexpr double kAdvantage = 1.25;
constexpr std::uint64_t kNone = ~std::uint64_t{0};

/// The places from which the next rank copies.
struct Place {
  std::uint64_t slots = kNone;  // offset in its arena
  std::uint64_t plain = 0;      // address
};

/// The times of both ways, in ns.
struct Times {
  std::uint64_t staged = std::numeric_limits<std::uint32_t>::max();  // by the better kind of stores into the slots
  std::uint64_t attached = std::numeric_limits<std::uint32_t>::max();
};

// What a rank does while its core is far from its reader's (collectives/executor/host/slot_stores.h).
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
  stream(to, from, bytes);
  stream_fence();
}

/// Returns the values of all ranks, by rank.
template <class T>
Result<std::vector<T>> exchange(bootstrap::Bootstrap& bootstrap, const T& mine) {
  TUTTI_ASSIGN(const std::vector<std::string> blobs,
               bootstrap.all_gather({reinterpret_cast<const char*>(&mine), sizeof(mine)}));
  std::vector<T> all(blobs.size());
  for (std::size_t r = 0; r < blobs.size(); ++r)
    std::memcpy(&all[r], blobs[r].data(), std::min(blobs[r].size(), sizeof(T)));
  return all;
}

// Of this thread alone: with more ranks than cores, another one's turn on the core must not count.
template <class Body>
std::uint64_t ns_of(Body&& body) {
  const std::int64_t begin = thread_cpu_ns();
  body();
  return static_cast<std::uint64_t>(thread_cpu_ns() - begin);
}

/// `next`: null for a rank that is alone on its host, which only keeps the others company.
Result<Times> try_both(bootstrap::Bootstrap& bootstrap, std::byte* slots, const std::vector<std::byte>& plain,
                       const ShmProcess* next, const Place& of_next) {
  std::vector<std::byte> to(kBytes, std::byte{2});
  Times best;
  for (int lap = 0; lap < kLaps; ++lap) {
    bool well = next != nullptr;
    std::uint64_t attached = 0;
    if (next != nullptr) {
      attached = ns_of([&] {
        for (std::size_t at = 0; at < kBytes; at += kChunk) {
          well = well && cross_memory_read(next->pid, of_next.plain + at, to.data() + at, kChunk).ok();
        }
      });
    }
    if (lap > 0 && well) best.attached = std::min(best.attached, attached);
    for (const bool past_caches : {false, true}) {
      std::uint64_t staged = ns_of([&] {
        past_caches ? copy_past_caches(slots, plain.data(), kBytes)
                    : static_cast<void>(std::memcpy(slots, plain.data(), kBytes));
      });
      TUTTI_TRY(bootstrap.barrier());
      if (next != nullptr) {
        staged += ns_of([&] { std::memcpy(to.data(), next->arena->base() + of_next.slots, kBytes); });
      }
      TUTTI_TRY(bootstrap.barrier());
      if (lap > 0) best.staged = std::min(best.staged, staged);
    }
  }
  return next == nullptr ? Times{0, 0} : best;
}

/// attach_pays() with this rank's slots; null: it found no memory for them.
Result<bool> compare_ways(bootstrap::Bootstrap& bootstrap, const Arena& arena, std::byte* slots,
                          const std::vector<std::shared_ptr<const ShmProcess>>& processes) {
  const std::vector<std::byte> plain(kBytes, std::byte{1});
  const Place mine{slots == nullptr ? kNone : static_cast<std::uint64_t>(slots - arena.base()),
                   reinterpret_cast<std::uint64_t>(plain.data())};
  TUTTI_ASSIGN(const std::vector<Place> places, exchange(bootstrap, mine));
  const auto has_none = [](const Place& place) { return place.slots == kNone; };
  if (slots == nullptr || std::any_of(places.begin(), places.end(), has_none)) return false;
  const auto rank = static_cast<std::size_t>(bootstrap.rank());
  std::size_t next = (rank + 1) % processes.size();
  while (processes[next] == nullptr) next = (next + 1) % processes.size();  // at the latest its own
  TUTTI_ASSIGN(const Times own,
               try_both(bootstrap, slots, plain, next == rank ? nullptr : processes[next].get(), places[next]));
  TUTTI_ASSIGN(const std::vector<Times> all, exchange(bootstrap, own));
  Times sum{0, 0};
  for (const Times& times : all) sum = {sum.staged + times.staged, sum.attached + times.attached};
  return kAdvantage * static_cast<double>(sum.attached) < static_cast<double>(sum.staged);
}

}  // namespace

Result<bool> attach_pays(bootstrap::Bootstrap& bootstrap, Arena& arena,
                         const std::vector<std::shared_ptr<const ShmProcess>>& processes) {
  const Result<std::byte*> slots = arena.allocate(kBytes);
  Result<bool> pays = compare_ways(bootstrap, arena, slots.ok() ? slots.value() : nullptr, processes);
  if (slots.ok()) Arena::deallocate(slots.value());
  return pays;
}

}  // namespace tutti::transport
