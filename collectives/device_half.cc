#include "collectives/device_half.h"

#if TUTTI_HAS_CUDA

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <tuple>

#include "base/clock.h"
#include "base/options.h"
#include "collectives/device_streams.h"
#include "collectives/executor/cuda/executor.h"
#include "collectives/planner/device_rules.h"
#include "collectives/planner/plan_cache.h"
#include "collectives/planner/selection.h"
#include "collectives/validate.h"
#include "device/driver.h"
#include "transport/cuda_ipc/cuda_ipc.h"
#include "transport/shm/arena.h"

namespace tutti {

namespace {

using executor::cuda::BlockBudget;
using executor::cuda::DeviceExecutor;
using executor::cuda::DeviceProgram;
using executor::cuda::Failure;
using executor::cuda::Form;
using transport::CudaIpc;
using transport::DeviceWindowSizes;

constexpr std::size_t kScratchHalf = std::size_t{8} << 20;
constexpr std::size_t kLeastScratchHalf = std::size_t{256} << 10;
constexpr std::size_t kExpressBytes = std::size_t{64} << 10;  // of what a rank publishes or puts
constexpr std::size_t kMailBytes = std::size_t{32} << 10;     // of a message in one slot
constexpr int kMostBlocks = 64;
// A block of 512 threads moves 8 KiB with one load each; with four in flight, 32 KiB.
constexpr std::size_t kExpressBytesOfBlock = std::size_t{8} << 10;
constexpr std::size_t kBytesOfBlock = std::size_t{32} << 10;
constexpr std::size_t kSliceOfBlock = std::size_t{128} << 10;
constexpr std::size_t kMostReady = 256;
constexpr auto kWatchEvery = std::chrono::milliseconds(1);

std::uint64_t token_of_process() {
  static const std::uint64_t token = [] {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
  }();
  return token;
}

/// What a rank tells of itself before anything is shared.
struct Greeting {
  std::uint64_t well = 0;
  std::uint64_t process = 0;
  std::uint64_t gpu[2] = {};
  std::uint64_t notes = 0;
  std::uint64_t pid = 0;
};
constexpr std::size_t kWords = sizeof(Greeting) / sizeof(std::uint64_t);

/// Which ranks live. A window is asked about for longer than its communicator lives: as long as peers may use it.
class Living {
 public:
  Living(transport::Transport* host, const std::vector<Greeting>& all) : host_(host) {
    for (const Greeting& one : all) pids_.push_back(one.process == token_of_process() ? 0 : static_cast<pid_t>(one.pid));
  }
  bool alive(int rank) const {
    {
      const std::lock_guard lock(mutex_);
      if (host_ != nullptr) return host_->alive(rank);
    }
    const pid_t pid = pids_[static_cast<std::size_t>(rank)];
    return pid == 0 || ::kill(pid, 0) == 0 || errno == EPERM;  // 0: a thread of this process
  }
  /// The communicator is no more.
  void part() {
    const std::lock_guard lock(mutex_);
    host_ = nullptr;
  }

 private:
  mutable std::mutex mutex_;
  transport::Transport* host_;  // guarded by mutex_
  std::vector<pid_t> pids_;
};

std::string text_of(const transport::DeviceCall& call) {
  const auto words = std::bit_cast<transport::CallWords>(call.what);
  executor::CallSnapshot snapshot;
  snapshot.collective = static_cast<Collective>(words.collective);
  snapshot.type = static_cast<DataType>(words.type);
  snapshot.op = static_cast<ReduceOp>(words.op);
  snapshot.deterministic = (words.flags & transport::kDeterministic) != 0;
  snapshot.root = words.root;
  snapshot.count = call.count;
  return snapshot.text();
}

class CudaHalf final : public DeviceHalf {
 public:
  explicit CudaHalf(Config config)
      : config_(std::move(config)), plans_(config_.size, config_.hosts) {}

  ~CudaHalf() override {
    if (watch_.joinable()) {
      // What was started is finished, or aborted by the watch; kernels are given the time of one wait for it.
      const std::int64_t since = now_ns();
      while (!executor_->idle() && now_ns() - since < timeout_ns_.load()) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      {
        const std::lock_guard lock(mutex_);
        ending_ = true;
      }
      changed_.notify_all();
      watch_.join();
    }
    ready_.clear();
    mail_.clear();
    retired_.clear();
    last_.reset();
    executor_.reset();  // waits for the kernels
    if (living_) living_->part();
    links_.reset();
  }

