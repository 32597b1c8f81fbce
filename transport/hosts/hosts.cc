#include "transport/hosts/hosts.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

#include "base/clock.h"

namespace tutti::transport {

namespace {

constexpr std::int64_t kPartNs = 1'000'000'000;  // for remote ranks that end their communicator a little later

WireLinks::Setup links_of(const HostsTransport::Setup& setup) {
  std::vector<bool> remote;
  for (int r = 0; r < setup.sizes.ranks; ++r) remote.push_back(setup.local->window(r).board == nullptr);
  return {setup.rank, setup.sizes, setup.wire, setup.world_ranks, std::move(remote), setup.own, setup.server_alive};
}

}  // namespace

void LeaveMarks::set(int rank, bool came) {
  const std::lock_guard lock(mutex_);
  if (own_ == nullptr) return;
  Board& mirror = mirror_of(own_, sizes_, rank);
  if (came) mirror.pulse.has_left.store(1, std::memory_order_release);
  for (int lane = 0; lane < sizes_.lanes; ++lane) last_in(mirror, lane).store(1, std::memory_order_release);
}

void LeaveMarks::end() {
  const std::lock_guard lock(mutex_);
  own_ = nullptr;
}

Result<std::unique_ptr<HostsTransport>> HostsTransport::connect(Setup setup) {
  std::unique_ptr<HostsTransport> transport(new HostsTransport(std::move(setup)));
  TUTTI_TRY(transport->attach());
  transport->connected_ = true;
  return transport;
}

HostsTransport::HostsTransport(Setup setup)
    : setup_(std::move(setup)),
      local_(setup_.local.get()),
      capabilities_(local_->capabilities()),
      links_(links_of(setup_)),
      windows_(setup_.world_ranks.size()) {
  capabilities_.load_store = false;
}

Status HostsTransport::attach() {
  for (std::size_t r = 0; r < windows_.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (links_.is_remote(rank)) {
      TUTTI_ASSIGN(windows_[r], links_.attach(rank, setup_.keys[r]));
    } else {
      windows_[r] = local_->window(rank);
    }
  }
  return {};
}

HostsTransport::~HostsTransport() {
  Wire& wire = links_.wire();
  if (connected_ && shared_board(*this).failure_code.load(std::memory_order_acquire) != 0) wire.give_up();
  const Gone all_gone = gone();
  std::vector<int> by_server;  // ranks that get their notice from the server
  std::vector<int> world_ranks;
  for (int r = 0; r < setup_.sizes.ranks; ++r) {
    if (!links_.is_remote(r) || (links_.has_written_to(r) && links_.broken(r).ok())) continue;
    by_server.push_back(r);
    world_ranks.push_back(links_.world_rank(r));
  }
  if (!by_server.empty()) (void)setup_.send_leave_notice(world_ranks, connected_);
  const auto passed_on = [&] {
    Board& own_mirror = mirror_of(setup_.own, setup_.sizes, setup_.rank);
    return by_server.empty() || last_in(own_mirror, 0).load(std::memory_order_acquire) != 0;
  };
  bool notified = false;
  for (const std::int64_t since = now_ns();;) {
    const bool server_alive =
        setup_.server_alive();  // asked first: what the server has passed on is seen before its end
    const bool over = !connected_ || now_ns() - since > kPartNs;
    if (!server_alive && !passed_on()) by_server.clear();
    // Notices go by the wire once the server has passed on the others: rank 0, which runs the server, leaves when it
    // has received all.
    if (!notified && (passed_on() || over)) {
      notified = true;
      const Pulse* pulse = connected_ ? &local_->window(setup_.rank).board->pulse : nullptr;
      for (int r = 0; r < setup_.sizes.ranks; ++r) {
        const bool by_wire = links_.is_remote(r) && !std::binary_search(by_server.begin(), by_server.end(), r);
        if (by_wire) links_.send_leave_notice(r, pulse);
      }
    }
    if (over || (notified && all_gone())) break;
    if (!wire.progress()) wire.sleep(std::chrono::milliseconds(1));
  }
  setup_.keep(all_gone);
}

HostsTransport::Gone HostsTransport::gone() const {
  struct Remote {
    int world_rank;
    Board* mirror;
    std::shared_ptr<std::byte> shadow;
  };
  std::vector<Remote> all;
  // Also where connect() has failed: the remote ranks may have got further, and write.
  for (int r = 0; r < setup_.sizes.ranks; ++r) {
    if (!links_.is_remote(r)) continue;
    all.push_back({links_.world_rank(r), &mirror_of(setup_.own, setup_.sizes, r), links_.shadow(r)});
  }
  // A wire that has ended with its job's last communicator moves nothing any more.
  return [all = std::move(all), weak = std::weak_ptr<Wire>(setup_.wire), alive = setup_.alive, own = setup_.own,
          lanes = setup_.sizes.lanes, remote_world_ranks = links_.remote_world_ranks(), marks = setup_.marks] {
    const std::shared_ptr<Wire> wire = weak.lock();
    if (wire == nullptr) {
      marks->end();
      return true;
    }
    (void)wire->progress();
    for (const Remote& remote : all) {
      bool has_left = true;
      for (int lane = 0; lane < lanes; ++lane) {
        has_left = has_left && last_in(*remote.mirror, lane).load(std::memory_order_acquire) != 0;
      }
      if (!has_left && wire->broken(remote.world_rank).ok() && alive(remote.world_rank)) return false;
    }
    if (!wire->idle(remote_world_ranks)) return false;
    wire->unexpose(own);
    marks->end();
    return true;
  };
}

std::size_t HostsTransport::memory() const {
  return exposed_bytes(setup_.sizes) + links_.remote_world_ranks().size() * shadow_bytes(setup_.sizes);
}

bool HostsTransport::alive(int rank) const {
  return links_.is_remote(rank) ? setup_.alive(links_.world_rank(rank)) : local_->alive(rank);
}

}  // namespace tutti::transport
