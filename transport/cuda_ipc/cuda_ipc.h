// The device memory of a communicator's ranks: threads of one process (plain pointers, peer access where the GPUs have
// it) and processes of one host (memory that is mapped), on one GPU or several.
//
//   TUTTI_ASSIGN(auto links, CudaIpc::connect(std::move(config)));     // a collective call
//   links->poll();                                                     // at the beginning of each call, on the host
//   TUTTI_ASSIGN(CudaIpc::Reach reach, links->handle_of(pointer, bytes));
//   ... a kernel that gets links->peers(), and reach.handle in its announcement ...
//
// A window lies in memory that is made for it and mapped by all for good. Callers' buffers are opened to peers by
// allocation ("regions"), not by call: memory from DeviceArena, and whatever else the driver can export, at any offset.
// It is announced when it is first used, and named to the peers' kernels as soon as all of them have mapped it (each
// does so in poll()), which takes a call or two; until then, and for memory that cannot be exported, the buffer is
// `plain`: out of peers' reach, and its owner copies it through its window. Memory that was freed and allocated anew at
// the same address has another id and is announced again.
//
// Lifetime: a window is freed when all ranks have left or their processes have ended (at the next window that is made
// or let go of). A peer that ends while its memory is mapped leaves the mapping readable; opening more of it gives
// peer_died.
//
// Threads: one at a time uses a CudaIpc. Kernels that read a region's address see it when they begin, or read it with a
// load that does not come from the first-level cache: entries are written while other kernels run.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/driver.h"
#include "transport/cuda_ipc/arena.h"
#include "transport/cuda_ipc/descriptors.h"
#include "transport/cuda_ipc/region_log.h"
#include "transport/device_window.h"
#include "transport/exchange.h"
#include "transport/sockets/fd.h"
#include "transport/transport.h"

namespace tutti::transport {

class CudaIpc {
 public:
  struct Config {
    int rank = 0;
    int device = 0;  // ordinal of this rank's GPU
    DeviceWindowSizes sizes;
    std::vector<RegionLog*> logs;      // by rank: zeroed host memory that all ranks see, aligned as RegionLog
    std::shared_ptr<const void> keep;  // keeps this rank's own, until no peer needs its window any more
    std::function<bool(int rank)> alive;
    std::function<std::string(int rank)> name;  // "rank 2 (host alpha, pid 4711)"
    Exchange exchange;
    std::chrono::milliseconds deadline{300'000};
  };
  /// A collective call of all ranks; three exchanges, or fewer when one of them fails. When a rank cannot go on, all of
  /// them give the same sentence. Errors: unsupported, memory_limit, system, peer_died, timeout.
  static Result<std::unique_ptr<CudaIpc>> connect(Config config);
  /// Returns how much of this rank's GPU memory it takes, in bytes: its window, and what it knows of the others'.
  static std::size_t memory(const DeviceWindowSizes& sizes) { return sizes.bytes() + table_bytes(sizes); }
  /// REQUIRES: no kernel uses any of it. Returns at once; what peers still use stays until they have left.
  ~CudaIpc();
  CudaIpc(const CudaIpc&) = delete;
  CudaIpc& operator=(const CudaIpc&) = delete;

  struct Peer {
    bool same_process = false;
    bool same_gpu = false;
    std::uint64_t window = 0;  // its address here
  };
  const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  int device() const { return config_.device; }
  const DeviceWindowSizes& sizes() const { return config_.sizes; }
  /// DevicePeer[ranks], in this GPU's memory: never changes, but for the entries of the arrays of regions.
  std::uint64_t peers() const { return table_->address(); }

  /// Carries out what peers have announced, and announces what the arena has got. Some loads when there is nothing.
  /// Errors: peer_died.
  Status poll();

  struct Reach {
    std::uint64_t handle = 0;
    bool plain = false;  // peers cannot reach it
  };
  /// How peers reach a caller's buffer; announces its memory if it is new. Errors: invalid_argument (no memory of this
  /// rank's GPU, or it ends before `bytes`), peer_died.
  Result<Reach> handle_of(const void* pointer, std::size_t bytes);

  bool alive(int rank) const { return config_.alive(rank); }
  int regions() const;  // that this rank has announced

  /// Frees this process's windows whose users have all gone. Called by connect() and the destructor. In a fork:
  /// nothing.
  static void sweep();

 private:
  struct Region {
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    std::uint64_t id = 0;     // find_allocation()'s; 0: a segment of the arena
    std::uint64_t event = 0;  // its number, from 1; of a closed one, that of the closing event
    bool open = false;
    bool known_by_all = false;
  };

  /// The peers' processes: descriptors that become readable when they end, by rank; none for this process.
  using Watched = std::vector<sockets::Fd>;
  static bool has_ended(const sockets::Fd& process);
  struct Retired;
  struct Retirement;
  static Retirement& retirement();

  static std::size_t table_bytes(const DeviceWindowSizes& sizes) {
    return static_cast<std::size_t>(sizes.ranks) * (sizeof(DevicePeer) + kRegions * sizeof(std::uint64_t));
  }
  explicit CudaIpc(Config config) : config_(std::move(config)) {}
  std::size_t ranks() const { return config_.logs.size(); }

  Status prepare();  // own window and info
  Status meet();     // peers' windows
  Status agree(const Status& mine);
  Status map_window(int rank);
  Status write_table();

  // Regions. A number: of an own one; nothing: there is no room just now, or it cannot be exported.
  std::optional<std::size_t> announce(CUdeviceptr base, std::size_t bytes, std::uint64_t id, const Export& how,
                                      int descriptor);
  bool is_known(Region& region, std::size_t number);
  void withdraw(std::size_t number);
  /// Takes back what its owner has freed: as long as peers have it mapped, the memory is not really free.
  void withdraw_if_freed(std::size_t number);
  Status announce_segments();
  Status apply_events(int owner);
  Status open_region(int owner, const RegionEvent& event, std::uint64_t number);
  Status set_region(int owner, std::uint32_t region, std::uint64_t address);

  void send_descriptor(int to, std::uint64_t message, int descriptor);

  const Config config_;
  const RegionLogs logs_{config_.logs, config_.rank};
  const device::Driver* cuda_ = nullptr;
  CUstream stream_ = nullptr;
  std::unique_ptr<OwnMemory> window_;
  std::unique_ptr<OwnMemory> table_;  // DevicePeer[ranks], then ranks x kRegions addresses
  std::vector<Peer> peers_;
  std::vector<std::unique_ptr<PeerMemory>> windows_;
  std::shared_ptr<const Watched> watched_;  // null: no peer knows of the window
  bool all_in_process_ = true;
  bool all_on_gpu_ = true;

  DescriptorExchange descriptors_{config_.rank, config_.logs.size()};

  DeviceArena* arena_ = nullptr;
  std::vector<std::optional<std::size_t>> segments_;  // of the arena: their regions
  std::vector<Region> own_;
  std::map<CUdeviceptr, std::size_t> by_base_;
  std::uint64_t polls_ = 0;
  std::vector<std::uint64_t> seen_;                                           // peers' events that are applied
  std::vector<std::map<std::uint32_t, std::unique_ptr<PeerMemory>>> opened_;  // by rank and region
};

}  // namespace tutti::transport
