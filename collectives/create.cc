#include "collectives/create.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/options.h"
#include "base/standard_streams.h"
#include "collectives/algorithms/table.h"
#include "collectives/baseline/baseline.h"
#include "collectives/calls/rank_names.h"
#include "collectives/calls/validate.h"
#include "collectives/calls/window_sizing.h"
#include "collectives/communicator/communicator.h"
#include "collectives/communicator/self_communicator.h"
#include "collectives/diagnostics/flight_recorder.h"
#include "collectives/job/process_job.h"
#include "collectives/job/settings.h"
#include "collectives/job/thread_job.h"
#include "launch/launch_local.h"
#include "transport/bootstrap/environment.h"

namespace tutti {

namespace {

using Implementation = std::shared_ptr<CommunicatorInterface>;

std::vector<int> all_ranks(int size) {
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

/// Baselines take their ranks from the environment only.
Status refuse_baseline(const Options& options, const char* what) {
  if (options.backend == "tutti") return {};
  return unsupported(fmt::format("backend {} does not offer {}; expected from_environment", options.backend, what));
}

static_assert(kMostLocalRanks == transport::kMostRanks, "launch cannot see transport");

Status check_place(int rank, int size) {
  if (size > transport::kMostRanks) {
    return unsupported(fmt::format("size is {}; expected at most {} ranks", size, transport::kMostRanks));
  }
  if (size >= 1 && rank >= 0 && rank < size) return {};
  return invalid_argument(fmt::format("rank is {} of {}; expected 0 to size - 1", rank, size));
}

/// Returns the options after checks, those of the environment included. Errors: invalid_argument, what a check says.
Result<Options> checked(Options options) {
  open_standard_streams();  // before any descriptor is made
  TUTTI_TRY(options::check());
  TUTTI_TRY(check_flight_signal());
  TUTTI_ASSIGN(options.timeout, checked_timeout(options.timeout));
  // A row may serve some collectives only; one that serves none is a slip of the pen.
  const auto has_name = [&](const algorithms::Algorithm& row) {
    return row.name == algorithms::current_name(options.algorithm);
  };
  const auto& table = algorithms::table();
  if (options.backend == "tutti" && !options.algorithm.empty() && std::none_of(table.begin(), table.end(), has_name)) {
    return invalid_argument(fmt::format("algorithm is '{}', which no collective has", options.algorithm));
  }
  return options;
}

Result<Implementation> create_on(const std::shared_ptr<ProcessJob>& job, int rank, int size, const Options& options) {
  const Exchange exchange = job->bootstrap_exchange();
  TUTTI_ASSIGN(const transport::WindowSizes sizes,
               window_sizes(size, options, most_remote_ranks(*job, all_ranks(size))));
  TUTTI_ASSIGN(const std::vector<Setting> settings, settings_of(sizes));
  TUTTI_TRY(compare_settings(settings, exchange));
  TUTTI_ASSIGN(std::shared_ptr<TuttiCommunicator> made,
               TuttiCommunicator::create(job, all_ranks(size), rank, 0, options, exchange));
  return Implementation(std::move(made));
}

Result<Implementation> create_among_processes(bootstrap::Config config, const Options& options) {
  const int rank = config.rank;
  const int size = config.size;
  TUTTI_TRY(check_place(rank, size));
  TUTTI_TRY(check_group(options, rank, size));
  log::set_rank(rank);
  if (size == 1) return Implementation(std::make_shared<SelfCommunicator>(options));
  config.deadline = options.timeout;
  TUTTI_ASSIGN(std::unique_ptr<bootstrap::Bootstrap> bootstrap, bootstrap::Bootstrap::connect(std::move(config)));
  TUTTI_ASSIGN(std::shared_ptr<ProcessJob> job, ProcessJob::create(std::move(bootstrap), options.timeout));
  Result<Implementation> made = create_on(job, rank, size, options);
  if (!made.ok()) job->give_up(made.status());
  return made;
}

// Where this process waits as rank 0 for a unique id that it has made.
struct Waiting {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<sockets::Listener>> listeners;  // by the id's bytes
};

Waiting& waiting() {
  static Waiting waiting;
  return waiting;
}

}  // namespace

Result<Implementation> create_from_environment(const Options& requested) {
  TUTTI_ASSIGN(const Options options, checked(requested));
  const bootstrap::LaunchEnvironment environment = bootstrap::launch_environment();
  TUTTI_ASSIGN(const bootstrap::LaunchPlace place, bootstrap::launch_place(environment));
  if (options.backend != "tutti") {
    return open_baseline(options.backend, {.rank = place.rank,
                                           .size = place.size,
                                           .job = place.job + "/" + options::text(Option::secret),
                                           .timeout = options.timeout});
  }
  TUTTI_TRY(check_group(options, place.rank, place.size));
  if (place.size == 1) return Implementation(std::make_shared<SelfCommunicator>(options));
  TUTTI_ASSIGN(const bootstrap::JoinInfo info,
               bootstrap::join_info_of(place, options::text(Option::secret), environment.user));
  bootstrap::Config config;
  config.rank = place.rank;
  config.size = place.size;
  config.server = info.server;
  config.secret = info.secret;
  return create_among_processes(std::move(config), options);
}

Result<UniqueId> create_unique_id() {
  open_standard_streams();
  TUTTI_TRY(options::check());
  TUTTI_ASSIGN(std::unique_ptr<sockets::Listener> listener, sockets::Listener::open({}));
  TUTTI_ASSIGN(const auto bytes, bootstrap::encode_join_info({listener->endpoint(), bootstrap::Secret::random()}));
  UniqueId id;
  std::copy(bytes.begin(), bytes.end(), id.bytes);
  Waiting& w = waiting();
  const std::lock_guard lock(w.mutex);
  w.listeners[std::string(id.bytes, sizeof(id.bytes))] = std::move(listener);
  return id;
}

void forget_unique_id(const UniqueId& id) {
  std::unique_ptr<sockets::Listener> listener;  // closed without the lock
  Waiting& w = waiting();
  const std::lock_guard lock(w.mutex);
  const auto found = w.listeners.find(std::string(id.bytes, sizeof(id.bytes)));
  if (found == w.listeners.end()) return;
  listener = std::move(found->second);
  w.listeners.erase(found);
}

Result<Implementation> create_from_unique_id(const UniqueId& id, int rank, int size, const Options& requested) {
  TUTTI_ASSIGN(const Options options, checked(requested));
  TUTTI_TRY(refuse_baseline(options, "from_unique_id"));
  TUTTI_ASSIGN(const bootstrap::JoinInfo info, bootstrap::decode_join_info(std::span<const char, 128>(id.bytes)));
  bootstrap::Config config;
  config.rank = rank;
  config.size = size;
  config.server = info.server;
  config.secret = info.secret;
  if (rank == 0) {
    Waiting& w = waiting();
    const std::lock_guard lock(w.mutex);
    const auto found = w.listeners.find(std::string(id.bytes, sizeof(id.bytes)));
    if (found == w.listeners.end()) {
      return invalid_argument(
          "rank 0 must be in the process that made the unique id, and the id serves one communicator");
    }
    config.listener = std::move(found->second);
    w.listeners.erase(found);
  }
  return create_among_processes(std::move(config), options);
}

Result<std::vector<Implementation>> create_in_process(int size, const Options& requested) {
  TUTTI_ASSIGN(const Options options, checked(requested));
  TUTTI_TRY(refuse_baseline(options, "in_process"));
  TUTTI_TRY(check_place(0, size));
  TUTTI_TRY(check_group(options, 0, size));
  if (size == 1) return std::vector<Implementation>{std::make_shared<SelfCommunicator>(options)};
  // One thread makes all ranks, so no rank can wait in an exchange: the windows are made first.
  auto job = std::make_shared<ThreadJob>(size);
  TUTTI_ASSIGN(const transport::WindowSizes sizes, window_sizes(size, options, 0));
  TUTTI_ASSIGN(const std::vector<std::uint64_t> windows, job->make_windows(size, sizes));
  std::vector<Implementation> all;
  for (int rank = 0; rank < size; ++rank) {
    const Exchange exchange = [&](const Words&) -> Result<Words> { return windows; };
    TUTTI_ASSIGN(std::shared_ptr<TuttiCommunicator> made,
                 TuttiCommunicator::create(job, all_ranks(size), rank, 0, options, exchange));
    all.push_back(std::move(made));
  }
  job->drop_windows();
  return all;
}

}  // namespace tutti
