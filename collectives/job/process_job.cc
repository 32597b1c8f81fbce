#include "collectives/job/process_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/options.h"
#include "collectives/job/job_costs.h"
#include "collectives/job/job_topology.h"
#include "collectives/job/networks.h"
#include "topology/discover.h"
#include "transport/bootstrap/agree.h"
#include "transport/hosts/hosts.h"

namespace tutti {

using transport::Arena;
using transport::Wire;

namespace {

// What connect() exchanges between hosts: where the window lies in its arena, and the key of its memory with its
// length.
constexpr std::size_t kNetWords = 2 + Wire::kMostKeyWords;

std::uint64_t* key_length(std::uint64_t* words) { return words + 1; }

void put_key(Words& words, const std::string& key) {
  *key_length(words.data()) = key.size();
  std::memcpy(words.data() + 2, key.data(), std::min(key.size(), Wire::kMostKeyBytes));
}

std::string key_in(const std::uint64_t* words) {
  return {reinterpret_cast<const char*>(words + 2), std::min<std::size_t>(words[1], Wire::kMostKeyBytes)};
}

}  // namespace

Result<std::shared_ptr<ProcessJob>> ProcessJob::create(std::unique_ptr<bootstrap::Bootstrap> bootstrap,
                                                       std::chrono::milliseconds deadline) {
  Result<Arena*> arena = Arena::process();
  Result<transport::ShmPeers> met =
      arena.ok() ? transport::exchange_shm_peers(*bootstrap, *arena.value(), deadline) : arena.status();
  if (!met.ok()) {
    // Without a goodbye the others would take this rank's failure for its death.
    bootstrap->give_up(met.status());
    return met.status();
  }
  std::shared_ptr<ProcessJob> job(new ProcessJob(std::move(bootstrap), *arena.value(), met.take()));
  const std::vector<int>& hosts = job->shm_peers_.hosts;
  const int last = *std::max_element(hosts.begin(), hosts.end());
  log::debug("{} ranks on {} hosts; cross-memory access: {}", hosts.size(), last + 1, job->shm_peers_.cross_memory);
  if (last > 0) TUTTI_TRY(job->link());
  return job;
}

ProcessJob::ProcessJob(std::unique_ptr<bootstrap::Bootstrap> bootstrap, Arena& arena, transport::ShmPeers peers)
    : bootstrap_(std::move(bootstrap)),
      arena_(arena),
      shm_peers_(std::move(peers)),
      deaths_(std::make_shared<Deaths>(static_cast<std::size_t>(bootstrap_->size()))) {
  bootstrap_->watch([this](const bootstrap::Failure& failure) { heard(failure); },
                    [this](const bootstrap::ProgressReport& report) { asked_or_answered(report); },
                    [this](const bootstrap::LeaveNotice& leave_notice) { heard(leave_notice); });
}

ProcessJob::~ProcessJob() { (void)bootstrap_->leave(); }

Status ProcessJob::link() {
  transport::WireJob job;
  job.rank = bootstrap_->rank();
  job.hosts = shm_peers_.hosts;
  for (int member = 0; member < bootstrap_->size(); ++member) {
    const bootstrap::Identity& identity = bootstrap_->roster()[static_cast<std::size_t>(member)];
    job.names.push_back(bootstrap::name_and_address_of(member, identity));
  }
  const bootstrap::Identity& own = bootstrap_->roster()[static_cast<std::size_t>(bootstrap_->rank())];
  job.own_ip = own.address;
  if (own.address.empty()) job.only_link_local = own.interface;
  job.lanes = kLanes;
  job.blocks = &arena_;
  Result<std::unique_ptr<Wire>> opened = open_wire(job);
  TUTTI_ASSIGN(const std::vector<std::string> addresses,
               bootstrap::agree_all(*bootstrap_, opened.status(),
                                    opened.ok() ? opened.value()->info().name + '\n' + opened.value()->address() : ""));
  // Each address begins with the network's name: "auto" may have found another one on another host.
  std::vector<std::string> of_wire;
  Status status;
  for (std::size_t r = 0; r < addresses.size(); ++r) {
    const std::size_t end = addresses[r].find('\n');
    const std::string name = addresses[r].substr(0, end);
    if (name != opened.value()->info().name) {
      status = {Code::mismatch,
                fmt::format("its network is {}, that of rank {} is {}; set TUTTI_NETWORK to the same on "
                            "all hosts",
                            opened.value()->info().name, r, name)};
    }
    of_wire.push_back(addresses[r].substr(end + 1));
  }
  if (status.ok()) status = opened.value()->meet(of_wire);
  TUTTI_ASSIGN([[maybe_unused]] const std::vector<std::string> all, bootstrap::agree_all(*bootstrap_, status));
  TUTTI_ASSIGN(topology_, exchange_topology(*bootstrap_, shm_peers_.hosts, opened.value()->info()));
  TUTTI_ASSIGN(table_, exchange_table(*bootstrap_, opened.value()->info(), topology_));
  // What a file says of the network stands.
  if (table_ && options::text(Option::topology).empty()) planner::apply(*table_, topology_);
  wire_ = opened.take();
  log::debug("between hosts: {} over {}", wire_->info().name, wire_->info().devices);
  return {};
}

Exchange ProcessJob::bootstrap_exchange() {
  return [this](const Words& mine) -> Result<Words> {
    const std::size_t bytes = mine.size() * sizeof(std::uint64_t);
    TUTTI_ASSIGN(const std::vector<std::string> blobs,
                 bootstrap_->all_gather({reinterpret_cast<const char*>(mine.data()), bytes}));
    Words words(mine.size() * blobs.size());
    for (std::size_t r = 0; r < blobs.size(); ++r) {
      std::memcpy(&words[r * mine.size()], blobs[r].data(), std::min(blobs[r].size(), bytes));
    }
    return words;
  };
}

std::size_t ProcessJob::connect_words() const { return wire_ ? kNetWords : 1; }

std::string ProcessJob::describe(int member) const {
  const bootstrap::Identity& identity = bootstrap_->roster()[static_cast<std::size_t>(member)];
  return fmt::format("host {}, pid {}", identity.host, identity.pid);
}

bool ProcessJob::is_local(int member) const {
  const std::vector<int>& hosts = shm_peers_.hosts;
  return hosts[static_cast<std::size_t>(member)] == hosts[static_cast<std::size_t>(bootstrap_->rank())];
}

Result<std::unique_ptr<transport::Transport>> ProcessJob::connect(std::uint64_t comm_id, std::span<const int> members,
                                                                  int rank, const NameOf& name_of,
                                                                  const transport::WindowSizes& sizes,
                                                                  const Exchange& exchange) {
  const bool multi_host = !std::all_of(members.begin(), members.end(), [this](int member) { return is_local(member); });
  Status made;
  const std::size_t bytes = multi_host ? transport::exposed_bytes(sizes) : sizes.bytes();
  const std::size_t own = transport::make_window_in(arena_, bytes, made);
  Words mine(connect_words());
  mine[0] = own;
  if (made.ok() && multi_host) {
    const Result<std::string> key = wire_->expose(arena_.base() + own, bytes);
    made = key.status();
    if (key.ok()) put_key(mine, key.value());
    if (!key.ok()) Arena::deallocate(arena_.base() + own);
  }
  std::shared_ptr<transport::LeaveMarks> marks;
  if (made.ok() && multi_host) marks = await_leave_notices(comm_id, members, arena_.base() + own, sizes);
  const Result<Words> all = exchange(made.ok() ? mine : nothing());
  if (!made.ok()) return made;
  Status failure = all.status();
  std::vector<std::shared_ptr<const transport::ShmProcess>> processes;
  std::vector<std::size_t> offsets;
  for (std::size_t r = 0; failure.ok() && r < members.size(); ++r) {
    offsets.push_back(all.value()[r * mine.size()]);
    if (offsets.back() == kNothing) {
      failure = {Code::memory_limit, fmt::format("{} could not make its {} bytes of communication buffers",
                                                 name_of(static_cast<int>(r)), bytes)};
    }
    processes.push_back(shm_peers_.processes[static_cast<std::size_t>(members[r])]);
  }
  if (!failure.ok()) {
    if (multi_host) {
      // Others may have got further, and would wait for this rank's end.
      std::vector<std::int32_t> others;
      std::copy_if(members.begin(), members.end(), std::back_inserter(others), [this](int m) { return !is_local(m); });
      (void)bootstrap_->send_leave_notice(comm_id, false, std::move(others));
      wire_->unexpose(arena_.base() + own);
      marks->end();
    }
    Arena::deallocate(arena_.base() + own);  // no peer has touched it
    return failure;
  }
  auto shared = std::make_unique<transport::ShmTransport>(rank, sizes, arena_, std::move(processes), std::move(offsets),
                                                          shm_peers_.cross_memory);
  if (!multi_host) return std::unique_ptr<transport::Transport>(std::move(shared));
  return multi_host_transport(comm_id, members, rank, sizes, arena_.base() + own, std::move(marks), std::move(shared),
                              all.value());
}

Result<std::unique_ptr<transport::Transport>> ProcessJob::multi_host_transport(
    std::uint64_t comm_id, std::span<const int> members, int rank, const transport::WindowSizes& sizes, std::byte* own,
    std::shared_ptr<transport::LeaveMarks> marks, std::unique_ptr<transport::ShmTransport> shared, const Words& all) {
  transport::HostsTransport::Setup setup;
  setup.rank = rank;
  setup.sizes = sizes;
  setup.keep = [shm = shared.get()](transport::HostsTransport::Gone gone) { shm->keep_until(std::move(gone)); };
  setup.local = std::move(shared);
  setup.wire = wire_;
  setup.world_ranks.assign(members.begin(), members.end());
  setup.own = own;
  for (std::size_t r = 0; r < members.size(); ++r) setup.keys.push_back(key_in(&all[r * kNetWords]));
  setup.alive = [deaths = deaths_](int member) {
    return !(*deaths)[static_cast<std::size_t>(member)].load(std::memory_order_acquire);
  };
  setup.server_alive = [this] { return !bootstrap_->has_left(0) && !(*deaths_)[0].load(std::memory_order_acquire); };
  setup.marks = std::move(marks);
  setup.send_leave_notice = [this, comm_id](const std::vector<int>& to, bool came) {
    return bootstrap_->send_leave_notice(comm_id, came, {to.begin(), to.end()});
  };
  TUTTI_ASSIGN(auto transport, transport::HostsTransport::connect(std::move(setup)));
  return std::unique_ptr<transport::Transport>(std::move(transport));
}

std::shared_ptr<transport::LeaveMarks> ProcessJob::await_leave_notices(std::uint64_t comm_id,
                                                                       std::span<const int> members, std::byte* own,
                                                                       const transport::WindowSizes& sizes) {
  auto marks = std::make_shared<transport::LeaveMarks>(own, sizes);
  const std::lock_guard lock(mutex_);
  std::erase_if(awaited_, [](const auto& awaited) { return awaited.second.marks.expired(); });
  awaited_[comm_id] = {{members.begin(), members.end()}, marks};
  return marks;
}

int ProcessJob::local_members() const {
  int count = 0;
  for (int member = 0; member < bootstrap_->size(); ++member) count += is_local(member) ? 1 : 0;
  return count;
}

int ProcessJob::local_cpus() const {
  std::vector<pid_t> processes;
  for (int member = 0; member < bootstrap_->size(); ++member) {
    const bootstrap::Identity& identity = bootstrap_->roster()[static_cast<std::size_t>(member)];
    if (is_local(member)) processes.push_back(static_cast<pid_t>(identity.pid));
  }
  return topology::usable_cpus(processes);
}

bool ProcessJob::report_failure(std::uint64_t comm_id, Code code, const std::string& message) {
  // The bootstrap server reports a death to all ranks; ranks of this host share the memory in which the failure was
  // claimed.
  return wire_ != nullptr && code != Code::peer_died && bootstrap_->announce(comm_id, code, message).ok();
}

void ProcessJob::ask(std::uint64_t comm_id) {
  if (wire_ != nullptr) (void)bootstrap_->query_progress(comm_id);
}

Result<std::vector<Words>> ProcessJob::exchange_with_survivors(std::uint64_t name, std::span<const int> members,
                                                               const NameOf& name_of,
                                                               const std::function<std::vector<bool>()>& gone,
                                                               const Words& mine, std::chrono::milliseconds limit) {
  const auto among = [&] {
    std::vector<bool> of_job(static_cast<std::size_t>(bootstrap_->size()));
    const std::vector<bool> are_gone = gone();
    for (std::size_t r = 0; r < members.size(); ++r) of_job[static_cast<std::size_t>(members[r])] = !are_gone[r];
    return of_job;
  };
  const std::string_view bytes{reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(std::uint64_t)};
  const bootstrap::Bootstrap::Survivors survivors = bootstrap_->exchange_with_survivors(name, among, bytes, limit);
  const Result<std::vector<std::string>>& all = survivors.blobs;
  if (!all.ok() && all.status().code() == Code::timeout) {
    const int late = survivors.late_rank;
    const auto found = std::find(members.begin(), members.end(), late);
    if (found == members.end()) return all.status();  // the bootstrap server itself does not answer
    return Status(Code::timeout, fmt::format("{}, which is alive, has not within {:.1f} s",
                                             name_of(static_cast<int>(found - members.begin())),
                                             std::chrono::duration<double>(limit).count()));
  }
  if (!all.ok()) {
    return unsupported("the ranks of several hosts that are left meet at rank 0 of the job, which is gone: " +
                       all.status().message());
  }
  std::vector<Words> words;
  for (const int member : members) {
    const std::string& blob = all.value()[static_cast<std::size_t>(member)];
    Words& of_member = words.emplace_back();
    if (blob.empty()) continue;
    of_member.resize(mine.size());
    std::memcpy(of_member.data(), blob.data(), std::min(blob.size(), bytes.size()));
  }
  return words;
}

void ProcessJob::subscribe(std::uint64_t comm_id, std::vector<int> members, OnFailure on_failure,
                           Whereabouts whereabouts) {
  const std::lock_guard lock(mutex_);
  Subscription& subscription =
      subscriptions_[comm_id] = {std::move(members), std::move(on_failure), std::move(whereabouts)};
  for (const bootstrap::Failure& failure : heard_) pass_on(failure, comm_id, subscription);
}

void ProcessJob::unsubscribe(std::uint64_t comm_id) {
  const std::lock_guard lock(mutex_);
  subscriptions_.erase(comm_id);
}

void ProcessJob::heard(const bootstrap::Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (failure.code == Code::peer_died && failure.rank >= 0) {
    (*deaths_)[static_cast<std::size_t>(failure.rank)].store(true, std::memory_order_release);
  }
  heard_.push_back(failure);
  for (const auto& [comm_id, subscription] : subscriptions_) pass_on(failure, comm_id, subscription);
}

void ProcessJob::asked_or_answered(const bootstrap::ProgressReport& report) {
  const std::lock_guard lock(mutex_);
  const auto found = subscriptions_.find(report.comm_id);
  if (found == subscriptions_.end()) return;
  if (report.rank < 0) {
    (void)bootstrap_->report_progress(report, found->second.whereabouts.own());
  } else {
    found->second.whereabouts.of(report.rank, report.word);
  }
}

void ProcessJob::heard(const bootstrap::LeaveNotice& leave_notice) {
  const std::lock_guard lock(mutex_);
  const auto found = awaited_.find(leave_notice.comm_id);
  if (found == awaited_.end()) return;
  const std::shared_ptr<transport::LeaveMarks> marks = found->second.marks.lock();
  const std::vector<int>& members = found->second.members;
  for (std::size_t r = 0; marks != nullptr && r < members.size(); ++r) {
    const bool said = std::count(leave_notice.ranks.begin(), leave_notice.ranks.end(), members[r]) > 0;
    if (said) marks->set(static_cast<int>(r), leave_notice.came != 0);
  }
}

// A death concerns every communicator of that rank, any other failure only the communicator that it names.
void ProcessJob::pass_on(const bootstrap::Failure& failure, std::uint64_t comm_id, const Subscription& to) {
  if (std::count(to.members.begin(), to.members.end(), failure.rank) == 0) return;
  if (failure.code != Code::peer_died && failure.comm_id != comm_id) return;
  to.on_failure(failure.rank, failure.code, failure.message);
}

}  // namespace tutti