  Status set_up() {
    Status mine = look();
    TUTTI_ASSIGN(const std::vector<Greeting> all, greet(mine));
    mine = plan_blocks(all);
    TUTTI_TRY(agree(mine, &blocks_));
    budget_.keep(blocks_);
    TUTTI_ASSIGN(links_, CudaIpc::connect(links_config(all)));
    mine = start();
    TUTTI_TRY(agree(mine, nullptr));
    streams_.emplace(all[0].notes ^ all[0].process, config_.rank);
    set_timeout(config_.options.timeout);
    watch_ = std::thread([this] { watch(); });
    return {};
  }

  Status run(const Request& request) override {
    TUTTI_TRY(links_->poll());
    const Call& call = *request.call;
    const auto stream = static_cast<CUstream>(call.stream);
    if (shared_gpu_) TUTTI_TRY(check_stream(stream));
    TUTTI_ASSIGN(const std::shared_ptr<const Ready> ready, this->ready(request));
    DeviceExecutor::Launch launch;
    launch.first = ready->first;
    launch.if_plain = ready->if_plain;
    launch.if_in_place = ready->if_in_place;
    launch.input = call.send;
    launch.output = call.recv;
    launch.fingerprint = request.identity.fingerprint();
    launch.announcement.factor = std::bit_cast<std::uint64_t>(call.factor);
    launch.announcement.what = std::bit_cast<std::uint64_t>(request.identity.words);
    launch.announcement.count = request.identity.count;
    if (ready->opens) {
      TUTTI_ASSIGN(const CudaIpc::Reach input, reach(call.send, ready->input_bytes));
      TUTTI_ASSIGN(const CudaIpc::Reach output, reach(call.recv, ready->output_bytes));
      launch.announcement.input = input.handle;
      launch.announcement.output = output.handle;
      if (input.plain || output.plain) launch.announcement.flags |= transport::kDevicePlain;
    }
    if (request.in_place) launch.announcement.flags |= transport::kDeviceInPlace;
    const executor::Announcement announcement{request.identity, launch.fingerprint, ready->algorithm,
                                              elements_of(call, config_.size) * size_of(call.type)};
    executor::announce_launch(board(), calls_ + 1, announcement);
    TUTTI_TRY(executor_->launch(launch, stream));
    last_ = ready;
    ++calls_;
    wake_watch();
    return {};
  }

  Status run_group(std::span<const Transfer> transfers) override {
    TUTTI_TRY(links_->poll());
    const auto stream = static_cast<CUstream>(transfers.front().stream);
    if (shared_gpu_) TUTTI_TRY(check_stream(stream));
    std::vector<std::byte> list = executor::cuda::make_mail(transfers, mail_strips_);
    std::string key(reinterpret_cast<const char*>(list.data()), list.size());
    auto found = mail_.find(key);
    if (found == mail_.end()) {
      if (executor_->idle()) retired_.clear();
      if (mail_.size() >= kMostReady) retire_mail();
      TUTTI_ASSIGN(auto uploaded, upload(std::move(list)));
      found = mail_.emplace(std::move(key), std::move(uploaded)).first;
    }
    TUTTI_TRY(executor_->carry(found->second, stream));
    wake_watch();
    return {};
  }

  int device() const override { return config_.device; }
  Explanation explain_last_call() const override { return last_ ? last_->explanation : Explanation{}; }
  std::size_t memory() const override { return sizes_.bytes() + DeviceExecutor::kPoolBytes; }
  void set_timeout(std::chrono::nanoseconds timeout) override {
    timeout_ns_.store(timeout.count());
    executor_->set_limit(timeout.count());
  }
  std::uint64_t calls() const override { return calls_; }

 private:
  struct Ready {
    std::shared_ptr<const DeviceProgram> first;
    std::shared_ptr<const DeviceProgram> if_plain;
    std::shared_ptr<const DeviceProgram> if_in_place;
    bool opens = false;
    std::uint32_t algorithm = transport::kNoAlgorithm;  // row of the algorithm table
    std::size_t input_bytes = 0;
    std::size_t output_bytes = 0;
    Explanation explanation;
  };
  using Key = std::tuple<Collective, DataType, ReduceOp, int, std::size_t, bool, std::string>;

