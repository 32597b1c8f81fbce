// What stands behind a tutti::Communicator: Tutti itself (communicator.h) or a baseline (baseline/).
// How: one virtual function runs every collective, so that a baseline is one switch.
// Threads: as tutti::Communicator; status() from any thread. A PendingWork is shared by two threads.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "collectives/call.h"
#include "tutti/tutti.hpp"

namespace tutti {

/// An operation in flight, shared by the thread that runs it and by its Work.
class PendingWork {
 public:
  virtual ~PendingWork() = default;
  /// Waits until the operation is done or `limit` has passed. Returns true if it is done.
  virtual bool wait_for(std::chrono::nanoseconds limit) = 0;
  /// The operation's outcome; ok while it runs.
  virtual Status status() const = 0;
  /// Once, when done: on the thread that finishes it, at once when it is done already.
  virtual void then(std::function<void()> callback) = 0;
};

class CommunicatorInterface {
 public:
  virtual ~CommunicatorInterface() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual Status run(const Call& call) = 0;
  virtual Status run_group(std::span<const Transfer> transfers) = 0;
  /// Calls on device memory, one after another; on one stream by fewer launches, where that can be. One that is wrong
  /// by itself lets none run.
  virtual Status run_together(std::span<const Call> calls) {
    for (const Call& call : calls) TUTTI_TRY(run(call));
    return {};
  }
  virtual Result<std::shared_ptr<PendingWork>> start(const Call& call) = 0;
  virtual Result<std::shared_ptr<PendingWork>> start_group(std::span<const Transfer> transfers) = 0;

  /// `name`: of the new communicator, for errors; may be empty.
  virtual Result<std::shared_ptr<CommunicatorInterface>> split(int color, int key, const std::string& name) = 0;
  virtual Result<std::shared_ptr<CommunicatorInterface>> shrink() = 0;
  /// A collective call. Where nothing needs to be made ready it does nothing.
  virtual Status open_device(int /*device*/) { return {}; }
  virtual Status set_timeout(std::chrono::milliseconds timeout) = 0;
  virtual void abort(const std::string& reason) = 0;
  /// The failure that has ended it; any thread.
  virtual Status status() const = 0;

  virtual Explanation explain_last_call() const = 0;
  virtual MemoryReport memory() const = 0;
  virtual Traffic traffic() const = 0;
  virtual std::string flight_recorder_text() const = 0;
  virtual std::string flight_recorder_json() const = 0;
};

}  // namespace tutti
