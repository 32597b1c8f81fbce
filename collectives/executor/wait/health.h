// The one failure of a communicator. The first rank that fails claims it (compare-and-swap in memory that all ranks of
// the host share), and from then on every rank reports that sentence and no other. Where there are several hosts each
// may have claimed one: then the bootstrap server decides, and a claim is not reported before its verdict has come. If
// rank 0 of the job has left or died, or is stopped, there is no verdict: the claim holds on its host and is sent by
// the network. Hosts that claim at the same moment may then report different sentences.
//
// Threads: every function may be called from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>

#include "base/status.h"
#include "transport/transport.h"

namespace tutti::executor {

class Health {
 public:
  /// `shared` is the board that all ranks use; it must outlive this object.
  explicit Health(transport::Board& shared) : board_(&shared) {}

  /// One load of a cache line that is not written while all is well.
  bool failed() const { return board_->failure_code.load(std::memory_order_acquire) != 0; }
  /// The sentence, or ok.
  Status status() const;
  /// Returns the failure that a remote rank has written by the network into the mirror of its board; or ok.
  static Status failure_on(const transport::Board& mirror);
  /// Claims the failure unless a rank has done so; returns the one that holds. The first claim of this rank also goes
  /// to `notify`, so that ranks which do not share memory hear of it.
  Status fail(Code code, const std::string& message);
  /// Claims a failure that came from elsewhere and need not be told again; it is the verdict if this rank has claimed
  /// another.
  void fail_quietly(Code code, const std::string& message);

  /// `notify` returns whether a verdict follows; when it has not come in time, `notify_over_network` is called.
  void set_notify(std::function<bool(Code, const std::string&)> notify,
                  std::function<void(Code, const std::string&)> notify_over_network);

 private:
  bool claim();
  void publish(Code code, const std::string& message);

  transport::Board* board_;
  mutable std::mutex mutex_;
  std::function<bool(Code, const std::string&)> notify_;               // guarded by mutex_
  std::function<void(Code, const std::string&)> notify_over_network_;  // guarded by mutex_
  bool pending_ = false;  // guarded by mutex_: this rank has claimed, and waits
                          // for the verdict
  std::condition_variable verdict_;
};

}  // namespace tutti::executor
