#include "nccl/comm.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace tutti::nccl {

// ---- The communicator ----

Comm::~Comm() {
  communicator_ = Communicator();  // ends what runs in the background, before progress_, which that calls, goes
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

Communicator Comm::suspend(const UniqueId& resume_id, const Communicator& second) {
  const std::lock_guard lock(mutex_);
  if (dropped_ || revoked()) throw Error(Code::aborted, "the communicator was revoked or aborted meanwhile");
  setup_.set(resume_id);
  second_ = second;
  suspended_.store(true, std::memory_order_release);
  return std::exchange(communicator_, Communicator());
}

void Comm::parted() {
  Communicator second;  // ends without the lock
  const std::lock_guard lock(mutex_);
  std::swap(second, second_);
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
    progress_.revoke();  // from here on it is not suspended any more
    communicator = communicator_;
  }
  communicator.abort(reason);
  progress_.wait_revoked();
  return true;
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