  void wake_watch() {
    {
      const std::lock_guard lock(mutex_);
      ++launches_;
    }
    changed_.notify_all();
  }

  void retire_mail() {
    for (auto& [unused, old] : mail_) {
      auto ready = std::make_shared<Ready>();
      ready->first = std::move(old);
      retired_.push_back(std::move(ready));
    }
    mail_.clear();
  }

  // ---- Setting up

  Status look() {
    if (config_.device < 0) {
      TUTTI_ASSIGN(const int current, device::current_device());
      config_.device = std::max(current, 0);
    }
    TUTTI_ASSIGN(const CUuuid uuid, device::uuid_of(config_.device));
    static_assert(sizeof(uuid.bytes) == sizeof(greeting_.gpu));
    std::memcpy(greeting_.gpu, uuid.bytes, sizeof(greeting_.gpu));
    TUTTI_ASSIGN(transport::Arena* const arena, transport::Arena::process());
    TUTTI_ASSIGN(std::byte* const memory, arena->allocate(sizeof(transport::Notes)));
    notes_ = std::shared_ptr<std::byte>(memory, [](std::byte* p) { transport::Arena::deallocate(p); });
    new (memory) transport::Notes();
    greeting_.notes = config_.host->handle_of(memory, sizeof(transport::Notes));
    if (config_.size > transport::kMostDeviceRanks) {
      return unsupported(fmt::format("a communicator of {} ranks on device memory; expected at most {}", config_.size,
                                     transport::kMostDeviceRanks));
    }
    return {};
  }

