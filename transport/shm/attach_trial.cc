#include "transport/shm/attach_trial.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "base/clock.h"
#include "transport/shm/cross_memory.h"

namespace tutti::transport {

namespace {

constexpr std::size_t kBytes = std::size_t{2} << 20;  // as much as scratch takes turns through
constexpr std::size_t kChunk = std::size_t{256} << 10;
constexpr int kLaps = 3;  // the first one finds the pages; of the others the better one counts
constexpr std::uint64_t kNothing = ~std::uint64_t{0};

struct Pair {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
};

Result<std::vector<Pair>> exchange(bootstrap::Bootstrap& bootstrap, const Pair& mine) {
  TUTTI_ASSIGN(const std::vector<std::string> blobs,
               bootstrap.all_gather({reinterpret_cast<const char*>(&mine), sizeof(mine)}));
  std::vector<Pair> pairs(blobs.size());
  for (std::size_t r = 0; r < blobs.size(); ++r) {
    std::memcpy(&pairs[r], blobs[r].data(), std::min(blobs[r].size(), sizeof(Pair)));
  }
  return pairs;
}

Status barrier(bootstrap::Bootstrap& bootstrap) { return bootstrap.all_gather("").status(); }

template <class Body>
std::uint64_t ns_of(Body&& body) {
  const std::int64_t begin = now_ns();
  body();
  return static_cast<std::uint64_t>(now_ns() - begin);
}

// REQUIRES: slots of kBytes. What both ways take on this rank, in ns.
Result<Pair> try_both(bootstrap::Bootstrap& bootstrap, std::byte* slots, const std::vector<std::byte>& plain,
                      const ShmProcess& next, const Pair& of_next) {
  std::vector<std::byte> to(kBytes, std::byte{2});
  Pair best{std::numeric_limits<std::uint32_t>::max(), std::numeric_limits<std::uint32_t>::max()};
  for (int lap = 0; lap < kLaps; ++lap) {
    std::uint64_t staged = ns_of([&] { std::memcpy(slots, plain.data(), kBytes); });
    TUTTI_TRY(barrier(bootstrap));
    staged += ns_of([&] { std::memcpy(to.data(), next.arena->base() + of_next.first, kBytes); });
    bool well = true;
    const std::uint64_t attached = ns_of([&] {
      for (std::size_t at = 0; at < kBytes; at += kChunk) {
        well = well && cross_memory_read(next.pid, of_next.second + at, to.data() + at, kChunk).ok();
      }
    });
    TUTTI_TRY(barrier(bootstrap));
    if (lap == 0) continue;
    best.first = std::min(best.first, staged);
    if (well) best.second = std::min(best.second, attached);
  }
  return best;
}

}  // namespace

Result<bool> attach_pays(bootstrap::Bootstrap& bootstrap, Arena& arena,
                         const std::vector<std::shared_ptr<const ShmProcess>>& processes) {
  const std::vector<std::byte> plain(kBytes, std::byte{1});
  Result<std::byte*> slots = arena.allocate(kBytes);
  const Pair mine{slots.ok() ? static_cast<std::uint64_t>(slots.value() - arena.base()) : kNothing,
                  reinterpret_cast<std::uint64_t>(plain.data())};
  const Result<std::vector<Pair>> all = exchange(bootstrap, mine);
  const auto has_slots = [](const Pair& pair) { return pair.first != kNothing; };
  Result<bool> pays = false;
  if (!all.ok()) {
    pays = all.status();
  } else if (std::all_of(all.value().begin(), all.value().end(), has_slots)) {
    const auto next = static_cast<std::size_t>((bootstrap.rank() + 1) % bootstrap.size());
    const Result<Pair> times = try_both(bootstrap, slots.value(), plain, *processes[next], all.value()[next]);
    const Result<std::vector<Pair>> of_all = times.ok() ? exchange(bootstrap, times.value()) : times.status();
    if (of_all.ok()) {
      Pair sum;
      for (const Pair& pair : of_all.value()) sum = {sum.first + pair.first, sum.second + pair.second};
      pays = sum.second < sum.first;
    } else {
      pays = of_all.status();
    }
  }
  if (slots.ok()) Arena::deallocate(slots.value());
  return pays;
}

}  // namespace tutti::transport
