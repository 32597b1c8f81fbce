// Tutti's own communicator: joins the halves of the house. It validates a call, finds its plan (cached), lets the
// executor walk it, and turns what goes wrong into the one failure that every rank reports.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/calls/async_queue.h"
#include "collectives/communicator/started_groups.h"
#include "collectives/communicator_interface.h"
#include "collectives/device/kernel_engine.h"
#include "collectives/device/multi_host/hierarchical_call.h"
#include "collectives/device/multi_host/host_layout.h"
#include "collectives/device/multi_host/host_staged_call.h"
#include "collectives/device/multi_host/host_staging.h"
#include "collectives/diagnostics/flight_recorder.h"
#include "collectives/executor/host/executor.h"
#include "collectives/executor/wait/health.h"
#include "collectives/executor/host/trace.h"
#include "collectives/executor/p2p/transfers.h"
#include "collectives/executor/wait/wait.h"
#include "collectives/job/job_context.h"
#include "collectives/planner/planner.h"

namespace tutti {

class TuttiCommunicator final : public CommunicatorInterface {
 public:
  /// Among `members` of the job, by rank. `scope` names the communicator in failures: the same number on all ranks.
  static Result<std::shared_ptr<TuttiCommunicator>> create(std::shared_ptr<JobContext> job, std::vector<int> members,
                                                           int rank, std::uint64_t scope, const Options& options,
                                                           const Exchange& exchange);
  ~TuttiCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }

  Status run(const Call& call) override;
  Status run_group(std::span<const Transfer> transfers) override;
  Status run_together(std::span<const Call> calls) override;
  Result<std::shared_ptr<PendingWork>> start(const Call& call) override;
  Result<std::shared_ptr<PendingWork>> start_group(std::span<const Transfer> transfers) override;

  Result<std::shared_ptr<CommunicatorInterface>> split(int color, int key) override;
  Result<std::shared_ptr<CommunicatorInterface>> shrink() override;
  Status open_device(int device) override;
  Status set_timeout(std::chrono::milliseconds timeout) override;
  void abort(const std::string& reason) override;
  Status status() const override { return health_.status(); }

  Explanation explain_last_call() const override;
  MemoryReport memory() const override;
  Traffic traffic() const override;
  std::string flight_recorder_text() const override;
  std::string flight_recorder_json() const override;

  /// Whose files this communicator writes.
  executor::FileOwner file_owner() const;
  const JobContext& job() const { return *job_; }
  const planner::Planner& planner() const { return *planner_; }

  /// How many bytes a window has under these options. `most_far`: see most_far_ranks(). Errors: memory_limit.
  static Result<transport::WindowSizes> window_sizes(int ranks, const Options& options, int most_far);
  /// On how many ranks of other hosts that rank looks that has most of them; the same on all ranks.
  static int most_far_ranks(const JobContext& job, const std::vector<int>& members);

 private:
  // A kind of call, made ready: what the cache holds.
  struct Ready {
    executor::Shape shape;
    bool deterministic = false;
    bool across = false;
    std::string request;  // an algorithm by name
    executor::Announcement announcement;
    bool handles = false;    // peers touch each other's buffers
    bool agreement = false;  // which of the plans below serves, the ranks find out at each call
    std::shared_ptr<const executor::Prepared> first;
    std::shared_ptr<const executor::Prepared> if_plain;     // when some buffer is not registered; null: first
    std::shared_ptr<const executor::Prepared> if_in_place;  // when some rank is in place; null: no matter
    std::size_t bytes = 0;
  };
  // Where they are kept: by a hash, a few in each set, the one used last in front.
  static constexpr int kReadySetBits = 6;
  static constexpr std::size_t kReadyWays = 4;
  using ReadySet = std::array<std::unique_ptr<Ready>, kReadyWays>;

  TuttiCommunicator(std::shared_ptr<JobContext> job, std::vector<int> members, int rank, std::uint64_t scope,
                    const Options& options, std::unique_ptr<transport::Transport> transport,
                    std::unique_ptr<planner::Planner> planner);