  Result<std::vector<Greeting>> greet(const Status& mine) {
    greeting_.well = mine.ok() ? 1 : 0;
    greeting_.process = token_of_process();
    greeting_.pid = static_cast<std::uint64_t>(::getpid());
    std::uint64_t words[kWords];
    std::memcpy(words, &greeting_, sizeof(words));
    TUTTI_ASSIGN(const std::vector<std::uint64_t> gathered, config_.gather(words));
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

  Status refused(int rank) const {
    return unsupported(fmt::format("{} cannot work on device memory (its own error says why), so {} cannot either",
                                   config_.name(rank), config_.name(config_.rank)));
  }

  /// Who shares a GPU with whom; and how many blocks each rank of this one's may have.
  Status plan_blocks(const std::vector<Greeting>& all) {
    const auto same_gpu = [](const Greeting& a, const Greeting& b) {
      return a.gpu[0] == b.gpu[0] && a.gpu[1] == b.gpu[1];
    };
    int here = 0;
    int leader = -1;
    for (int r = 0; r < config_.size; ++r) {
      const Greeting& one = all[static_cast<std::size_t>(r)];
      for (const Greeting& other : all) {
        if (same_gpu(one, other) && one.process != other.process) form_ = Form::cut;
        all_open_ = all_open_ && same_gpu(one, other) && one.process == other.process;
      }
      if (!same_gpu(one, greeting_) || one.process != greeting_.process) continue;
      if (leader < 0) leader = r;
      ++here;
    }
    shared_gpu_ = here > 1;
    blocks_ = std::numeric_limits<int>::max();  // another rank says
    if (form_ == Form::cut) {
      TUTTI_ASSIGN(const int capacity, BlockBudget::capacity(config_.device));
      blocks_ = std::max(1, capacity / 2);
    } else if (leader == config_.rank) {
      TUTTI_ASSIGN(budget_, BlockBudget::reserve(config_.device, here));
      blocks_ = budget_.blocks_of_each();
    }
    return {};
  }

  /// That all ranks are well; `least` becomes the smallest of all ranks' values.
  Status agree(const Status& mine, int* least) {
    const std::uint64_t word = mine.ok() ? static_cast<std::uint64_t>(least == nullptr ? 1 : *least) : 0;
    TUTTI_ASSIGN(const std::vector<std::uint64_t> all, config_.gather({&word, 1}));
    if (!mine.ok()) return mine;
    for (int r = 0; r < config_.size; ++r) {
      const std::uint64_t theirs = all[static_cast<std::size_t>(r)];
      if (theirs == 0) return refused(r);
      if (least != nullptr) *least = std::min(*least, static_cast<int>(theirs));
    }
    if (least != nullptr) *least = std::min(*least, kMostBlocks);
    return {};
  }

  CudaIpc::Config links_config(const std::vector<Greeting>& all) {
    sizes_ = {.ranks = config_.size,
              .lanes = form_ == Form::cut ? 1 : blocks_,
              .scratch_half = kScratchHalf,
              .published_half = kScratchHalf,
              .express_bytes = form_ == Form::cut ? 0 : kExpressBytes,
              .mail_bytes = config_.size <= 16 ? kMailBytes : kMailBytes / 4};
    mail_strips_ = form_ == Form::cut ? 1 : transport::kMailStrips;
    const std::size_t limit = config_.options.memory_limit;
    while (limit != 0 && sizes_.bytes() > limit && sizes_.scratch_half > kLeastScratchHalf) {
      sizes_.scratch_half /= 2;
      sizes_.published_half /= 2;
    }
    CudaIpc::Config links;
    links.rank = config_.rank;
    links.device = config_.device;
    links.sizes = sizes_;
    for (int r = 0; r < config_.size; ++r) {
      links.notes.push_back(reinterpret_cast<transport::Notes*>(
          r == config_.rank ? notes_.get() : config_.host->reach(r, all[static_cast<std::size_t>(r)].notes)));
    }
    links.keep = notes_;
    living_ = std::make_shared<Living>(config_.host, all);
    links.alive = [living = living_](int rank) { return living->alive(rank); };
    links.name = config_.name;
    links.exchange = [this](std::uint64_t mine) { return config_.gather({&mine, 1}); };
    links.deadline = config_.options.timeout;
    return links;
  }

  Status start() {
    std::string rules(planner::kDeviceRules);
    rules += options::text(Option::selection);
    TUTTI_ASSIGN(selection_, planner::Selection::with_rules(rules));
    DeviceExecutor::Place place;
    place.device = config_.device;
    place.rank = config_.rank;
    place.form = form_;
    place.sizes = sizes_;
    place.peers = links_->peers();
    place.window = links_->peer(config_.rank).window;
    TUTTI_ASSIGN(executor_, DeviceExecutor::create(place));
    return {};
  }

  // ---- Calls

  /// Ranks that share a GPU must not share a stream: the second one's kernel would wait behind the first one's, which
  /// waits for it.
  Status check_stream(CUstream stream) {
    const int other = streams_->use(stream);
    if (other < 0) return {};
    return invalid_argument(fmt::format("{} uses the same stream as {} on {}; ranks that share a GPU need streams of "
                                        "their own, or each waits behind the other",
                                        config_.name(config_.rank), config_.name(other),
                                        device::name_of(config_.device)));
  }

  Result<CudaIpc::Reach> reach(const void* pointer, std::size_t bytes) {
    if (pointer == nullptr || bytes == 0) return CudaIpc::Reach{};
    return links_->handle_of(pointer, bytes);
  }

  Result<std::shared_ptr<const Ready>> ready(const Request& request) {
    const Call& call = *request.call;
    if (request.uneven != nullptr) return make_ready(request);  // serves these pieces only
    std::string wanted(request.algorithm.empty() ? request.wish : request.algorithm);
    const Key key{call.collective, call.type,     call.op, call.root, call.count, request.deterministic,
                  std::move(wanted)};
    const auto found = ready_.find(key);
    if (found != ready_.end()) return found->second;
    if (ready_.size() >= kMostReady) {
      for (auto& [unused, old] : ready_) retired_.push_back(std::move(old));
      ready_.clear();
    }
    TUTTI_ASSIGN(std::shared_ptr<const Ready> made, make_ready(request));
    ready_.emplace(key, made);
    return made;
  }

  Result<std::shared_ptr<const Ready>> make_ready(const Request& request) {
    if (executor_->idle()) retired_.clear();  // no kernel has these any more
    const Call& call = *request.call;
    auto ready = std::make_shared<Ready>();
    const std::size_t element = size_of(call.type);
    const plan::Placements placements = plan::placements_of(call.collective);
    const auto bytes_of = [&](plan::Placement placement) {
      const std::size_t blocks = placement == plan::Placement::blocks ? static_cast<std::size_t>(config_.size) : 1;
      return call.count * blocks * element;
    };
    ready->input_bytes = bytes_of(placements.input);
    ready->output_bytes = bytes_of(placements.output);
    if (request.uneven != nullptr) {
      ready->input_bytes = end_of(request.uneven->send_counts, request.uneven->send_offsets) * element;
      ready->output_bytes = end_of(request.uneven->recv_counts, request.uneven->recv_offsets) * element;
    }

    planner::Demand demand;
    demand.collective = call.collective;
    demand.ranks = config_.size;
    demand.bytes = elements_of(call, config_.size) * element;
    demand.deterministic = request.deterministic;
    demand.algorithm = request.algorithm;
    if (demand.algorithm.empty() && !request.wish.empty()) {
      const algorithms::Algorithm* wish = algorithms::find(call.collective, request.wish);
      if (wish != nullptr && planner::why_not(*wish, demand).empty()) demand.algorithm = request.wish;
    }
    if (form_ == Form::cut) {
      demand.plain = true;
      demand.buffers_open = false;
      demand.in_place = true;
    }
    bool opens = false;
    TUTTI_ASSIGN(ready->first, program_for(request, demand, &ready->explanation, &opens));
    ready->opens = opens;
    const algorithms::Algorithm* row = algorithms::find(call.collective, ready->explanation.algorithm);
    ready->algorithm = static_cast<std::uint32_t>(row - algorithms::table().data());
    if (opens) {
      bool unused = false;
      const planner::Demand whole = demand;
      demand.algorithm = {};  // one that was asked for serves where it can
      demand.plain = true;
      demand.buffers_open = false;
      if (!all_open_) {
        TUTTI_ASSIGN(ready->if_plain, program_for(request, demand, nullptr, &unused));
      }
      demand = whole;
      if (!algorithms::table()[ready->algorithm].in_place) {
        demand.algorithm = {};
        demand.in_place = true;
        demand.buffers_open = false;  // and whoever is in place may be out of reach, too
        TUTTI_ASSIGN(ready->if_in_place, program_for(request, demand, nullptr, &unused));
      }
    }
    if (request.uneven != nullptr) retired_.push_back(ready);  // for this call only, but until it is done
    return std::shared_ptr<const Ready>(ready);
  }

  static std::size_t end_of(std::span<const std::size_t> counts, std::span<const std::size_t> offsets) {
    std::size_t end = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] > 0) end = std::max(end, offsets[i] + counts[i]);
    }
    return end;
  }

