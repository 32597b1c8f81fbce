#if TUTTI_HAS_CUDA

#include "collectives/device/engine_setup.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>
#include <string>

#include "base/options.h"
#include "collectives/executor/cuda/loaded_kernels.h"
#include "device/driver.h"
#include "transport/shm/arena.h"

namespace tutti {

using executor::cuda::BlockBudget;
using executor::cuda::Form;
using transport::CudaIpc;

namespace {

constexpr std::size_t kScratchHalf = std::size_t{8} << 20;
constexpr std::size_t kLeastScratchHalf = std::size_t{256} << 10;
constexpr std::size_t kExpressBytes = std::size_t{64} << 10;  // of what a rank publishes or puts
constexpr std::size_t kP2pBytes = std::size_t{32} << 10;      // of a message in one slot
constexpr std::size_t kLeastP2pBytes = std::size_t{4} << 10;
constexpr std::size_t kLeastPoolBytes = std::size_t{256} << 10;

std::uint64_t token_of_process() {
  static const std::uint64_t token = [] {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
  }();
  return token;
}

constexpr std::size_t kWords = sizeof(DevicePeerInfo) / sizeof(std::uint64_t);
static_assert(kWords <= KernelEngine::kGatherWords);

}  // namespace

/// Tells which ranks live, for longer than the communicator does: as long as peers may use a window.
class EngineSetup::Liveness {
 public:
  Liveness(const KernelEngine::Config& config, const std::vector<Greeting>& all)
      : host_(config.host), in_host_(config.in_host) {
    for (const Greeting& one : all)
      pids_.push_back(one.process == token_of_process() ? 0 : static_cast<pid_t>(one.pid));
  }
  bool alive(int rank) const {
    {
      const std::lock_guard lock(mutex_);
      if (host_ != nullptr) return host_->alive(in_host_.empty() ? rank : in_host_[static_cast<std::size_t>(rank)]);
    }
    const pid_t pid = pids_[static_cast<std::size_t>(rank)];
    return pid == 0 || ::kill(pid, 0) == 0 || errno == EPERM;  // 0: a thread of this process
  }
  /// The communicator is no more.
  void detach() {
    const std::lock_guard lock(mutex_);
    host_ = nullptr;
  }

