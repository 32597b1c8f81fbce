// What an ncclComm_t points to: a handle, which gives a Comm as long as it is open.
// How: handles are never freed, only used again, so that a closed one is recognised and not read after its end. A Comm
//   is shared by its handle, the groups that have calls on it and the threads that make it. ncclCommAbort returns at
//   once; a thread that still works on the communicator keeps it alive until it is through.
// Errors: Outcomes, whose sentences begin with the NCCL function. suspend() throws tutti::Error.
// Threads: abort(), held() and the states from any thread; growth() one at a time.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "nccl/abi.h"
#include "nccl/comm_parts.h"
#include "nccl/config.h"
#include "nccl/errors.h"
#include "nccl/progress.h"
#include "tutti/tutti.hpp"

namespace tutti::nccl {

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

  /// It is being made until progress().end() says that it was made or why not, and again when it is resumed.
  void made(Communicator communicator, int rank, int size);
  /// The Tutti communicator. REQUIRES: settled() was ok.
  Communicator& tutti() { return communicator_; }
  /// Returns tutti() where another thread may suspend it now: an empty one when it is suspended.
  Communicator held() const;

  Progress& progress() { return progress_; }
  Outcome state() const { return progress_.state(); }
  /// Returns state(), with what a stream's call ran into, or a peer's death that no call has met yet.
  Outcome asynchronous_state() const;
  /// state(), as the outcome of a call that wants the communicator settled: "ncclX: ...".
  Outcome settled(const char* function) const;
  /// Ok unless it is suspended.
  Outcome awake(const char* function) const;

  /// Takes the Tutti communicator out, whose memory goes with it. The ranks meet by `resume_id` to make another one,
  /// which made() puts in its place. Until parted(), abort() ends `second`, by which they wait for each other. Throws
  /// tutti::Error where it was revoked or aborted since. REQUIRES: settled() was ok.
  Communicator suspend(const UniqueId& resume_id, const Communicator& second);
  void parted();
  bool suspended() const { return suspended_.load(std::memory_order_acquire); }
  /// REQUIRES: suspended().
  const UniqueId& resume_id() const { return *setup_.id(); }

  /// The id that this rank has made for ranks to be added. REQUIRES: one thread at a time.
  HeldId& growth() { return growth_; }
  UserOperators& operators() { return operators_; }
  Registrations& registrations() { return registrations_; }

  /// Ends what is under way, on all ranks. Any thread. One that is still being made is dropped as soon as it stands.
  void abort(const std::string& reason);
  /// Aborts and waits for the end: then the communicator is fit to be destroyed or shrunk. Returns false while it is
  /// still being made, and when it is suspended.
  bool revoke(const std::string& reason);
  bool revoked() const { return progress_.revoked(); }
  void finalize() { finalized_.store(true, std::memory_order_release); }

 private:
  int rank_;
  int size_;
  const int device_;
  const Config config_;

  Progress progress_;
  UserOperators operators_;
  Registrations registrations_;
  HeldId growth_;

  mutable std::mutex mutex_;
  Communicator communicator_;
  Communicator second_;   // guarded by mutex_; empty but while the ranks part
  bool dropped_ = false;  // guarded by mutex_; aborted, maybe while it was being made
  HeldId setup_;
  std::atomic<bool> suspended_{false};
  std::atomic<bool> finalized_{false};
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