  /// How many blocks share a lane's work.
  int strips_for(const plan::Plan& plan, std::size_t bytes) const {
    const auto pieces = static_cast<std::size_t>(std::max(plan.pieces, 1));
    const bool small = form_ == Form::waiting && bytes / pieces <= kExpressBytes;
    const std::size_t wanted = largest_share(std::max<std::size_t>(bytes, 1), small ? kExpressBytesOfBlock : kBytesOfBlock);
    const int lanes = static_cast<int>(plan.of_rank.front().lanes.size());
    return std::clamp(static_cast<int>(std::min<std::size_t>(wanted, kMostBlocks)), 1, std::max(1, blocks_ / lanes));
  }

  Result<std::shared_ptr<const DeviceProgram>> program_for(const Request& request, const planner::Demand& demand,
                                                           Explanation* explanation, bool* opens) {
    const Call& call = *request.call;
    TUTTI_ASSIGN(const planner::Choice choice, selection_->choose(demand));
    const auto plan = plans_.get(*choice.algorithm, call.collective, call.root);
    const executor::Shape shape{call.collective, call.type, call.op, call.root, call.count};
    const int strips = strips_for(*plan, demand.bytes);
    TUTTI_ASSIGN(const auto prepared,
                 executor::cuda::prepare_for_device(
                     plan, config_.rank, shape,
                     executor::cuda::room_of(sizes_, strips, kSliceOfBlock * static_cast<std::size_t>(strips))));
    *opens = prepared->opens;
    TUTTI_ASSIGN(auto program, upload(executor::cuda::flatten(*prepared, request.uneven)));
    if (explanation != nullptr) {
      const char* how = form_ == Form::cut ? "kernels cut at their waits, since processes share a GPU"
                        : prepared->express ? "one kernel, flags beside the data"
                                            : "one kernel";
      *explanation = {plan->algorithm, static_cast<int>(prepared->lanes.size()) * strips, prepared->rounds,
                      fmt::format("{}; {} of {} block(s)", choice.reason, how, program->blocks())};
    }
    return program;
  }

