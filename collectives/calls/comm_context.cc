#include "collectives/calls/comm_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/forks.h"
#include "base/options.h"
#include "collectives/calls/rank_names.h"
#include "collectives/calls/window_sizing.h"

namespace tutti {

namespace {

executor::WaitOptions wait_options(const Options& options, JobContext& job, std::uint64_t comm_id) {
  executor::WaitOptions wait;
  wait.timeout = options.timeout;
  wait.interrupted = options.interrupted;
  wait.ask = [&job, comm_id] { job.ask(comm_id); };
  wait.spin = options::duration(Option::spin);
  wait.oversubscribed = job.local_members() > job.local_cpus();
  wait.oversubscribed_background = 2 * job.local_members() > job.local_cpus();
  return wait;
}

}  // namespace

CommContext::CommContext(std::shared_ptr<JobContext> job_context, std::vector<int> ranks_in_job, int own_rank,
                         std::uint64_t id, const Options& wanted, std::unique_ptr<transport::Transport> ways)
    : job(std::move(job_context)),
      world_ranks(std::move(ranks_in_job)),
      rank(own_rank),
      comm_id(id),
      options(wanted),
      name(name_of(rank)),
      streaming_above(tutti::streaming_above(job->local_members())),
      transport(std::move(ways)),
      links(transport->net_links()),
      board(*transport->window(rank).board),
      health(transport::shared_board(*transport)),
      waiter(
          *transport, health, rank, [this](int r) { return name_of(r); }, wait_options(options, *job, comm_id)),
      forks_(forks()) {
  health.set_notify(
      [this](Code code, const std::string& message) { return job->report_failure(comm_id, code, message); },
      [this](Code code, const std::string& message) {
        if (links != nullptr) links->announce_failure(code, message);
      });
  const auto on_failure = [this](int world_rank, Code code, const std::string& message) {
    const int dead = rank_of(world_rank);
    health.fail_quietly(code, code == Code::peer_died && dead >= 0 ? waiter.death_text(dead) : message);
  };
  const auto on_answer = [this](int world_rank, std::uint64_t standing) {
    if (const int r = rank_of(world_rank); r >= 0) waiter.answered(r, standing);
  };
  job->subscribe(comm_id, world_ranks, on_failure, {[this] { return waiter.standing(); }, on_answer});
  recorder = std::make_unique<FlightRecorder>(
      *transport, rank, [this](int r) { return name_of(r); }, file_owner());
}

CommContext::~CommContext() {
  recorder.reset();
  job->unsubscribe(comm_id);
  board.pulse.has_left.store(1, std::memory_order_release);
}

std::string CommContext::name_of(int r) const { return rank_name(*job, world_ranks, options, r); }

int CommContext::rank_of(int world_rank) const {
  const auto found = std::find(world_ranks.begin(), world_ranks.end(), world_rank);
  return found == world_ranks.end() ? -1 : static_cast<int>(found - world_ranks.begin());
}

executor::FileOwner CommContext::file_owner() const {
  const int world_rank = world_ranks[static_cast<std::size_t>(rank)];
  return {world_rank, fmt::format("rank {} ({})", world_rank, job->describe(world_rank)), comm_id};
}

std::uint64_t CommContext::child_comm_id(std::uint64_t number, int color) const {
  std::uint64_t x = comm_id ^ (number * 0x9E3779B97F4A7C15ULL) ^ ((static_cast<std::uint64_t>(color) + 1) << 32);
  x ^= x >> 31;
  x *= 0xBF58476D1CE4E5B9ULL;
  return x ^ (x >> 29);
}

// A fork may touch nothing of its parent's communicator, the failure included.
Status CommContext::usable() const {
  if (forks() == forks_) return {};
  return invalid_argument(name + " made this communicator; a fork of its process cannot use it");
}

Status CommContext::fail(Status status) {
  // A call that was entered and failed can never end on the other ranks either.
  if (!health.failed()) status = health.fail(status.code(), status.message());
  if (!recorded_failure_ && health.failed()) {
    recorded_failure_ = true;
    recorder->print_on_failure(status);
  }
  return status;
}

}  // namespace tutti
