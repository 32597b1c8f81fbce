#include "nccl/comm.h"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

#include "collectives/create.h"

namespace tutti::nccl {

// ---- The communicator ----

Comm::~Comm() {
  // Ends what runs in the background, whose callbacks call end(): before the rest of this goes.
  communicator_ = Communicator();
  drop_growth();
  if (suspended()) forget_unique_id(setup_);
}

std::string Comm::who() const {
  const std::string rank = rank_ < 0 ? std::string("this rank") : fmt::format("rank {}", rank_);
  return config_.name.empty() ? rank : fmt::format("{} of '{}'", rank, config_.name);
}

void Comm::made(Communicator communicator, int rank, int size) {
  const std::lock_guard lock(mutex_);
  if (dropped_) {
    communicator.abort("ncclCommAbort while it was being made");
    return;
  }
  communicator_ = std::move(communicator);
  rank_ = rank;
  size_ = size;
  suspended_.store(false, std::memory_order_release);
}

Communicator Comm::suspend(const UniqueId& meeting, const Communicator& second) {
  const std::lock_guard lock(mutex_);
  if (dropped_ || revoked_.load()) throw Error(Code::aborted, "the communicator was revoked or aborted meanwhile");
  setup_ = meeting;
  second_ = second;
  suspended_.store(true, std::memory_order_release);
  return std::exchange(communicator_, Communicator());
}

void Comm::parted() {
  Communicator second;  // ends without the lock
  const std::lock_guard lock(mutex_);
  std::swap(second, second_);
}

void Comm::drop_growth() {
  if (growth_) forget_unique_id(*growth_);
  growth_.reset();
}

Outcome Comm::state() const {
  const std::lock_guard lock(mutex_);
  if (under_way_ > 0) return {ncclInProgress, "something that was called before is still under way"};
  return failure_;
}

Communicator Comm::held() const {
  const std::lock_guard lock(mutex_);
  return communicator_;
}

Outcome Comm::asynchronous_state() const {
  Outcome now = state();
  if (!now.ok() || revoked()) return now;
  const Communicator communicator = held();
  if (!communicator) return now;  // suspended
  std::string text;
  const Code code = communicator.status(&text);
  return code == Code::ok ? now : outcome_of("ncclCommGetAsyncError", Error(code, text));
}

Outcome Comm::settled(const char* function) const {
  Outcome now = state();
  if (now.result == ncclInProgress) {
    return {ncclInvalidArgument,
            fmt::format("{}: {} is still busy with an earlier call; expected ncclCommGetAsyncError to say ncclSuccess "
                        "first",
                        function, who())};
  }
  if (revoked()) return {ncclInvalidUsage, fmt::format("{}: {}: the communicator was revoked", function, who())};
  if (!now.ok()) return now;
  if (finalized_.load(std::memory_order_acquire)) {
    return {ncclInvalidUsage, fmt::format("{}: {}: the communicator was finalized", function, who())};
  }
  return awake(function);
}

Outcome Comm::awake(const char* function) const {
  if (!suspended()) return {};
  return {ncclInvalidUsage,
          fmt::format("{}: {}: the communicator is suspended; expected ncclCommResume first", function, who())};
}

void Comm::begin() {
  const std::lock_guard lock(mutex_);
  ++under_way_;
}

void Comm::end(const Outcome& outcome) {
  const std::lock_guard lock(mutex_);
  if (!outcome.ok() && failure_.ok() && !revoked()) failure_ = outcome;
  --under_way_;
  changed_.notify_all();
}

void Comm::wait_idle() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return under_way_ == 0; });
}

void Comm::note(const Outcome& outcome) {
  if (!outcome.finishes) return;
  const std::lock_guard lock(mutex_);
  if (failure_.ok() && !revoked()) failure_ = outcome;
}

void Comm::abort(const std::string& reason) {
  Communicator communicator;
  {
    const std::lock_guard lock(mutex_);
    dropped_ = true;
    communicator = communicator_ ? communicator_ : second_;
  }
  if (communicator) communicator.abort(reason);
}

bool Comm::revoke(const std::string& reason) {
  Communicator communicator;
  {
    const std::lock_guard lock(mutex_);
    if (!communicator_) return false;
    revoked_.store(true);  // from here on it is not suspended any more
    communicator = communicator_;
  }
  communicator.abort(reason);
  for (int callers; (callers = callers_.load()) > 0;) callers_.wait(callers);
  wait_idle();
  const std::lock_guard lock(mutex_);
  failure_ = {};
  return true;
}

// ---- Reductions and ranges ----

