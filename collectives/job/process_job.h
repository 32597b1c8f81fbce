// A job whose ranks are processes: a Bootstrap that watches over them, shared memory between those of a host, and a
// wire between hosts where there are several.
// Errors: create() gives those of the bootstrap and of the wire, and mismatch when hosts have different networks.
//   connect() gives memory_limit when a rank has no memory for its window, and those of the exchange and the wire.
// Threads: any, except connect() and exchange_with_survivors(): one at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/job/job_context.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/shm/shm_peers.h"
#include "transport/wire/wire.h"

namespace tutti {

namespace transport {
class LeaveMarks;
}

/// Shared by the communicators of one rank.
class ProcessJob final : public JobContext {
 public:
  /// A collective call of all ranks of the job.
  static Result<std::shared_ptr<ProcessJob>> create(std::unique_ptr<bootstrap::Bootstrap> bootstrap,
                                                    std::chrono::milliseconds deadline);
  ~ProcessJob() override;

  /// Tells the others why this rank cannot go on with the making of the job's first communicator (Bootstrap::give_up).
  void give_up(const Status& why) { bootstrap_->give_up(why); }

  /// The exchange of the job's first communicator.
  Exchange bootstrap_exchange();

  std::size_t connect_words() const override;
  std::string describe(int member) const override;
  Result<std::unique_ptr<transport::Transport>> connect(std::uint64_t comm_id, std::span<const int> members, int rank,
                                                        const NameOf& name_of, const transport::WindowSizes& sizes,
                                                        const Exchange& exchange) override;
  void subscribe(std::uint64_t comm_id, std::vector<int> members, OnFailure on_failure,
                 Whereabouts whereabouts) override;
  void unsubscribe(std::uint64_t comm_id) override;
  bool report_failure(std::uint64_t comm_id, Code code, const std::string& message) override;
  void ask(std::uint64_t comm_id) override;
  Result<std::vector<Words>> exchange_with_survivors(std::uint64_t name, std::span<const int> members,
                                                     const NameOf& name_of,
                                                     const std::function<std::vector<bool>()>& gone, const Words& mine,
                                                     std::chrono::milliseconds limit) override;
  std::vector<int> host_of_member() const override { return shm_peers_.hosts; }
  int local_members() const override;
  int local_cpus() const override;
  int local_processes() const override { return local_members(); }
  const topology::Topology* topology() const override { return wire_ ? &topology_ : nullptr; }
  const planner::Table* table() const override { return table_ ? &*table_ : nullptr; }
  const transport::WireInfo* wire_info() const override { return wire_ ? &wire_->info() : nullptr; }

 private:
  using Deaths = std::vector<std::atomic<bool>>;  // by member

  ProcessJob(std::unique_ptr<bootstrap::Bootstrap> bootstrap, transport::Arena& arena, transport::ShmPeers peers);
  bool is_local(int member) const;
  /// Opens the wire and meets the other hosts by it. A collective call of all ranks of the job.
  Status link();
  Result<std::unique_ptr<transport::Transport>> multi_host_transport(
      std::uint64_t comm_id, std::span<const int> members, int rank, const transport::WindowSizes& sizes,
      std::byte* own, std::shared_ptr<transport::LeaveMarks> marks, std::unique_ptr<transport::ShmTransport> shared,
      const Words& all);
  /// From now on leave notices to this rank in `comm_id` are marked there, as long as the caller keeps the result.
  std::shared_ptr<transport::LeaveMarks> await_leave_notices(std::uint64_t comm_id, std::span<const int> members,
                                                             std::byte* own, const transport::WindowSizes& sizes);
  void heard(const bootstrap::Failure& failure);
  void asked_or_answered(const bootstrap::ProgressReport& report);
  void heard(const bootstrap::LeaveNotice& leave_notice);

  struct Subscription {
    std::vector<int> members;
    OnFailure on_failure;
    Whereabouts whereabouts;
  };
  struct Awaited {  // leave notices
    std::vector<int> members;
    std::weak_ptr<transport::LeaveMarks> marks;
  };
  static void pass_on(const bootstrap::Failure& failure, std::uint64_t comm_id, const Subscription& to);

  const std::unique_ptr<bootstrap::Bootstrap> bootstrap_;
  transport::Arena& arena_;
  const transport::ShmPeers shm_peers_;
  const std::shared_ptr<Deaths> deaths_;
  std::shared_ptr<transport::Wire> wire_;  // null: all ranks are on this host. Constant after creation
  topology::Topology topology_;            // if there is a wire. Constant after creation
  std::optional<planner::Table> table_;    // constant after creation
  std::mutex mutex_;
  std::map<std::uint64_t, Subscription> subscriptions_;  // guarded by mutex_
  std::map<std::uint64_t, Awaited> awaited_;             // guarded by mutex_; by comm_id, where there is a wire
  std::vector<bootstrap::Failure> heard_;                // guarded by mutex_; a later subscriber hears of them too
};

}  // namespace tutti
