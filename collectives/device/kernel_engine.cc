#include "collectives/device/kernel_engine.h"

#if TUTTI_HAS_CUDA

#include <fmt/format.h>

#include <bit>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "collectives/calls/validate.h"
#include "collectives/device/engine_setup.h"
#include "collectives/device/kernel_watchdog.h"
#include "collectives/device/program_cache.h"
#include "collectives/device/stream_registry.h"
#include "collectives/executor/cuda/executor.h"
#include "device/driver.h"
#include "transport/cuda_ipc/cuda_ipc.h"

namespace tutti {

namespace {

using executor::cuda::DeviceExecutor;
using transport::CudaIpc;

class CudaEngine final : public KernelEngine {
 public:
  explicit CudaEngine(Config config)
      : owned_setup_(std::make_unique<EngineSetup>(std::move(config))), setup_(*owned_setup_) {}
  ~CudaEngine() override {
    if (watch_ == nullptr || watch_->wait_until_idle()) return;
    // A kernel still runs, or stands behind other work: what it may touch (windows, programs, itself) stays for good.
    watch_.reset();
    keep_for_good(std::move(owned_setup_), std::move(executor_));
  }

  Status set_up() {
    TUTTI_TRY(setup_.run());
    // Among several hosts kernels and the host's calls are made by two threads.
    if (!setup_.config().in_host.empty()) executor::stop_counting(board());
    Status mine = start();
    if (mine.ok()) {
      watch_ = std::make_unique<KernelWatchdog>(setup_.config(), *executor_);
      mine = watch_->begin();
    }
    TUTTI_TRY(setup_.agree(mine, nullptr));
    streams_ = std::make_unique<StreamRegistry>(setup_.number(), rank(), device());
    set_timeout(setup_.config().options.timeout);
    return {};
  }

  Status run(std::span<const Request> requests) override {
    TUTTI_TRY(setup_.links().poll());
    const auto stream = static_cast<CUstream>(requests.front().call->stream);
    TUTTI_TRY(check_stream(stream));
    std::vector<std::shared_ptr<const ProgramCache::Entry>> ready;
    std::vector<DeviceExecutor::Launch> launches;
    for (const Request& request : requests) {
      TUTTI_ASSIGN(ready.emplace_back(), programs_->get(request));
      TUTTI_ASSIGN(launches.emplace_back(), launch_of(request, *ready.back()));
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const Call& call = *requests[i].call;
      executor::announce_launch(board(), calls_ + i + 1,
                                {requests[i].identity, launches[i].fingerprint, ready[i]->algorithm,
                                 elements_of(call, size()) * size_of(call.type)});
    }
    const Status put = executor_->launch(launches, stream);
    // A graph may be launched as often as the program likes, on some ranks alone.
    if (executor_->progress().captured) executor::stop_counting(board());
    for (std::size_t i = 0; put.ok() && i < requests.size(); ++i) executor::count_launch(board(), ++calls_);
    watch_->wake(calls_);
    TUTTI_TRY(put);
    explanations_.resize(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      explanations_[i] = ready[i]->explanation;
      if (requests.size() > 1)
        explanations_[i].reason += fmt::format("; call {} of a group of {}", i + 1, ready.size());
    }
    return {};
  }

  Status run_group(std::span<const Transfer> transfers) override {
    TUTTI_TRY(setup_.links().poll());
    const auto stream = static_cast<CUstream>(transfers.front().stream);
    TUTTI_TRY(check_stream(stream));
    TUTTI_ASSIGN(const ProgramCache::Program list, programs_->p2p(transfers));
    const Status put = executor_->launch_p2p(list, stream);
    watch_->wake(calls_);
    return put;
  }

  int device() const override { return setup_.config().device; }
  std::span<const Explanation> explanations() const override { return explanations_; }
  std::size_t memory() const override { return setup_.memory(); }
  void set_timeout(std::chrono::nanoseconds timeout) override {
    executor_->set_limit(timeout.count());
    programs_->set_timeout(timeout.count());
    watch_->set_timeout(timeout.count());
  }
  std::uint64_t calls() const override { return calls_; }

 private:
  int rank() const { return setup_.config().rank; }
  int size() const { return setup_.config().size; }
  transport::Board& board() const {
    const Config& config = setup_.config();
    return *config.host->window(config.host_rank(rank())).board;
  }

