#include "collectives/shm_fabric.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "topology/discover.h"

namespace tutti {

using transport::Arena;

Result<std::shared_ptr<ShmFabric>> ShmFabric::create(std::unique_ptr<bootstrap::Bootstrap> bootstrap,
                                                     std::chrono::milliseconds deadline) {
  TUTTI_ASSIGN(Arena * arena, Arena::process());
  Result<transport::Acquaintance> met = transport::meet_processes(*bootstrap, *arena, deadline);
  if (!met.ok()) {
    // Without a goodbye the others would take this rank's failure for its death.
    (void)bootstrap->leave();
    return met.status();
  }
  transport::Acquaintance acquaintance = met.take();
  log::debug("{} ranks share memory; cross-memory access: {}", bootstrap->size(), acquaintance.cross_memory);
  return std::shared_ptr<ShmFabric>(new ShmFabric(std::move(bootstrap), *arena, std::move(acquaintance)));
}

ShmFabric::ShmFabric(std::unique_ptr<bootstrap::Bootstrap> bootstrap, Arena& arena,
                     transport::Acquaintance acquaintance)
    : bootstrap_(std::move(bootstrap)), arena_(arena), acquaintance_(std::move(acquaintance)) {
  bootstrap_->watch([this](const bootstrap::Failure& failure) { heard(failure); });
}

ShmFabric::~ShmFabric() { (void)bootstrap_->leave(); }

Exchange ShmFabric::bootstrap_exchange() {
  return [this](std::uint64_t mine) -> Result<std::vector<std::uint64_t>> {
    TUTTI_ASSIGN(const std::vector<std::string> blobs,
                 bootstrap_->all_gather({reinterpret_cast<const char*>(&mine), sizeof(mine)}));
    std::vector<std::uint64_t> words;
    for (const std::string& blob : blobs) {
      std::uint64_t word = 0;
      std::memcpy(&word, blob.data(), std::min(blob.size(), sizeof(word)));
      words.push_back(word);
    }
    return words;
  };
}

std::string ShmFabric::describe(int member) const {
  const bootstrap::Identity& identity = bootstrap_->roster()[static_cast<std::size_t>(member)];
  return fmt::format("host {}, pid {}", identity.host, identity.pid);
}

Result<std::unique_ptr<transport::Transport>> ShmFabric::connect(std::span<const int> members, int rank,
                                                                 const transport::WindowSizes& sizes,
                                                                 const Exchange& exchange) {
  Status made;
  const std::size_t own = transport::make_window_in(arena_, sizes, made);
  const Result<std::vector<std::uint64_t>> offsets = exchange(made.ok() ? own : kNothing);
  if (!made.ok()) return made;
  Status failure = offsets.status();
  std::vector<std::shared_ptr<const transport::ShmProcess>> processes;
  for (std::size_t r = 0; failure.ok() && r < members.size(); ++r) {
    if (offsets.value()[r] == kNothing) {
      failure = {Code::memory_limit,
                 fmt::format("rank {} could not make its {} bytes of communication buffers", r, sizes.bytes())};
    }
    processes.push_back(acquaintance_.processes[static_cast<std::size_t>(members[r])]);
  }
  if (!failure.ok()) {
    Arena::deallocate(arena_.base() + own);  // no peer has touched it
    return failure;
  }
  return std::unique_ptr<transport::Transport>(std::make_unique<transport::ShmTransport>(
      rank, sizes, arena_, std::move(processes),
      std::vector<std::size_t>(offsets.value().begin(), offsets.value().end()), acquaintance_.cross_memory));
}

std::vector<int> ShmFabric::host_of_member() const {
  return std::vector<int>(static_cast<std::size_t>(bootstrap_->size()), 0);
}

int ShmFabric::local_cpus() const {
  std::vector<pid_t> processes;
  for (const bootstrap::Identity& identity : bootstrap_->roster()) {
    processes.push_back(static_cast<pid_t>(identity.pid));
  }
  return topology::usable_cpus(processes);
}

void ShmFabric::subscribe(std::uint64_t scope, std::vector<int> members, OnFailure on_failure) {
  const std::lock_guard lock(mutex_);
  Subscription& subscription = subscriptions_[scope] = {std::move(members), std::move(on_failure)};
  for (const bootstrap::Failure& failure : heard_) pass_on(failure, subscription);
}

void ShmFabric::unsubscribe(std::uint64_t scope) {
  const std::lock_guard lock(mutex_);
  subscriptions_.erase(scope);
}

void ShmFabric::heard(const bootstrap::Failure& failure) {
  const std::lock_guard lock(mutex_);
  heard_.push_back(failure);
  for (const auto& [scope, subscription] : subscriptions_) pass_on(failure, subscription);
}

void ShmFabric::pass_on(const bootstrap::Failure& failure, const Subscription& to) {
  if (std::count(to.members.begin(), to.members.end(), failure.rank) == 0) return;
  to.on_failure(failure.rank, failure.code, failure.message);
}

}  // namespace tutti