namespace {
constexpr unsigned kScalingBits = 10;  // of an operation's number: which one; the rest: whose
constexpr unsigned kMostScalings = 1U << kScalingBits;
constexpr unsigned kSalts = 1U << 20;
}  // namespace

unsigned Comm::next_salt() {
  static std::atomic<unsigned> next{0};
  return next.fetch_add(1, std::memory_order_relaxed) % kSalts;
}

Outcome Comm::add_scaling(const Scaling& scaling, ncclRedOp_t& op) {
  const std::lock_guard lock(mutex_);
  std::size_t i = 0;
  while (i < scalings_.size() && scalings_[i]) ++i;
  if (i == kMostScalings) {
    return {ncclInvalidUsage, fmt::format("ncclRedOpCreatePreMulSum: {} has {} operators already; expected "
                                          "ncclRedOpDestroy of those that are not needed",
                                          who(), kMostScalings)};
  }
  if (i == scalings_.size()) scalings_.emplace_back();
  scalings_[i] = scaling;
  op = static_cast<ncclRedOp_t>(ncclNumOps + ((salt_ << kScalingBits) | static_cast<unsigned>(i)));
  return {};
}

std::optional<std::size_t> Comm::place_of(ncclRedOp_t op) const {
  if (op < ncclNumOps) return std::nullopt;
  const unsigned number = static_cast<unsigned>(op) - ncclNumOps;
  const std::size_t i = number % kMostScalings;
  if (number >> kScalingBits != salt_ || i >= scalings_.size() || !scalings_[i]) return std::nullopt;
  return i;
}

bool Comm::drop_scaling(ncclRedOp_t op) {
  const std::lock_guard lock(mutex_);
  const std::optional<std::size_t> i = place_of(op);
  if (i) scalings_[*i].reset();
  return i.has_value();
}

std::optional<Scaling> Comm::scaling(ncclRedOp_t op) const {
  const std::lock_guard lock(mutex_);
  const std::optional<std::size_t> i = place_of(op);
  return i ? scalings_[*i] : std::nullopt;
}

void* Comm::note_range() {
  const std::lock_guard lock(mutex_);
  ranges_.insert(++last_range_);
  return reinterpret_cast<void*>(last_range_);  // NOLINT(performance-no-int-to-ptr): a number that only looks like one
}

bool Comm::forget_range(const void* handle) {
  const std::lock_guard lock(mutex_);
  return ranges_.erase(reinterpret_cast<std::uintptr_t>(handle)) > 0;
}

// ---- Handles ----

namespace {
constexpr std::uint64_t kHandle = 0x74757474696e6363;  // "tuttincc"
}  // namespace

struct ncclComm {
  const std::uint64_t magic = kHandle;
  std::mutex mutex;
  std::shared_ptr<Comm> comm;  // guarded by mutex; null: closed
};

namespace {

struct Handles {
  std::mutex mutex;
  std::vector<ncclComm_t> closed;  // to be used again
};

Handles& handles() {
  static Handles* const handles = new Handles;  // never destroyed: code that runs at exit may use it
  return *handles;
}

bool is_handle(ncclComm_t handle) {
  return handle != nullptr && reinterpret_cast<std::uintptr_t>(handle) % alignof(ncclComm) == 0 &&
         handle->magic == kHandle;
}

}  // namespace

ncclComm_t open_handle(std::shared_ptr<Comm> comm) {
  ncclComm_t handle = nullptr;
  {
    const std::lock_guard lock(handles().mutex);
    if (!handles().closed.empty()) {
      handle = handles().closed.back();
      handles().closed.pop_back();
    }
  }
  if (handle == nullptr) handle = new ncclComm;
  const std::lock_guard lock(handle->mutex);
  handle->comm = std::move(comm);
  return handle;
}

std::shared_ptr<Comm> comm_of(ncclComm_t handle) {
  if (!is_handle(handle)) return nullptr;
  const std::lock_guard lock(handle->mutex);
  return handle->comm;
}

std::shared_ptr<Comm> close_handle(ncclComm_t handle) {
  if (!is_handle(handle)) return nullptr;
  std::shared_ptr<Comm> comm;
  {
    const std::lock_guard lock(handle->mutex);
    comm = std::exchange(handle->comm, nullptr);
  }
  if (comm != nullptr) {
    const std::lock_guard lock(handles().mutex);
    handles().closed.push_back(handle);
  }
  return comm;
}

Outcome find_comm(const char* function, ncclComm_t handle, std::shared_ptr<Comm>& comm) {
  comm = comm_of(handle);
  if (comm != nullptr) return {};
  return {ncclInvalidArgument,
          fmt::format("{}: {}", function,
                      handle == nullptr ? "comm is null" : "comm is no communicator, or has been destroyed")};
}

}  // namespace tutti::nccl
