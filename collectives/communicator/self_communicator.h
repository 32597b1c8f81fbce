// A communicator of one rank: every collective is a copy at most. It owns no buffers and no thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "collectives/communicator/self_messages.h"
#include "collectives/communicator_interface.h"
#include "tutti/types.hpp"

namespace tutti {

class SelfCommunicator final : public CommunicatorInterface {
 public:
  /// `where`: "host alpha, pid 4711", for the name of the rank in a group; may be empty.
  explicit SelfCommunicator(const Options& options, std::string where = {});
  int rank() const override { return 0; }
  int size() const override { return 1; }

  Status run(const Call& call) override;
  Status run_group(std::span<const Transfer> transfers) override;
  Result<std::shared_ptr<PendingWork>> start(const Call& call) override;
  Result<std::shared_ptr<PendingWork>> start_group(std::span<const Transfer> transfers) override;
  Result<std::shared_ptr<CommunicatorInterface>> split(int color, int key, const std::string& name) override;
  Result<std::shared_ptr<CommunicatorInterface>> shrink() override;
  Status set_timeout(std::chrono::milliseconds timeout) override;
  void abort(const std::string& reason) override;
  Status status() const override { return failure(); }

  Explanation explain_last_call() const override { return {"self", 1, 1, "one rank"}; }
  MemoryReport memory() const override { return {}; }
  Traffic traffic() const override { return {calls_, 0, 0}; }
  std::string flight_recorder_text() const override;
  std::string flight_recorder_json() const override;

 private:
  Status failure() const;

  const Options options_;
  const std::string where_;
  const std::string name_;  // of the rank, in errors
  SelfMessages messages_;
  std::uint64_t calls_ = 0;
  mutable std::mutex mutex_;  // abort() may come from any thread
  Status failure_;            // guarded by mutex_
};

}  // namespace tutti