  Result<std::shared_ptr<const DeviceProgram>> upload(std::vector<std::byte> flat) {
    auto program = executor_->upload(flat);
    if (program.ok() || program.status().code() != Code::memory_limit) return program;
    // The pool is full: let go of all that no kernel has, once none runs.
    for (auto& [unused, old] : ready_) retired_.push_back(std::move(old));
    ready_.clear();
    retire_mail();
    last_.reset();
    for (const std::int64_t since = now_ns(); !executor_->idle() && now_ns() - since < timeout_ns_.load();) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (!executor_->idle()) return program;
    retired_.clear();
    return executor_->upload(std::move(flat));
  }

  // ---- The watch

  void watch() {
    std::unique_lock lock(mutex_);
    std::uint64_t since_entered = 0;  // form cut: the call that is being timed, and since when
    std::int64_t since_ns = 0;
    std::uint64_t seen = 0;  // of launches_
    std::uint64_t since_mail = 0;
    std::int64_t since_mail_ns = 0;
    while (!ending_) {
      const DeviceExecutor::Progress now = executor_->progress();
      if (!now.captured && now.finished >= now.launched && executor_->idle()) {
        changed_.wait(lock, [&] { return ending_ || launches_ != seen; });
      } else {
        changed_.wait_for(lock, kWatchEvery);
      }
      seen = launches_;
      const transport::DeviceVerdict verdict = executor_->verdict();
      if (verdict.kind != 0 && !told_) {
        told_ = true;
        tell(verdict);
      }
      if (form_ == Form::cut && !config_.health->failed()) {
        const DeviceExecutor::Progress progress = executor_->progress();
        if (progress.entered <= progress.finished) {
          since_entered = 0;
        } else if (since_entered != progress.entered) {
          since_entered = progress.entered;
          since_ns = now_ns();
        } else if (now_ns() - since_ns > timeout_ns_.load()) {
          transport::DeviceVerdict late;
          late.kind = static_cast<std::uint64_t>(Failure::deadline);
          late.call = progress.entered;
          late.absent = executor_->absent_in(progress.entered);
          late.waited_ns = static_cast<std::uint64_t>(now_ns() - since_ns);
          late.own = own_call(progress.entered);
          tell(late);
        }
        if (progress.mail % 2 == 0) {
          since_mail = 0;
        } else if (since_mail != progress.mail) {
          since_mail = progress.mail;
          since_mail_ns = now_ns();
        } else if (now_ns() - since_mail_ns > timeout_ns_.load()) {
          transport::DeviceVerdict late;
          late.kind = static_cast<std::uint64_t>(Failure::deadline);
          late.waited_ns = static_cast<std::uint64_t>(now_ns() - since_mail_ns);
          tell(late);
        }
      }
      if (config_.health->failed()) executor_->abort();
      // For the flight recorder. Replays of graphs count there, too, so this is never too late.
      const std::uint64_t finished = std::min(executor_->progress().finished, calls_.load());
      for (; recorded_ < finished; ++recorded_) {
        executor::end_launch(board(), recorded_ + 1);
      }
    }
  }

  transport::Board& board() { return *config_.host->window(config_.rank).board; }

  /// A call of this rank's, as the flight recorder has it.
  transport::DeviceCall own_call(std::uint64_t number) {
    const transport::CallRecord& record = board().launches[number % transport::kCallRing];
    transport::DeviceCall call;
    if (record.sequence.load(std::memory_order_acquire) != number) return call;
    call.sequence = number;
    call.what = record.what.load(std::memory_order_acquire);
    call.count = record.count.load(std::memory_order_acquire);
    return call;
  }