 private:
  mutable std::mutex mutex_;
  transport::Transport* host_;  // guarded by mutex_
  const std::vector<int> in_host_;
  std::vector<pid_t> pids_;
};

EngineSetup::~EngineSetup() {
  detach();
  links_.reset();
}

void EngineSetup::detach() {
  if (living_) living_->detach();
}

Status EngineSetup::run() {
  Status mine = probe_device();
  TUTTI_ASSIGN(const std::vector<Greeting> all, exchange_peer_info(mine));
  mine = plan_blocks(all);
  TUTTI_TRY(agree(mine, &blocks_));
  blocks_ = std::min(blocks_, KernelEngine::kMostBlocks);
  budget_.keep(blocks_);
  TUTTI_TRY(plan_memory(all));
  number_ = all[0].region_log ^ all[0].process;
  TUTTI_ASSIGN(links_, CudaIpc::connect(links_config(all)));
  return {};
}

Status EngineSetup::probe_device() {
  if (config_.device < 0) {
    TUTTI_ASSIGN(const int current, device::current_device());
    config_.device = std::max(current, 0);
  }
  TUTTI_ASSIGN(kernels_, executor::cuda::Kernels::get(config_.device));
  TUTTI_ASSIGN(const CUuuid uuid, device::uuid_of(config_.device));
  static_assert(sizeof(uuid.bytes) == sizeof(greeting_.gpu));
  std::memcpy(greeting_.gpu, uuid.bytes, sizeof(greeting_.gpu));
  const std::string& shared = options::text(Option::shared_gpu);
  const bool side_by_side = shared == "kernels" || (shared == "auto" && device::under_mps(config_.device));
  greeting_.side_by_side = side_by_side ? 1 : 0;
  TUTTI_ASSIGN(transport::Arena* const arena, transport::Arena::process());
  TUTTI_ASSIGN(std::byte* const memory, arena->allocate(sizeof(transport::RegionLog)));
  region_log_ = std::shared_ptr<std::byte>(memory, [](std::byte* p) { transport::Arena::deallocate(p); });
  new (memory) transport::RegionLog();
  greeting_.region_log = config_.host->handle_of(memory, sizeof(transport::RegionLog));
  if (config_.size > transport::kMostDeviceRanks) {
    return unsupported(fmt::format("a communicator of {} ranks on device memory; expected at most {}", config_.size,
                                   transport::kMostDeviceRanks));
  }
  return {};
}

Result<std::vector<DevicePeerInfo>> EngineSetup::exchange_peer_info(const Status& mine) {
  greeting_.well = mine.ok() ? 1 : 0;
  greeting_.process = token_of_process();
  greeting_.pid = static_cast<std::uint64_t>(::getpid());
  const std::size_t limit = config_.options.memory_limit;
  greeting_.room = limit == 0 ? std::numeric_limits<std::uint64_t>::max() : limit;
  transport::Words words(kWords);
  std::memcpy(words.data(), &greeting_, sizeof(greeting_));
  TUTTI_ASSIGN(const transport::Words gathered, config_.gather(words));
  std::vector<Greeting> all(static_cast<std::size_t>(config_.size));
  for (std::size_t r = 0; r < all.size(); ++r) {
    std::memcpy(static_cast<void*>(&all[r]), gathered.data() + r * kWords, sizeof(Greeting));
  }
  if (!mine.ok()) return mine;
  for (int r = 0; r < config_.size; ++r) {
    if (all[static_cast<std::size_t>(r)].well == 0) return refused(r);
  }
  return all;
}

Status EngineSetup::refused(int rank) const {
  return unsupported(fmt::format("{} cannot work on device memory (its own error says why), so {} cannot either",
                                 config_.name(rank), config_.name(config_.rank)));
}

// Finds the ranks that share a GPU, and how many blocks each rank of this GPU may have.
Status EngineSetup::plan_blocks(const std::vector<Greeting>& all) {
  const auto same_gpu = [](const Greeting& a, const Greeting& b) {
    return a.gpu[0] == b.gpu[0] && a.gpu[1] == b.gpu[1];
  };
  int here = 0;
  int leader = -1;
  for (int r = 0; r < config_.size; ++r) {
    const Greeting& one = all[static_cast<std::size_t>(r)];
    for (const Greeting& other : all) {
      const bool shared = same_gpu(one, other) && one.process != other.process;
      if (shared && (one.side_by_side & other.side_by_side) == 0) form_ = Form::segmented;
      all_open_ = all_open_ && same_gpu(one, other) && one.process == other.process;
    }
    if (!same_gpu(one, greeting_) || one.process != greeting_.process) continue;
    if (leader < 0) leader = r;
    ++here;
  }
  shares_gpu_ = here > 1;
  blocks_ = std::numeric_limits<int>::max();  // another rank says
  if (form_ == Form::segmented && config_.waiting_only) {
    return unsupported("processes of a host share a GPU, where kernels cannot wait for each other");
  }
  if (form_ == Form::segmented) {
    TUTTI_ASSIGN(const int waits, device::attribute(config_.device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS));
    if (waits == 0) {
      return unsupported(device::name_of(config_.device) +
                         " has no streams that wait for values, which processes that share a GPU need; expected a GPU "
                         "for each process");
    }
    blocks_ = std::max(1, kernels_->capacity() / 2);
  } else if (leader == config_.rank) {
    // Kernels of the job's other processes may be beside these, of communicators that this rank knows nothing of.
    const int processes = greeting_.side_by_side != 0 ? config_.processes_of_gpu : 1;
    TUTTI_ASSIGN(budget_, BlockBudget::reserve(config_.device, here, processes));
    blocks_ = budget_.blocks_of_each();
  }
  return {};
}

Status EngineSetup::agree(const Status& mine, int* least) {
  const std::uint64_t word = mine.ok() ? static_cast<std::uint64_t>(least == nullptr ? 1 : *least) : 0;
  TUTTI_ASSIGN(const transport::Words all, config_.gather({word}));
  if (!mine.ok()) return mine;
  for (int r = 0; r < config_.size; ++r) {
    const std::uint64_t theirs = all[static_cast<std::size_t>(r)];
    if (theirs == 0) return refused(r);
    if (least != nullptr) *least = std::min(*least, static_cast<int>(theirs));
  }
  return {};
}

std::size_t EngineSetup::memory() const { return CudaIpc::memory(sizes_) + pool_bytes_; }

// From the facts of all ranks, so that all come to the same.
Status EngineSetup::plan_memory(const std::vector<Greeting>& all) {
  sizes_ = {.ranks = config_.size,
            .lanes = form_ == Form::segmented ? 1 : blocks_,
            .scratch_half = kScratchHalf,
            .published_half = kScratchHalf,
            .express_bytes = form_ == Form::segmented ? 0 : kExpressBytes,
            .p2p_bytes = config_.size <= 16 ? kP2pBytes : kP2pBytes / 4};
  pool_bytes_ = executor::cuda::DeviceExecutor::kPoolBytes;
  std::size_t room = std::numeric_limits<std::size_t>::max();
  for (const Greeting& one : all) room = std::min<std::size_t>(room, one.room);
  while (memory() > room && (sizes_.scratch_half > kLeastScratchHalf || pool_bytes_ > kLeastPoolBytes)) {
    sizes_.scratch_half = std::max(sizes_.scratch_half / 2, kLeastScratchHalf);
    sizes_.published_half = sizes_.scratch_half;
    sizes_.p2p_bytes = std::max(sizes_.p2p_bytes / 2, kLeastP2pBytes);
    pool_bytes_ = std::max(pool_bytes_ / 2, kLeastPoolBytes);
  }
  if (memory() <= room) return {};
  return Status(Code::memory_limit,
                fmt::format("a communicator of {} ranks takes at least {} bytes of each one's GPU memory; memory_limit "
                            "leaves {}",
                            config_.size, memory(), room));
}

CudaIpc::Config EngineSetup::links_config(const std::vector<Greeting>& all) {
  CudaIpc::Config links;
  links.rank = config_.rank;
  links.device = config_.device;
  links.sizes = sizes_;
  for (int r = 0; r < config_.size; ++r) {
    links.logs.push_back(reinterpret_cast<transport::RegionLog*>(
        r == config_.rank ? region_log_.get()
                          : config_.host->reach(config_.host_rank(r), all[static_cast<std::size_t>(r)].region_log)));
  }
  links.keep = region_log_;
  living_ = std::make_shared<Liveness>(config_, all);
  links.alive = [living = living_](int rank) { return living->alive(rank); };
  links.name = config_.name;
  links.exchange = config_.gather;
  links.deadline = config_.options.timeout;
  return links;
}

}  // namespace tutti

#endif  // TUTTI_HAS_CUDA