  /// Its rank here, or -1.
  int rank_of(int member) const;
  std::string who(int rank) const;
  /// Names the `number`-th split's or shrink's communicator: colors of splits are not negative, those of shrinks are.
  std::uint64_t scope_of_child(std::uint64_t number, int color) const;
  /// Errors: invalid_argument in a fork of the process that made this.
  Status usable() const;
  /// Until all that was started is done.
  void wait_for_queue() const;
  Status execute(const Call& call);
  Status execute_empty(const Call& call);
  /// By the plan that `ready` has for it. `uneven`: of an all_to_allv.
  Status carry_out(const Ready& ready, const Call& call, executor::Announcement announcement,
                   const executor::UnevenPieces* uneven = nullptr);
  Status execute_all_to_allv(const Call& call, int device);
  /// The ranks tell each other what they have; `memory`: flags of a PeerCounts.
  Status exchange_counts(const Call& call, std::uint64_t memory);
  /// After the ranks have told each other what they have. `memories`: which any of them has its buffers in.
  Status execute_all_to_allv_on_device(const Call& data, std::uint64_t memories, int device);
  /// The failure of an all_to_allv, after the ranks have told each other what they have.
  Status mixed_memories();
  executor::UnevenPieces pieces_of(const Call& call) const;

  // Device memory (communicator_device.cc).
  /// The GPU whose memory the buffers are, or -1: they are the host's. Errors: invalid_argument (some are and some are
  /// not, or they are of two GPUs).
  Result<int> device_of(const Call& call) const;
  /// The GPU of a group of sends and receives, of which some are on device memory. Errors: invalid_argument.
  Result<int> check_on_device(std::span<const Transfer> transfers) const;
  /// -1: not known yet.
  int device_in_use() const;
  Status run_group_on_device(std::span<const Transfer> transfers);
  /// All ranks make the GPU half at their first call on device memory, which the others see as `identity`.
  Status need_device_half(int device, const executor::CallIdentity& identity);
  /// What the GPU half has said to a call, or to messages.
  Status put_on_device(const Status& status);
  KernelEngine::Request request_on_device(const Call& call) const;
  /// One or more, all on one stream. `uneven`: of an all_to_allv, which comes alone.
  Status execute_on_device(std::span<const Call> calls, int device, const executor::UnevenPieces* uneven = nullptr);
  bool is_in_place(const Call& call) const { return is_in_place(call, rank_, call.count); }
  /// `stride`: from a block to the next one, in elements.
  static bool is_in_place(const Call& call, int rank, std::size_t stride);

  // Device memory through the host's: where there are several hosts, and messages of ranks that have not opened their
  // GPUs' memory to each other (communicator_staged.cc).
  Status need_staging(int device);
  /// By the queue: `one` for each turn, when the stream has come to it.
  Status carry_out_turns(std::uint64_t first, std::size_t turns, const std::function<Status(std::size_t)>& one);
  /// The call, or the group, is in the stream when these return; its turns are the queue's.
  Status run_staged(const Call& call);
  Status run_group_staged(std::span<const Transfer> transfers);
  /// Lets the queue have `turns` turns, and the stream what is copied for them.
  Status start_turns(std::uint64_t first, std::span<const HostStaging::Fragment> turns, Stream stream,
                     std::function<Status()> carry_out);
  // By the queue.
  Status carry_out_turns(const HostStagedCall& call, std::uint64_t first);
  /// Of an all_to_allv, after exchange_counts(). `first`: 0 where this rank has no buffers.
  Status carry_out_uneven_turns(const HostStagedCall& call, std::uint64_t first);
  /// `turn`: the call on the host, one of those that `whole` is cut into; `across`: see ready(). `cut`: what says how,
  /// the same on all ranks.
  Status carry_out_turn(const Call& whole, const Call& turn, bool across, std::size_t cut);
  executor::CallIdentity identity_on_device(const Call& call, std::size_t cut) const;
  Status turns_ended(std::uint64_t first, std::size_t turns, const Status& status);
  /// Until the stream has come to the turn. It may take its time, but not while the caller waits for the queue.
  Status await_stream(std::uint64_t turn);
  /// The same on all ranks, if memory_limit is. Errors: memory_limit.
  Result<std::size_t> slot_bytes() const;
  std::size_t room_for_pinned() const;

