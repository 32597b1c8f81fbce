// The memory of a verbs wire: what this process has exposed, what it writes from, and the peers' regions.
//
// Threads: the owner serialises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "topology/rails.h"
#include "transport/verbs/link.h"
#include "transport/verbs/rail.h"
#include "transport/wire/wire.h"

namespace tutti::transport::verbs {

class Memory {
 public:
  /// Both outlive it.
  Memory(const WireJob& job, const Rails& rails) : job_(job), rails_(rails) {}
  /// REQUIRES: no queue pair is left that reads or writes it.
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Makes the memory that other sources are copied to, once the rails are open.
  Status make_bounce_buffers();
  Link::BounceBuffers bounce_buffers(std::size_t rail) {
    return {pool_, bounce_, bounce_memory_[rail]->lkey, kChunkBytes};
  }

  /// `device`: null for memory of the host.
  Result<std::string> expose(std::byte* base, std::size_t bytes, const Dmabuf* device);
  void unexpose(std::byte* base);
  /// Returns the registration to write from; null: the source is copied. A block of the host's own allocation is
  /// registered now with that rail where it has not been. `small`: it goes along with the request unless it lies on a
  /// device.
  const ibv_mr* source(const std::byte* from, std::size_t bytes, bool small, std::size_t rail);
  /// A block has ended.
  void forget(std::byte* base);

  /// `theirs`: the peer's rails for this process. Errors: as Wire::attach().
  Result<Region> attach(int rank, const topology::RailShare& theirs, std::string_view key, std::size_t bytes);
  void detach(Region region) { regions_[region - 1] = Attached(); }
  /// Returns where `at` in the region is, on the peer's rail of that lane.
  Result<RemoteBuffer> place_of(int rank, const topology::RailShare& theirs, int lane, Region region, std::size_t at,
                                std::size_t bytes) const;

 private:
  using ByRail = std::vector<ibv_mr*>;  // null: not with that one
  struct Registered {
    std::size_t bytes = 0;
    bool on_device = false;  // and so never to be read here
    ByRail by_rail;          // of what is kept: those by which something has left
    bool is_copied = false;  // it could not be registered with another one
  };
  using RegisteredMemory = std::map<std::uintptr_t, Registered>;  // by where it begins
  struct Attached {
    int rank = -1;  // -1: free
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
    std::vector<std::uint32_t> keys;  // by the rank's rail
  };

  /// Returns null if not all of it is in one of these.
  static const Registered* find(const RegisteredMemory& all, const std::byte* from, std::size_t bytes);
  /// Returns the registration of the block that it lies in; null if it has to be copied.
  ibv_mr* keep(const std::byte* from, std::size_t bytes, std::size_t rail);
  /// Registers it with all rails that are used, or with none.
  Result<ByRail> register_for_peers(std::byte* base, std::size_t bytes, const Dmabuf* device);
  void deregister(const ByRail& memory);

  static constexpr std::uint32_t kChunks = 64;
  static constexpr std::size_t kChunkBytes = 64 << 10;

  const WireJob& job_;
  const Rails& rails_;
  std::byte* bounce_ = nullptr;
  ByRail bounce_memory_;
  ChunkPool pool_{kChunks};
  RegisteredMemory exposed_;
  int exposed_on_device_ = 0;   // how many of them are
  RegisteredMemory kept_;       // the caller's own: blocks that have been put from
  std::size_t kept_bytes_ = 0;  // that they lock, with each rail again
  std::vector<Attached> regions_;
};

}  // namespace tutti::transport::verbs