  void tell(const transport::DeviceVerdict& verdict) {
    const auto peer = static_cast<int>(verdict.peer);
    const std::string me = config_.name(config_.rank);
    switch (static_cast<Failure>(verdict.kind)) {
      case Failure::mismatch: {
        const bool first = config_.rank < peer;
        const std::string own = text_of(verdict.own);
        std::string other = text_of(verdict.other);
        if (own == other) other = "the same with another algorithm asked for";
        const std::string mine = fmt::format("{} called {} as its call {} on device memory", me, own, verdict.call);
        const std::string theirs =
            fmt::format("{} called {} as its call {} on device memory", config_.name(peer), other, verdict.call);
        (void)config_.health->fail(Code::mismatch, fmt::format("{}, {}", first ? mine : theirs, first ? theirs : mine));
        break;
      }
      case Failure::deadline: {
        std::string who;
        for (int r = 0; r < config_.size; ++r) {
          if ((verdict.absent >> r & 1) != 0) who += (who.empty() ? "" : ", ") + config_.name(r);
        }
        if (verdict.call == 0) {  // messages
          (void)config_.health->fail(
              Code::timeout, fmt::format("{} has not answered; {} waited {:.1f} s in sends and receives on device memory",
                                         form_ == Form::cut ? std::string("a rank") : config_.name(peer), me,
                                         static_cast<double>(verdict.waited_ns) * 1e-9));
          break;
        }
        const char* what = who.empty() ? "has not answered" : "has not entered it";
        if (who.empty()) who = form_ == Form::cut ? std::string("a rank") : config_.name(peer);
        (void)config_.health->fail(
            Code::timeout,
            fmt::format("{} {}; {} waited {:.1f} s in {} as its call {} on device memory", who, what, me,
                        static_cast<double>(verdict.waited_ns) * 1e-9,
                        verdict.own.sequence == 0 ? std::string("a call") : text_of(verdict.own), verdict.call));
        break;
      }
      case Failure::unreachable:
        (void)config_.health->fail(
            Code::system, fmt::format("{} cannot reach a buffer of {} in its call {} on device memory", me,
                                      config_.name(peer), verdict.call));
        break;
      case Failure::message:
        (void)config_.health->fail(
            Code::mismatch, fmt::format("{} sends {} x {} to {}, which receives {} x {}", config_.name(peer),
                                        verdict.other.count, name_of(static_cast<DataType>(verdict.other.what)), me,
                                        verdict.own.count, name_of(static_cast<DataType>(verdict.own.what))));
        break;
      case Failure::none:
      case Failure::aborted: break;  // whoever aborted has said why
    }
  }

  Config config_;
  Greeting greeting_;
  std::shared_ptr<std::byte> notes_;
  Form form_ = Form::waiting;
  bool shared_gpu_ = false;  // with other ranks of this process
  bool all_open_ = true;     // every pointer is good for every rank
  int blocks_ = 1;           // the most that a call may have
  BlockBudget budget_;
  DeviceWindowSizes sizes_;
  int mail_strips_ = 1;  // of a large message
  std::shared_ptr<Living> living_;
  std::unique_ptr<CudaIpc> links_;
  std::unique_ptr<DeviceExecutor> executor_;
  std::optional<planner::Selection> selection_;
  planner::PlanCache plans_;
  std::optional<DeviceStreams> streams_;  // made when all ranks have met
  std::map<Key, std::shared_ptr<const Ready>> ready_;
  std::vector<std::shared_ptr<const Ready>> retired_;  // until no kernel has them
  std::map<std::string, std::shared_ptr<const DeviceProgram>> mail_;  // lists, by what they say
  std::shared_ptr<const Ready> last_;
  std::atomic<std::uint64_t> calls_{0};

  std::atomic<std::int64_t> timeout_ns_{0};
  std::thread watch_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t launches_ = 0;  // guarded by mutex_
  bool ending_ = false;      // guarded by mutex_
  bool told_ = false;            // of the watch
  std::uint64_t recorded_ = 0;   // likewise: calls that the flight recorder shows as done
};

}  // namespace

Result<std::unique_ptr<DeviceHalf>> DeviceHalf::create(Config config) {
  auto half = std::make_unique<CudaHalf>(std::move(config));
  TUTTI_TRY(half->set_up());
  return std::unique_ptr<DeviceHalf>(std::move(half));
}

}  // namespace tutti

#else

namespace tutti {

Result<std::unique_ptr<DeviceHalf>> DeviceHalf::create(Config) {
  return unsupported("this build of Tutti has no CUDA; expected host memory");
}

}  // namespace tutti

#endif  // TUTTI_HAS_CUDA