  // The same with kernels inside each host (communicator_grid.cc).
  /// Whether it is worth that, and can be: the same on all ranks.
  bool wants_grid(const Call& call) const;
  /// All ranks together, at their first such call: kernels of this host's ranks come to reach each other. False: on
  /// some host they cannot, and grid_refused_ says why.
  Result<bool> open_grid(int device, const executor::CallIdentity& identity);
  Result<std::unique_ptr<KernelEngine>> make_row(int device, const executor::CallIdentity& identity, int& gathers);
  Status run_on_grid(const Call& call);
  /// Puts kernels of this host's ranks into the stream.
  Status run_row(std::span<const HierarchicalCall::IntraHostCall> calls, const executor::CallIdentity& identity);

  // The same from GPU to GPU by the network's cards, where nothing is added (communicator_direct.cc).
  /// Whether it is worth that among so many ranks on hosts of their own, and can be: the same on all ranks.
  bool wants_direct(const Call& call, int ranks) const;
  bool each_on_its_host() const;
  /// All ranks together, at their first such call: each exposes slots in its GPU's memory. False: some rank cannot, and
  /// direct_refused_ says why.
  Result<bool> open_gdr(const executor::CallIdentity& identity);
  /// Makes and exposes them. The key, for the others.
  Result<std::string> expose_direct();
  void close_direct();
  Status run_direct(const Call& call);
  /// Slots of direct turn `turn`.
  std::byte* gdr_input(std::uint64_t turn) const { return direct_base_ + staging_->gdr_input(turn); }
  std::byte* gdr_output(std::uint64_t turn) const { return direct_base_ + staging_->gdr_output(turn); }
  /// By the queue. `ranks`: those of the call `turn`, by their number in it; `number`: of the direct turn.
  Status carry_out_direct(const Call& whole, const Call& turn, std::span<const int> ranks, std::uint64_t number,
                          std::size_t cut);

  // Sends and receives (communicator_transfers.cc).
  /// In the flight recorder; gives the group's number there.
  std::uint64_t announce(std::span<const Transfer> transfers);
  void begin(StartedGroup& group);
  Status ended(std::uint64_t number, Status status);
  /// An operation of the queue: until all groups are done, and those that were offered meanwhile.
  AsyncQueue::Endings carry_out(StartedGroups& groups);

  /// The cache's entry for this call; made when it is new. Valid until the next call. `across`: among the ranks at this
  /// one's place on all hosts (host_grid.h), by host.
  Result<Ready*> ready(const Call& call, bool across = false);
  Result<std::unique_ptr<Ready>> make_ready(const Call& call);
  Result<std::unique_ptr<Ready>> make_ready_across(const Call& call);
  executor::PlanLimits limits_for(const planner::Choice& choice) const;
  Result<std::shared_ptr<const executor::Prepared>> plan_for(planner::Demand demand, const Ready& ready);
  executor::CallIdentity identity_of(const Call& call, bool deterministic) const;
  /// That what the peers have told is what this rank expects.
  Status compare_counts(const Call& call);
  /// Before each call: see HostExecutor::bound_run_ahead().
  Status bound_run_ahead();
  Status failed(Status status);
  /// Errors: peer_died (meanwhile; may be tried again), timeout.
  Result<std::shared_ptr<CommunicatorInterface>> shrink_once(int attempt, std::int64_t deadline_ns);
  /// The ranks that are alive, as every one of them agrees; then everybody's words among them: on one host by their
  /// boards, the first word only, else through the meeting place. `attempt`: of this shrink.
  Result<std::vector<int>> agree_on_survivors(int attempt, std::int64_t deadline_ns);
  Result<std::vector<int>> agree_on_boards(std::int64_t deadline_ns);
  Result<Words> meet_survivors(const std::vector<int>& survivors, int attempt, std::uint64_t stage, const Words& mine,
                               std::int64_t deadline_ns);
  Result<std::vector<std::uint64_t>> meet_on_boards(const std::vector<int>& survivors, std::uint64_t stage,
                                                    std::uint64_t value, std::int64_t deadline_ns);
  /// By rank; nothing of those that are gone.
  Result<std::vector<Words>> regroup(int attempt, std::uint64_t stage, const Words& mine, std::int64_t deadline_ns);
  bool has_departed(int rank) const {
    return transport_->window(rank).board->pulse.departed.load(std::memory_order_acquire) != 0;
  }
  /// The record of the call that ran last.
  executor::CallSnapshot last_call() const;
  /// Says what has been done, for TUTTI_EXPLAIN and TUTTI_TRACE.
  void told(const executor::CallSnapshot& call, const std::string& algorithm, const std::string& how) const;
  static std::string how(const executor::Prepared& prepared);
  // Everybody's words, by an all_gather of this communicator (split.cc): as one of the calls in progress, which the
  // others see as `identity`, and as a call of its own.
  Result<Words> gather_as(const executor::CallIdentity& identity, std::span<const std::uint64_t> mine);
  Result<Words> gather_words(const Words& mine);
  /// The call that does it.
  Call gathering(std::span<const std::uint64_t> mine, Words& all) const;

