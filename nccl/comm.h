// What an ncclComm_t points to: a handle, which gives a Comm as long as it is open. Handles are never freed, only used
// again, so that a closed one is recognised and not read after its end.
//
// A Comm is shared by its handle, the groups that have calls on it and the threads that make it: ncclCommAbort returns
// at once, and a thread that still works on the communicator keeps it alive until it is through.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "nccl/abi.h"
#include "nccl/config.h"
#include "nccl/errors.h"
#include "tutti/tutti.hpp"

namespace tutti::nccl {

/// A reduction made by ncclRedOpCreatePreMulSum.
struct Scaling {
  DataType type{};
  double factor = 1.0;
  const void* scalar = nullptr;  // not null: read when the call runs
};

class Comm {
 public:
  Comm(int rank, int size, int device, Config config)
      : rank_(rank), size_(size), device_(device), config_(std::move(config)) {}
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int rank() const { return rank_; }  // rank, size: -1 until a split is done
  int size() const { return size_; }
  int device() const { return device_; }
  const Config& config() const { return config_; }
  bool blocking() const { return config_.blocking; }
  std::string who() const;  // "rank 1", "rank 1 of 'trainer'"

  // It is being made, which counts as under way, from the constructor to the end() that follows made() or says why not;
  // and made again when it is resumed.
  void made(Communicator communicator, int rank, int size);
  /// The Tutti communicator. REQUIRES: settled() was ok.
  Communicator& tutti() { return communicator_; }
  /// Returns tutti() where another thread may suspend it now: an empty one when it is suspended.
  Communicator held() const;

  /// ok: calls may be made. ncclInProgress while something is under way; else what the communicator failed with.
  Outcome state() const;
  /// Returns state(), with what a stream's call ran into, or a peer's death that no call has met yet.
  Outcome asynchronous_state() const;
  /// state(), as the outcome of a call that wants the communicator settled: "ncclX: ...".
  Outcome settled(const char* function) const;
  /// Ok unless it is suspended.
  Outcome awake(const char* function) const;

  /// Takes the Tutti communicator out, whose memory goes with it. The ranks meet by `meeting` to make another one,
  /// which made() puts in its place. Until parted(), abort() ends `second`, by which they wait for each other. Throws
  /// tutti::Error where it was revoked or aborted since. REQUIRES: settled() was ok.
  Communicator suspend(const UniqueId& meeting, const Communicator& second);
  void parted();
  bool suspended() const { return suspended_.load(std::memory_order_acquire); }
  /// REQUIRES: suspended().
  const UniqueId& meeting() const { return setup_; }

  /// The id that this rank has made for ranks to be added; empty: none, or it has been dropped.
  const std::optional<UniqueId>& growth() const { return growth_; }
  void set_growth(const UniqueId& id) { growth_ = id; }
  void drop_growth();

  /// Something is under way until end() has been called as often. The first failure stays; one that a revocation brings
  /// is none.
  void begin();
  void end(const Outcome& outcome);
  /// Waits until nothing is under way.
  void wait_idle() const;
  /// While it lives, a blocking call runs: revoke() waits for that.
  class Caller {
   public:
    explicit Caller(Comm& comm) : comm_(&comm) { comm.callers_.fetch_add(1); }
    Caller(Caller&& other) noexcept : comm_(std::exchange(other.comm_, nullptr)) {}
    Caller& operator=(Caller&&) = delete;
    ~Caller() {
      if (comm_ != nullptr && comm_->callers_.fetch_sub(1) == 1 && comm_->revoked_.load()) comm_->callers_.notify_all();
    }

   private:
    Comm* comm_;
  };

  /// Keeps a failure that finishes the communicator; others, and those after a revocation, change nothing.
  void note(const Outcome& outcome);

  /// Ends what is under way, on all ranks. Any thread. One that is still being made is dropped as soon as it stands.
  void abort(const std::string& reason);
  /// Aborts and waits for the end: then the communicator is fit to be destroyed or shrunk. Returns false while it is
  /// still being made, and when it is suspended.
  bool revoke(const std::string& reason);
  bool revoked() const { return revoked_.load(std::memory_order_acquire); }
  void finalize() { finalized_.store(true, std::memory_order_release); }

  // Reductions of this communicator's own.
  Outcome add_scaling(const Scaling& scaling, ncclRedOp_t& op);
  bool drop_scaling(ncclRedOp_t op);
  std::optional<Scaling> scaling(ncclRedOp_t op) const;

  // The ranges given to ncclCommRegister; a handle is never null and never given twice.
  void* note_range();
  bool forget_range(const void* handle);

 private:
  int rank_;
  int size_;
  const int device_;
  const Config config_;
  Communicator communicator_;
  Communicator second_;  // guarded by mutex_; empty but while the ranks part

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  int under_way_ = 1;     // guarded by mutex_, as is what follows; 1: it is being made
  Outcome failure_;       // the first one
  bool dropped_ = false;  // aborted, maybe while it was being made
  std::vector<std::optional<Scaling>> scalings_;
  std::set<std::uintptr_t> ranges_;
  std::uintptr_t last_range_ = 0;

  std::atomic<int> callers_{0};
  std::atomic<bool> revoked_{false};
  std::atomic<bool> finalized_{false};
  std::atomic<bool> suspended_{false};
  UniqueId setup_{};
  std::optional<UniqueId> growth_;
  const unsigned salt_ = next_salt();  // so that another communicator's reductions are told from this one's

  static unsigned next_salt();
  std::optional<std::size_t> place_of(ncclRedOp_t op) const;  // REQUIRES: mutex_
};

/// A handle for a Comm; open until close().
ncclComm_t open_handle(std::shared_ptr<Comm> comm);
/// The Comm of a handle; null where the handle is null, is not one of ours or has been closed.
std::shared_ptr<Comm> comm_of(ncclComm_t handle);
/// Returns what comm_of() would have given, and closes the handle.
std::shared_ptr<Comm> close_handle(ncclComm_t handle);

/// The Comm of a handle, or the failure: "ncclX: comm is null".
Outcome find_comm(const char* function, ncclComm_t handle, std::shared_ptr<Comm>& comm);

}  // namespace tutti::nccl