  Status start() {
    DeviceExecutor::Place place;
    place.device = device();
    place.rank = rank();
    place.name = setup_.config().name(rank());
    place.form = setup_.form();
    place.sizes = setup_.sizes();
    place.pool_bytes = setup_.pool_bytes();
    place.peers = setup_.links().peers();
    place.window = setup_.links().peer(rank()).window;
    TUTTI_ASSIGN(executor_, DeviceExecutor::create(place));
    TUTTI_ASSIGN(programs_, ProgramCache::create(setup_, *executor_));
    return {};
  }

  /// Ranks that share a GPU must not share a stream: the second one's kernel would wait behind the first one's, which
  /// waits for it.
  Status check_stream(CUstream stream) {
    const int other = setup_.shares_gpu() ? streams_->use(stream) : -1;
    if (other < 0) return {};
    return invalid_argument(
        fmt::format("{} uses the same stream as {} on {}; ranks that share a GPU need streams of "
                    "their own, or each waits behind the other",
                    setup_.config().name(rank()), setup_.config().name(other), device::name_of(device())));
  }

  Result<DeviceExecutor::Launch> launch_of(const Request& request, const ProgramCache::Entry& ready) {
    const Call& call = *request.call;
    DeviceExecutor::Launch launch;
    launch.first = ready.first;
    launch.if_plain = ready.if_plain;
    launch.if_in_place = ready.if_in_place;
    launch.input = call.send;
    launch.output = call.recv;
    launch.fingerprint = request.identity.fingerprint();
    launch.announcement.factor = std::bit_cast<std::uint64_t>(call.factor);
    launch.announcement.what = std::bit_cast<std::uint64_t>(request.identity.words);
    launch.announcement.count = request.identity.count;
    if (ready.opens) {
      TUTTI_ASSIGN(const CudaIpc::Reach input, reach(call.send, ready.input_bytes));
      TUTTI_ASSIGN(const CudaIpc::Reach output, reach(call.recv, ready.output_bytes));
      launch.announcement.input = input.handle;
      launch.announcement.output = output.handle;
      if (input.plain || output.plain) launch.announcement.flags |= transport::kDevicePlain;
    }
    if (request.in_place) launch.announcement.flags |= transport::kDeviceInPlace;
    return launch;
  }

  Result<CudaIpc::Reach> reach(const void* pointer, std::size_t bytes) {
    if (pointer == nullptr || bytes == 0) return CudaIpc::Reach{};
    return setup_.links().handle_of(pointer, bytes);
  }

  static void keep_for_good(std::unique_ptr<EngineSetup> setup, std::unique_ptr<DeviceExecutor> executor) {
    struct Kept {
      std::mutex mutex;
      std::vector<std::pair<std::unique_ptr<EngineSetup>, std::unique_ptr<DeviceExecutor>>> halves;
    };
    static Kept& all = *new Kept;  // never destroyed
    const std::lock_guard lock(all.mutex);
    setup->detach();
    all.halves.emplace_back(std::move(setup), std::move(executor));
  }

  // In this order: what comes later uses what comes before.
  std::unique_ptr<EngineSetup> owned_setup_;
  EngineSetup& setup_;
  std::unique_ptr<DeviceExecutor> executor_;
  std::unique_ptr<ProgramCache> programs_;
  std::unique_ptr<StreamRegistry> streams_;
  std::unique_ptr<KernelWatchdog> watch_;
  std::vector<Explanation> explanations_;
  std::uint64_t calls_ = 0;
};

}  // namespace

void KernelEngine::sweep() { CudaIpc::sweep(); }

Result<std::unique_ptr<KernelEngine>> KernelEngine::create(Config config) {
  auto half = std::make_unique<CudaEngine>(std::move(config));
  TUTTI_TRY(half->set_up());
  return std::unique_ptr<KernelEngine>(std::move(half));
}

}  // namespace tutti

#else

namespace tutti {

void KernelEngine::sweep() {}

Result<std::unique_ptr<KernelEngine>> KernelEngine::create(Config) {
  return unsupported("this build of Tutti has no CUDA; expected host memory");
}

}  // namespace tutti

#endif  // TUTTI_HAS_CUDA