  // Constant after construction.
  const std::shared_ptr<JobContext> job_;
  const std::vector<int> members_;
  const int rank_;
  const std::uint64_t scope_;
  Options options_;  // its timeout is of the caller's thread: see set_timeout()
  const std::string own_name_;
  const bool explain_;
  const std::size_t streaming_above_;
  const std::uint64_t forks_;  // that this process was from its first ancestor
  const std::unique_ptr<transport::Transport> transport_;
  const bool far_;           // there are ranks on other hosts
  transport::Board& board_;  // this rank's

  // With their own synchronisation.
  executor::Health health_;
  mutable AsyncQueue queue_;  // mutable: reports wait for what was started

  // Of the caller's thread.
  std::shared_ptr<StartedGroups> started_;  // of the last operation in the queue; null: that is a collective

  // Of the thread that runs calls (one at a time: the caller's, or the queue's).
  executor::Waiter waiter_;
  executor::HostExecutor executor_;
  executor::Transfers transfers_;
  std::unique_ptr<executor::StepTrace> trace_;
  bool watched_ = false;  // traced or explained
  const std::unique_ptr<planner::Planner> planner_;
  std::array<ReadySet, 1 << kReadySetBits> cache_;
  std::shared_ptr<const executor::Prepared> last_;  // of the last call
  std::vector<executor::PeerCounts> own_counts_;    // of an all_to_allv, by peer
  std::vector<executor::PeerCounts> peer_counts_;   // likewise
  std::uint64_t groups_ = 0;                        // of sends and receives
  std::uint64_t splits_ = 0;
  std::uint64_t shrinks_ = 0;
  std::unique_ptr<FlightRecorder> recorder_;
  bool recorded_failure_ = false;  // the flight recorder has been printed
  bool last_on_device_ = false;    // the last call was on device memory
  int last_turns_ = 0;             // through pinned memory, in so many; 0: it was not
  std::string last_way_;           // then: how else
  bool last_direct_ = false;       // not through pinned memory, but by the network's card
  std::unique_ptr<KernelEngine> engine_;
  std::atomic<bool> messages_staged_{false};  // some rank has sent or received on device memory before that was made

  // Where there are several hosts, and as many ranks on each.
  enum class Opened { untried, yes, refused };
  Opened grid_open_ = Opened::untried;
  std::string grid_refused_;                          // why
  std::optional<HostLayout> grid_;                    // engine_ is then of its row
  std::unique_ptr<planner::Planner> column_planner_;  // for its column

  // Slots in the GPUs' memory.
  Opened direct_open_ = Opened::untried;
  std::string direct_refused_;        // why
  std::byte* direct_base_ = nullptr;  // null: not exposed
  std::size_t direct_bytes_ = 0;
  std::vector<transport::Region> direct_regions_;  // by rank; 0: it is near
  std::uint64_t direct_turns_ = 0;                 // that there have been

  // Of the caller's thread, but for what it says itself.
  std::unique_ptr<HostStaging> staging_;
  mutable std::atomic<std::int64_t> waits_since_ns_{0};  // for the queue; 0: it does not
};

}  // namespace tutti
