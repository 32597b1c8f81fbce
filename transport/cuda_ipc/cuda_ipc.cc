#if TUTTI_HAS_CUDA
#include "transport/cuda_ipc/cuda_ipc.h"

#include <fmt/format.h>
#include <poll.h>
#include <sodium.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/forks.h"
#include "base/log.h"

namespace tutti::transport {

using device::check;

namespace {

/// A number of this process's own; a fork's is another one.
std::uint64_t process_number() {
  static std::mutex mutex;
  static std::pair<pid_t, std::uint64_t> made{-1, 0};
  const std::lock_guard lock(mutex);
  if (made.first != getpid()) {
    made.first = getpid();
    randombytes_buf(&made.second, sizeof(made.second));
  }
  return made.second;
}

template <std::size_t n>
void put_text(char (&field)[n], const std::string& text) {
  std::strncpy(field, text.c_str(), n - 1);
}

}  // namespace

/// A window that peers may still use. It outlives its CudaIpc, and so does all that is in here.
struct CudaIpc::Retired {
  std::unique_ptr<OwnMemory> window;
  RegionLog* logs = nullptr;
  std::uint64_t generation = 0;
  std::uint64_t forks = 0;
  std::shared_ptr<const Watched> watched;
  std::shared_ptr<const void> keep;
};
struct CudaIpc::Retirement {
  std::mutex mutex;
  std::vector<Retired> windows;  // guarded by mutex
};

// Never destroyed: a communicator may live as long as the process.
CudaIpc::Retirement& CudaIpc::retirement() {
  static Retirement& all = *new Retirement;
  return all;
}

bool CudaIpc::has_ended(const sockets::Fd& process) {
  pollfd watched{process.get(), POLLIN, 0};
  return process && ::poll(&watched, 1, 0) > 0;  // A signal may interrupt the call, which tells nothing.
}

void CudaIpc::sweep() {
  Retirement& all = retirement();
  std::vector<Retired> gone;  // freed without the lock
  const std::lock_guard lock(all.mutex);
  std::vector<Retired> kept;
  for (Retired& window : all.windows) {
    if (window.forks != forks()) {  // the parent's, whose driver a fork cannot use
      kept.push_back(std::move(window));
      continue;
    }
    const bool stale = window.generation != device::driver_generation();  // of a driver that is no more: tests only
    const std::uint64_t left = stale ? 0 : window.logs->detached.load(std::memory_order_acquire);
    bool used = false;
    for (std::size_t r = 0; !stale && r < window.watched->size(); ++r) {
      used |= (left >> r & 1) == 0 && !has_ended((*window.watched)[r]);
    }
    if (stale) (void)window.window.release();
    (used ? kept : gone).push_back(std::move(window));
  }
  all.windows = std::move(kept);
}

Result<std::unique_ptr<CudaIpc>> CudaIpc::connect(Config config) {
  sweep();
  std::unique_ptr<CudaIpc> made(new CudaIpc(std::move(config)));
  TUTTI_CHECK_LE(made->ranks(), static_cast<std::size_t>(kMostDeviceRanks));
  TUTTI_TRY(made->agree(made->prepare()));
  TUTTI_TRY(made->agree(made->meet()));
  // What all have announced by now, all know from the beginning.
  TUTTI_TRY(made->agree(made->poll()));
  return made;
}

Status CudaIpc::agree(const Status& mine) {
  IpcPeerInfo& info = logs_.own().info;
  if (!mine.ok()) {
    put_text(info.why, fmt::format("{}: {}", config_.name(config_.rank), mine.message()));
    info.code = static_cast<std::int32_t>(mine.code());
  }
  TUTTI_ASSIGN(const Words fine, config_.exchange(Words{mine.ok() ? std::uint64_t{1} : 0}));
  for (std::size_t r = 0; r < fine.size(); ++r) {
    if (fine[r] != 0) continue;
    const IpcPeerInfo& theirs = config_.logs[r]->info;
    return {static_cast<Code>(theirs.code), std::string(theirs.why, strnlen(theirs.why, sizeof(theirs.why) - 1))};
  }
  return {};
}

Status CudaIpc::prepare() {
  TUTTI_ASSIGN(cuda_, device::driver());
  TUTTI_ASSIGN(const device::CurrentContext current, device::enter(config_.device));
  const device::UncapturedCalls uncaptured(*cuda_);
  TUTTI_ASSIGN(arena_, DeviceArena::of(config_.device));
  TUTTI_ASSIGN(const CUuuid gpu, device::uuid_of(config_.device));
  TUTTI_TRY(check(cuda_->StreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0), "cuStreamCreateWithPriority"));
  TUTTI_ASSIGN(window_, OwnMemory::make(config_.device, config_.sizes.bytes()));
  TUTTI_ASSIGN(table_, OwnMemory::make(config_.device, table_bytes(config_.sizes)));
  for (const auto& memory : {window_.get(), table_.get()}) {
    TUTTI_TRY(check(cuda_->MemsetD8Async(memory->address(), 0, memory->bytes(), stream_), "cuMemsetD8Async"));
  }
  TUTTI_TRY(check(cuda_->StreamSynchronize(stream_), "cuStreamSynchronize", fmt::format("GPU {}", config_.device)));
  IpcPeerInfo& info = logs_.own().info;
  TUTTI_TRY(descriptors_.listen(info));
  info.pid = getpid();
  info.process = process_number();
  std::memcpy(info.gpu, gpu.bytes, sizeof(info.gpu));
  info.device = config_.device;
  info.window = window_->address();
  info.how = window_->how();
  seen_.resize(ranks());
  opened_.resize(ranks());
  peers_.resize(ranks());
  windows_.resize(ranks());
  return {};
}

