#include "collectives/communicator/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/forks.h"
#include "base/log.h"
#include "base/options.h"
#include "collectives/calls/call_copy.h"
#include "collectives/calls/validate.h"
#include "collectives/diagnostics/flight_recorder.h"
#include "collectives/job/planner_factory.h"
#include "collectives/job/stable_hash.h"
#include "collectives/reduce/reduce.h"
#include "device/memory_kind.h"
#include "topology/discover.h"
#include "transport/hosts/hosts.h"
#include "transport/wire/net_links.h"

namespace tutti {

using executor::Prepared;

namespace {

constexpr std::size_t kLeastScratch = std::size_t{64} << 10;
// Between hosts a round takes two latencies of the network, so it should move much more than fits into a cache.
constexpr std::size_t kFarScratch = 4;
// And a message of some KiB, which would wait for its receiver to have come to the call before, goes with its signal.
constexpr int kMostRanksFarExpress = 8;
constexpr std::size_t kFarExpressLines = 512;      // 32 KiB, of all senders together
constexpr std::size_t kLeastFarExpressLines = 64;  // of each, or the usual
constexpr std::size_t kMailboxes = std::size_t{2} << 20;
constexpr std::size_t kLeastMailbox = std::size_t{16} << 10, kMostMailbox = std::size_t{1} << 20;

executor::WaitOptions wait_options(const Options& options, JobContext& job, std::uint64_t scope) {
  executor::WaitOptions wait;
  wait.timeout = options.timeout;
  wait.interrupted = options.interrupted;
  wait.ask = [&job, scope] { job.ask(scope); };
  wait.spin = options::duration(Option::spin);
  wait.oversubscribed = job.local_members() > job.local_cpus();
  wait.oversubscribed_background = 2 * job.local_members() > job.local_cpus();
  return wait;
}

/// How large a buffer may be for stores through the caches: an input and an output of each rank of the host fit into
/// half of its last cache, side by side (measured: perf/findings.md).
std::size_t streaming_above(int ranks_of_host) {
  static const Result<topology::Host> host = topology::discover_host();
  const std::uint64_t share = host.ok() ? topology::cache_share(host.value(), ranks_of_host) : 0;
  return std::max<std::size_t>(reduce::kLeastStreaming, share / 4);
}

/// What memory_limit leaves for messages that come before they are received.
std::size_t room_for_messages(const transport::Transport& transport, const Options& options) {
  if (options.memory_limit == 0) return std::numeric_limits<std::size_t>::max();
  const std::size_t taken = transport.memory() + executor::HostExecutor::kBounceBytes;
  return options.memory_limit - std::min(taken, options.memory_limit);
}

}  // namespace

std::uint64_t TuttiCommunicator::scope_of_child(std::uint64_t number, int color) const {
  std::uint64_t x = scope_ ^ (number * 0x9E3779B97F4A7C15ULL) ^ ((static_cast<std::uint64_t>(color) + 1) << 32);
  x ^= x >> 31;
  x *= 0xBF58476D1CE4E5B9ULL;
  return x ^ (x >> 29);
}

int TuttiCommunicator::most_far_ranks(const JobContext& job, const std::vector<int>& members) {
  const std::vector<int> hosts = job.host_of_member();
  std::map<int, int> ranks;  // by host
  for (const int member : members) ++ranks[hosts[static_cast<std::size_t>(member)]];
  int fewest = static_cast<int>(members.size());
  for (const auto& [host, count] : ranks) fewest = std::min(fewest, count);
  return static_cast<int>(members.size()) - fewest;
}

Result<transport::WindowSizes> TuttiCommunicator::window_sizes(int ranks, const Options& options, int most_far) {
  const bool far = most_far > 0;
  transport::WindowSizes sizes;
  sizes.ranks = ranks;
  sizes.far = far;
  sizes.lanes = kLanes;
  // All mailboxes of a window together should leave the second-level cache before they are used again, as scratch does.
  sizes.mailbox = std::clamp(std::bit_floor(kMailboxes / static_cast<std::size_t>(ranks)), kLeastMailbox, kMostMailbox);
  std::size_t scratch = std::max(static_cast<std::size_t>(options::bytes(Option::scratch)), kLeastScratch);
  if (far) scratch *= kFarScratch;
  if (far && ranks <= kMostRanksFarExpress) sizes.express_lines = kFarExpressLines / static_cast<std::size_t>(ranks);
  std::size_t taken = 0;
  for (;; scratch /= 2, sizes.mailbox = std::max(sizes.mailbox / 2, kLeastMailbox),
                        sizes.express_lines = sizes.express_lines > kLeastFarExpressLines ? kLeastFarExpressLines : 0) {
    sizes.scratch_half = round_up(scratch / 2, transport::kCacheLine);
    sizes.published_half = far ? transport::kCacheLine : sizes.scratch_half;  // nobody reads it across hosts
    taken = (far ? transport::exposed_bytes(sizes) : sizes.bytes()) + executor::HostExecutor::kBounceBytes;
    taken += static_cast<std::size_t>(most_far) * transport::draft_bytes(sizes);
    if (options.memory_limit == 0 || taken <= options.memory_limit) return sizes;
    if (scratch / 2 < kLeastScratch) break;
  }
  return Status(Code::memory_limit,
                fmt::format("a communicator of {} ranks takes at least {} bytes; memory_limit is {}", ranks, taken,
                            options.memory_limit));
}

Result<std::shared_ptr<TuttiCommunicator>> TuttiCommunicator::create(std::shared_ptr<JobContext> job,
                                                                     std::vector<int> members, int rank,
                                                                     std::uint64_t scope, const Options& options,
                                                                     const Exchange& exchange) {
  Result<transport::WindowSizes> sizes =
      window_sizes(static_cast<int>(members.size()), options, most_far_ranks(*job, members));
  Result<std::unique_ptr<planner::Planner>> planner = sizes.status();
  if (sizes.ok()) planner = make_planner(*job, members, sizes.value());
  for (const Status& status : {sizes.status(), planner.status()}) {
    if (status.ok()) continue;
    (void)exchange(job->nothing());  // the others wait for this rank's part
    return status;
  }
  Result<std::unique_ptr<transport::Transport>> transport = job->connect(scope, members, rank, sizes.value(), exchange);
  if (!transport.ok()) {
    // The others may have got further, and would wait for this rank in their first call.
    const std::string name = fmt::format("rank {} ({})", rank, job->describe(members[static_cast<std::size_t>(rank)]));
    (void)job->tell(scope, transport.status().code(),
                    name + " could not join the communicator: " + transport.status().message());
    return transport.status();
  }
  // A fork's copy is given up as it is: its threads do not exist, and what it shares with the peers is its parent's.
  const auto unless_forked = [](TuttiCommunicator* communicator) {
    if (communicator->usable().ok()) delete communicator;
  };
  return std::shared_ptr<TuttiCommunicator>(
      new TuttiCommunicator(std::move(job), std::move(members), rank, scope, options, transport.take(), planner.take()),
      unless_forked);
}

TuttiCommunicator::TuttiCommunicator(std::shared_ptr<JobContext> job, std::vector<int> members, int rank,
                                     std::uint64_t scope, const Options& options,
                                     std::unique_ptr<transport::Transport> transport,
                                     std::unique_ptr<planner::Planner> planner)
    : job_(std::move(job)),
      members_(std::move(members)),
      rank_(rank),
      scope_(scope),
      options_(options),
      own_name_(who(rank)),
      explain_(options::flag(Option::explain)),
      streaming_above_(streaming_above(job_->local_members())),
      forks_(forks()),
      transport_(std::move(transport)),
      far_(transport_->far_links() != nullptr),
      board_(*transport_->window(rank).board),
      health_(transport::shared_board(*transport_)),
      waiter_(
          *transport_, health_, rank, [this](int r) { return who(r); }, wait_options(options, *job_, scope)),
      executor_(*transport_, waiter_, health_, rank),
      transfers_(*transport_, waiter_, health_, rank, streaming_above_, room_for_messages(*transport_, options)),
      planner_(std::move(planner)) {
  health_.set_tell([this](Code code, const std::string& message) { return job_->tell(scope_, code, message); },
                   [far = transport_->far_links()](Code code, const std::string& message) {
                     if (far != nullptr) far->tell(code, message);
                   });
  const auto on_failure = [this](int member, Code code, const std::string& message) {
    const int rank = rank_of(member);
    health_.fail_quietly(code, code == Code::peer_died && rank >= 0 ? waiter_.death_text(rank) : message);
  };
  const auto on_answer = [this](int member, std::uint64_t standing) {
    if (const int rank = rank_of(member); rank >= 0) waiter_.answered(rank, standing);
  };
  job_->subscribe(scope_, members_, on_failure, {[this] { return waiter_.standing(); }, on_answer});
  if (const std::string& path = options::text(Option::trace); !path.empty()) {
    const executor::FileOwner owner = file_owner();
    trace_ = std::make_unique<executor::StepTrace>(executor::rank_path(path, owner), owner);
    executor_.set_trace(trace_.get());
  }
  watched_ = explain_ || trace_;
  recorder_ = std::make_unique<FlightRecorder>(
      *transport_, rank_, [this](int r) { return who(r); }, file_owner());
}

TuttiCommunicator::~TuttiCommunicator() {
  wait_for_queue();
  engine_.reset();
  KernelEngine::sweep();
  close_direct();
  staging_.reset();
  recorder_.reset();
  job_->unsubscribe(scope_);
  transport_->window(rank_).board->pulse.departed.store(1, std::memory_order_release);
}

int TuttiCommunicator::rank_of(int member) const {
  const auto found = std::find(members_.begin(), members_.end(), member);
  return found == members_.end() ? -1 : static_cast<int>(found - members_.begin());
}

std::string TuttiCommunicator::who(int rank) const {
  return fmt::format("rank {} ({})", rank, job_->describe(members_[static_cast<std::size_t>(rank)]));
}

// Nothing of a communicator may be touched in a fork of its process, its failure included: that is its parent's.
Status TuttiCommunicator::usable() const {
  if (forks() == forks_) return {};
  return invalid_argument(own_name_ + " made this communicator; a fork of its process cannot use it");
}

Status TuttiCommunicator::run(const Call& call) {
  TUTTI_TRY(usable());
  if (far_ && device::any_on_device(call.send, call.recv)) [[unlikely]] {
    return run_staged(call);
  }
  wait_for_queue();
  waiter_.set_background(false);
  return execute(call);
}

Result<std::shared_ptr<PendingWork>> TuttiCommunicator::start(const Call& call) {
  TUTTI_TRY(usable());
  TUTTI_TRY(validate(call, rank_, size(), own_name_));
  TUTTI_ASSIGN(const int device, device_of(call));
  if (device >= 0) {  // the stream is the queue; what was started before on host memory comes first
    started_ = nullptr;
    return finished_work(run(call));
  }
  started_ = nullptr;  // groups that come after this call do not join those before it
  return queue_.start([this, copy = CallCopy(call, size())] {
    waiter_.set_background(true);
    return execute(copy.call());
  });
}

void TuttiCommunicator::wait_for_queue() const {
  if (queue_.idle()) return;
  waits_since_ns_.store(now_ns());
  queue_.wait_idle();
  waits_since_ns_.store(0);
}

Status TuttiCommunicator::failed(Status status) {
  // A call that was entered and failed can never end on the others either: they must hear of it.
  if (!health_.failed()) status = health_.fail(status.code(), status.message());
  if (!recorded_failure_ && health_.failed()) {
    recorded_failure_ = true;
    recorder_->print_on_failure(status);
  }
  return status;
}

Status TuttiCommunicator::bound_run_ahead() {
  if (!executor_.must_bound_run_ahead()) return {};
  const Status status = executor_.bound_run_ahead();
  return status.ok() ? status : failed(status);
}

Status TuttiCommunicator::execute(const Call& call) {
  if (health_.failed()) return failed(health_.status());
  TUTTI_TRY(validate(call, rank_, size(), own_name_));
  int device = -1;
  if (device::any_on_device(call.send, call.recv)) [[unlikely]] {
    TUTTI_ASSIGN(device, device_of(call));
  }
  TUTTI_TRY(bound_run_ahead());
  if (call.collective == Collective::all_to_allv) return execute_all_to_allv(call, device);
  if (call.count == 0 && call.collective != Collective::barrier) return execute_empty(call);
  if (device >= 0) return execute_on_device({&call, 1}, device);
  TUTTI_ASSIGN(const Ready* ready, this->ready(call));
  return carry_out(*ready, call, ready->announcement);
}

Status TuttiCommunicator::carry_out(const Ready& ready, const Call& call, executor::Announcement announcement,
                                    const executor::UnevenPieces* uneven) {
  const executor::HostExecutor::Buffers buffers{call.send, call.recv, call.factor, uneven};
  if (ready.agreement && is_in_place(call)) announcement.identity.words.flags |= transport::kInPlace;
  executor_.enter(announcement, buffers, ready.handles);
  const std::shared_ptr<const Prepared>* prepared = &ready.first;
  Status status;
  if (ready.agreement) {
    const auto agreed = executor_.agree();
    if (!agreed.ok()) {
      status = agreed.status();
    } else if (agreed.value().in_place && ready.if_in_place) {
      prepared = &ready.if_in_place;
    } else if (!agreed.value().registered && ready.if_plain) {
      prepared = &ready.if_plain;
    }
  }
  if (status.ok()) status = executor_.run(**prepared, buffers);
  // Whoever has failed may use its buffers for something else by now: what was read from them is no result.
  if (status.ok() && health_.failed()) status = health_.status();
  if (!status.ok() && ready.handles) executor_.withdraw();
  if (!status.ok()) executor_.drop_net_puts();
  executor_.leave(status.ok());
  if (last_ != *prepared) last_ = *prepared;
  last_on_device_ = false;
  last_turns_ = 0;
  last_direct_ = false;
  if (watched_) told(last_call(), (*prepared)->plan->algorithm, how(**prepared));
  return status.ok() ? status : failed(status);
}

// Nothing to move, so nobody waits on one host; it is announced all the same, so that a rank which calls something else
// is found out.
Status TuttiCommunicator::execute_empty(const Call& call) {
  const executor::CallIdentity identity = identity_of(call, call.deterministic || options_.deterministic);
  executor_.enter({identity, identity.fingerprint(), transport::kNoAlgorithm, 0}, {}, false);
  const Status met = transport_->far_links() == nullptr ? Status() : executor_.meet_remote_ranks();
  executor_.leave(met.ok());
  if (!met.ok()) return failed(met);
  last_ = nullptr;
  last_on_device_ = false;
  last_direct_ = false;
  if (watched_) told(last_call(), "nothing", "nothing: there is nothing to move");
  return {};
}

// A plan needs to know the size and the place of every piece that its rank touches, and all ranks must choose the same
// plan. So each first tells each what it has for it, by an all_to_all that is a call of its own.
Status TuttiCommunicator::execute_all_to_allv(const Call& call, int device) {
  const auto n = static_cast<std::size_t>(size());
  const bool has_buffers = call.send != nullptr || call.recv != nullptr;
  const std::uint64_t memory = device >= 0   ? executor::PeerCounts::kOnDevice
                               : has_buffers ? executor::PeerCounts::kOnHost
                                             : 0;
  TUTTI_TRY(exchange_counts(call, memory));
  Call data = call;
  std::uint64_t memories = 0;
  for (const executor::PeerCounts& counts : peer_counts_) {
    data.count = std::max<std::size_t>(data.count, counts.largest_piece());
    memories |= counts.largest & (executor::PeerCounts::kOnDevice | executor::PeerCounts::kOnHost);
  }
  if (data.count == 0) return {};
  data.count = executor::rounded_piece(data.count);
  if ((memories & executor::PeerCounts::kOnDevice) != 0) return execute_all_to_allv_on_device(data, memories, device);
  TUTTI_TRY(bound_run_ahead());
  TUTTI_ASSIGN(const Ready* moving, ready(data));
  executor::Announcement announcement = moving->announcement;
  announcement.bytes = std::accumulate(call.send_counts, call.send_counts + n, std::size_t{0}) * size_of(call.type);
  const std::size_t received = std::accumulate(call.recv_counts, call.recv_counts + n, std::size_t{0});
  executor::UnevenPieces uneven = pieces_of(call);
  uneven.streaming = received * size_of(call.type) > streaming_above_;
  return carry_out(*moving, data, announcement, &uneven);
}

Status TuttiCommunicator::exchange_counts(const Call& call, std::uint64_t memory) {
  const auto n = static_cast<std::size_t>(size());
  const std::size_t largest = std::max(*std::max_element(call.send_counts, call.send_counts + n),
                                       *std::max_element(call.recv_counts, call.recv_counts + n));
  own_counts_.resize(n);
  peer_counts_.resize(n);
  for (std::size_t r = 0; r < n; ++r) own_counts_[r] = {call.send_counts[r], call.send_offsets[r], largest | memory};
  Call counts;
  counts.collective = Collective::all_to_all;
  counts.send = own_counts_.data();
  counts.recv = peer_counts_.data();
  counts.count = sizeof(executor::PeerCounts) / sizeof(std::uint64_t);
  counts.type = DataType::u64;
  TUTTI_ASSIGN(const Ready* telling, ready(counts));
  executor::Announcement announcement = telling->announcement;
  announcement.identity = identity_of(call, call.deterministic || options_.deterministic);
  announcement.fingerprint = announcement.identity.fingerprint();
  TUTTI_TRY(carry_out(*telling, counts, announcement));
  return compare_counts(call);
}

executor::UnevenPieces TuttiCommunicator::pieces_of(const Call& call) const {
  const auto n = static_cast<std::size_t>(size());
  return {.rank = rank_,
          .send_counts = {call.send_counts, n},
          .send_offsets = {call.send_offsets, n},
          .recv_counts = {call.recv_counts, n},
          .recv_offsets = {call.recv_offsets, n},
          .peer_counts = peer_counts_};
}

Status TuttiCommunicator::compare_counts(const Call& call) {
  for (int peer = 0; peer < size(); ++peer) {
    const std::uint64_t count = peer_counts_[static_cast<std::size_t>(peer)].count;
    if (count == call.recv_counts[peer]) continue;
    return failed(health_.fail(
        Code::mismatch,
        fmt::format("{} sends {} x {} to {}, which receives {} x {} in all_to_allv as its call {}", who(peer), count,
                    name_of(call.type), who(rank_), call.recv_counts[peer], name_of(call.type), executor_.sequence())));
  }
  return {};
}

executor::CallIdentity TuttiCommunicator::identity_of(const Call& call, bool deterministic) const {
  executor::CallIdentity identity;
  identity.words.collective = static_cast<std::uint8_t>(call.collective);
  identity.words.type = static_cast<std::uint8_t>(call.type);
  identity.words.op = static_cast<std::uint8_t>(call.op);
  identity.words.flags = deterministic ? transport::kDeterministic : 0;
  identity.words.root = call.root;
  identity.count = call.count;
  const std::string_view request = call.algorithm.empty() ? std::string_view(options_.algorithm) : call.algorithm;
  identity.algorithm_request = request.empty() ? 0 : stable_hash(request);
  return identity;
}

Result<TuttiCommunicator::Ready*> TuttiCommunicator::ready(const Call& call, bool across) {
  const bool deterministic = call.deterministic || options_.deterministic;
  const std::string_view request = call.algorithm.empty() ? std::string_view(options_.algorithm) : call.algorithm;
  const auto matches = [&](const std::unique_ptr<Ready>& entry) {
    return entry != nullptr && entry->shape.count == call.count && entry->shape.collective == call.collective &&
           entry->shape.type == call.type && entry->shape.op == call.op && entry->shape.root == call.root &&
           entry->deterministic == deterministic && entry->across == across && entry->request == request;
  };
  const std::uint64_t words = static_cast<std::uint64_t>(call.collective) | static_cast<std::uint64_t>(call.type) << 8 |
                              static_cast<std::uint64_t>(call.op) << 16 | static_cast<std::uint64_t>(call.root) << 24;
  const std::uint64_t hash = (call.count * 0x9E3779B97F4A7C15ULL) ^ (words * 0xBF58476D1CE4E5B9ULL);
  ReadySet& set = cache_[hash >> (64 - kReadySetBits)];
  const auto found = std::find_if(set.begin(), set.end(), matches);
  if (found == set.begin()) return found->get();
  if (found == set.end()) {
    TUTTI_ASSIGN(set.back(), across ? make_ready_across(call) : make_ready(call));
  }
  const auto entry = found == set.end() ? std::prev(set.end()) : found;
  std::rotate(set.begin(), entry, std::next(entry));
  return set.front().get();
}

Result<std::unique_ptr<TuttiCommunicator::Ready>> TuttiCommunicator::make_ready(const Call& call) {
  auto ready = std::make_unique<Ready>();
  const transport::Capabilities& can = transport_->capabilities();
  ready->shape = {call.collective, call.type, call.op, call.root, call.count};
  ready->deterministic = call.deterministic || options_.deterministic;
  ready->request = call.algorithm.empty() ? options_.algorithm : std::string(call.algorithm);
  ready->bytes = elements_of(call, size()) * size_of(call.type);

  planner::Demand demand;
  demand.collective = call.collective;
  demand.ranks = size();
  demand.bytes = ready->bytes;
  demand.deterministic = ready->deterministic;
  demand.load_store = can.load_store;
  demand.lanes = kLanes;
  demand.algorithm = call.algorithm;
  if (call.algorithm.empty() && !options_.algorithm.empty()) {
    // The communicator's wish holds where it can; only a call's own wish is a demand.
    const algorithms::Algorithm* wish = algorithms::find(call.collective, options_.algorithm);
    if (wish != nullptr && planner::why_not(*wish, demand).empty()) demand.algorithm = options_.algorithm;
  }
  TUTTI_ASSIGN(ready->first, plan_for(demand, *ready));
  const algorithms::Algorithm& algorithm = algorithms::table()[ready->first->algorithm];
  const executor::CallIdentity identity = identity_of(call, ready->deterministic);
  ready->announcement = {identity, identity.fingerprint(), ready->first->algorithm, ready->bytes};
  ready->handles = ready->first->opens;
  demand.plain = !can.any_pointer;
  demand.buffers_open = can.any_pointer || can.cross_memory;
  if (ready->handles && demand.plain) {
    planner::Demand plain = demand;
    TUTTI_ASSIGN(ready->if_plain, plan_for(plain, *ready));
    if (ready->if_plain->algorithm == ready->first->algorithm) ready->if_plain = nullptr;
  }
  if (!algorithm.in_place) {
    demand.in_place = true;
    TUTTI_ASSIGN(ready->if_in_place, plan_for(demand, *ready));
  }
  ready->agreement = ready->if_plain || ready->if_in_place;
  return ready;
}

executor::PlanLimits TuttiCommunicator::limits_for(const planner::Choice& choice) const {
  executor::PlanLimits limits = executor::limits_of(transport_->sizes());
  if (transport_->far_links() != nullptr) limits.slice_bytes = kFarSlice;
  if (choice.slice > 0) limits.slice_bytes = choice.slice;
  return limits;
}

Result<std::shared_ptr<const Prepared>> TuttiCommunicator::plan_for(planner::Demand demand, const Ready& ready) {
  // An algorithm that was asked for by name, and could serve, may not do so for the buffers that some rank has brought.
  std::string instead, names;
  if (ready.first && !demand.algorithm.empty()) {
    const algorithms::Algorithm& asked = algorithms::table()[ready.first->algorithm];
    const std::string why = planner::why_not(asked, demand);
    const bool by_name = planner::is_named(demand.algorithm, asked.name);
    if (by_name && !why.empty()) instead = fmt::format("{} was asked for, but it {}; ", asked.name, why);
    demand.algorithm = names = planner::names_or_auto(demand.algorithm);
  }
  TUTTI_ASSIGN(const planner::Choice choice, planner_->choose(demand, ready.shape.root));
  TUTTI_ASSIGN(const std::shared_ptr<Prepared> prepared,
               executor::prepare(choice.plan, rank_, ready.shape, limits_for(choice), streaming_above_));
  prepared->algorithm = static_cast<std::uint32_t>(choice.algorithm - algorithms::table().data());
  prepared->reason = instead + choice.reason;
  return std::shared_ptr<const Prepared>(prepared);
}

executor::CallSnapshot TuttiCommunicator::last_call() const {
  return executor::snapshot(transport_->window(rank_).board->calls[executor_.sequence() % transport::kCallRing]);
}

std::string TuttiCommunicator::how(const Prepared& prepared) {
  return fmt::format("{}, {} lane(s), {} round(s), {}", prepared.plan->algorithm, prepared.lanes.size(),
                     prepared.rounds, prepared.reason);
}

void TuttiCommunicator::told(const executor::CallSnapshot& call, const std::string& algorithm,
                             const std::string& how) const {
  if (trace_) trace_->call(call, algorithm);
  if (!explain_) return;
  // Asked for, so it is told at any level; ranks that are threads are told apart too.
  log::set_thread_rank(members_[static_cast<std::size_t>(rank_)]);
  const char* kind = call.collective == Collective::send_recv ? "transfer" : "call";
  log::error("{} {}: {}: {} bytes by {}", kind, call.sequence, call.text(), call.bytes, how);
  log::set_thread_rank(-1);
}

Status TuttiCommunicator::set_timeout(std::chrono::milliseconds timeout) {
  TUTTI_TRY(usable());
  TUTTI_ASSIGN(options_.timeout, checked_timeout(timeout));
  waiter_.set_timeout(options_.timeout);
  if (engine_) engine_->set_timeout(options_.timeout);
  if (staging_) staging_->set_limit(std::chrono::nanoseconds(options_.timeout).count());
  return {};
}

void TuttiCommunicator::abort(const std::string& reason) {
  if (!usable().ok()) return;
  (void)health_.fail(Code::aborted, fmt::format("{} aborted the communicator: {}", who(rank_), reason));
}

Explanation TuttiCommunicator::explain_last_call() const {
  wait_for_queue();
  if (last_on_device_ && !engine_->explanations().empty()) return engine_->explanations().back();
  if (last_direct_)
    return {"direct", kLanes, last_turns_,
            "from GPU to GPU by the network's card" + fmt::format(", in {} turn(s){}", last_turns_, last_way_)};
  if (!last_) return {};
  Explanation explanation{last_->plan->algorithm, static_cast<int>(last_->lanes.size()), last_->rounds, last_->reason};
  if (last_turns_ > 0) {
    explanation.reason += fmt::format("; through pinned memory, in {} turn(s){}", last_turns_, last_way_);
    if (last_way_.empty() && !grid_refused_.empty())
      explanation.reason += "; no kernels inside hosts: " + grid_refused_;
    if (!direct_refused_.empty()) explanation.reason += "; no GPUDirect: " + direct_refused_;
  }
  return explanation;
}

MemoryReport TuttiCommunicator::memory() const {
  wait_for_queue();
  MemoryReport report;
  report.scratch = transport_->memory() + executor_.bounce_bytes();
  if (engine_) report.scratch += engine_->memory();
  if (staging_) report.scratch += staging_->memory();
  report.messages = transfers_.unexpected_bytes();
  report.plans = planner_->memory() + (column_planner_ ? column_planner_->memory() : 0);
  for (const ReadySet& set : cache_) {
    for (const auto& entry : set) {
      if (entry == nullptr) continue;
      for (const auto& prepared : {entry->first, entry->if_plain, entry->if_in_place}) {
        if (prepared) report.plans += prepared->memory();
      }
    }
  }
  return report;
}

Traffic TuttiCommunicator::traffic() const {
  wait_for_queue();
  const executor::Counters& counters = executor_.counters();
  const std::uint64_t on_device = engine_ ? engine_->calls() : 0;
  return {counters.calls + on_device, counters.bytes + transfers_.bytes(), counters.signals};
}

executor::FileOwner TuttiCommunicator::file_owner() const {
  const int member = members_[static_cast<std::size_t>(rank_)];
  return {member, fmt::format("rank {} ({})", member, job_->describe(member)), scope_};
}

std::string TuttiCommunicator::flight_recorder_text() const { return recorder_->text(); }

std::string TuttiCommunicator::flight_recorder_json() const { return recorder_->json(); }

}  // namespace tutti