Status CudaIpc::meet() {
  const IpcPeerInfo& mine = logs_.own().info;
  auto watched = std::make_shared<Watched>(ranks());
  for (std::size_t r = 0; r < ranks(); ++r) {
    const IpcPeerInfo& info = config_.logs[r]->info;
    peers_[r].same_process = info.process == mine.process;
    peers_[r].same_gpu = std::memcmp(info.gpu, mine.gpu, sizeof(info.gpu)) == 0;
    all_in_process_ &= peers_[r].same_process;
    all_on_gpu_ &= peers_[r].same_gpu;
    if (peers_[r].same_process) continue;
    (*watched)[r] = sockets::Fd(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(info.pid), 0)));
    if (!(*watched)[r] && errno == ESRCH) logs_.own().detached.fetch_or(std::uint64_t{1} << r);  // has ended already
  }
  watched_ = std::move(watched);
  // Descriptors are sent before any are waited for.
  for (std::size_t r = 0; r < ranks(); ++r) {
    if (!peers_[r].same_process && window_->how().kind == ExportKind::descriptor) {
      send_descriptor(static_cast<int>(r), 0, window_->descriptor());
    }
  }
  TUTTI_TRY(announce_segments());
  for (std::size_t r = 0; r < ranks(); ++r) TUTTI_TRY(map_window(static_cast<int>(r)));
  return write_table();
}

Status CudaIpc::map_window(int rank) {
  const auto r = static_cast<std::size_t>(rank);
  const IpcPeerInfo& info = config_.logs[r]->info;
  Peer& peer = peers_[r];
  if (peer.same_process) {
    TUTTI_ASSIGN(const bool reaches, device::enable_peer_access(config_.device, info.device));
    if (!reaches) {
      return unsupported(fmt::format("{} cannot reach the memory of {}, which is that of {}",
                                     device::name_of(config_.device), device::name_of(info.device),
                                     config_.name(rank)));
    }
    peer.window = info.window;
    return {};
  }
  sockets::Fd descriptor;
  if (info.how.kind == ExportKind::descriptor) {
    TUTTI_ASSIGN(descriptor, descriptors_.take(rank, 0, config_.alive, config_.name, config_.deadline));
  }
  Result<std::unique_ptr<PeerMemory>> mapped = PeerMemory::open(config_.device, info.how, std::move(descriptor));
  if (!mapped.ok()) {
    if (!config_.alive(rank)) {
      return {Code::peer_died, config_.name(rank) + " died while device memory was shared"};
    }
    return {mapped.status().code(),
            fmt::format("the device memory of {} cannot be mapped: {}", config_.name(rank), mapped.status().message())};
  }
  windows_[r] = mapped.take();
  peer.window = windows_[r]->address();
  return {};
}

Status CudaIpc::write_table() {
  std::vector<DevicePeer> table(ranks());
  const std::uint64_t regions = table_->address() + ranks() * sizeof(DevicePeer);
  for (std::size_t r = 0; r < ranks(); ++r) {
    table[r].window = peers_[r].window;
    table[r].regions = regions + r * kRegions * sizeof(std::uint64_t);
    table[r].region_count = kRegions;
    table[r].flags = peers_[r].same_process ? kSameAddresses : kAliased;
  }
  TUTTI_ASSIGN(const device::CurrentContext current, device::enter(config_.device));
  const device::UncapturedCalls uncaptured(*cuda_);
  TUTTI_TRY(check(cuda_->MemcpyAsync(table_->address(), reinterpret_cast<CUdeviceptr>(table.data()),
                                     table.size() * sizeof(DevicePeer), stream_),
                  "cuMemcpyAsync"));
  return check(cuda_->StreamSynchronize(stream_), "cuStreamSynchronize");
}

CudaIpc::~CudaIpc() {
  const Result<device::CurrentContext> current = device::enter(config_.device);
  opened_.clear();
  windows_.clear();
  table_.reset();
  if (stream_ != nullptr && current.ok()) {
    const device::UncapturedCalls uncaptured(*cuda_);
    (void)cuda_->StreamDestroy(stream_);
  }
  if (!watched_) return;  // no peer has mapped the window
  const std::uint64_t bit = std::uint64_t{1} << config_.rank;
  for (RegionLog* logs : config_.logs) logs->detached.fetch_or(bit, std::memory_order_acq_rel);
  if (window_) {
    Retirement& all = retirement();
    const std::lock_guard lock(all.mutex);
    all.windows.push_back({.window = std::move(window_),
                           .logs = &logs_.own(),
                           .generation = device::driver_generation(),
                           .forks = forks(),
                           .watched = watched_,
                           .keep = config_.keep});
  }
  sweep();
}

void CudaIpc::send_descriptor(int to, std::uint64_t message, int descriptor) {
  const Status sent = descriptors_.send(config_.logs[static_cast<std::size_t>(to)]->info, message, descriptor);
  // A peer that cannot take it any more has gone, and is missed elsewhere.
  if (!sent.ok()) log::debug("{}: {}", config_.name(to), sent.message());
}

}  // namespace tutti::transport
#endif
