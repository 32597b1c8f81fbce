#include "collectives/executor/host/executor.h"

namespace tutti::executor {

HostExecutor::HostExecutor(transport::Transport& transport, Waiter& waiter, Health& health, int rank)
    : ranks_(transport.sizes().ranks),
      links_(transport, rank),
      bases_(transport, links_, rank),
      entry_(transport, waiter, links_, bases_, rank),
      net_(transport.net_links() == nullptr
               ? std::nullopt
               : std::make_optional<NetSteps>(transport, waiter, entry_, links_, bases_, rank)),
      walker_(transport, waiter, health, entry_, links_, bases_, net_ ? &*net_ : nullptr, rank) {}

std::uint64_t HostExecutor::enter(const Announcement& announcement, const Buffers& buffers, bool handles) {
  ++calls_;
  entry_.enter(announcement, buffers, handles);
  return entry_.sequence();
}

Status HostExecutor::run(const Prepared& prepared, const Buffers& buffers) {
  const Status status = run_steps(prepared, buffers);
  walker_.end_redirects();
  return status;
}

Status HostExecutor::run_steps(const Prepared& prepared, const Buffers& buffers) {
  if (!net_) {
    TUTTI_TRY(entry_.gate(prepared));
    TUTTI_TRY(walker_.walk(prepared, buffers));
  } else {
    TUTTI_TRY(net_->announce(prepared.peers, prepared.express_data.signalled));
    TUTTI_TRY(entry_.gate(prepared));
    const bool flush = net_->begin(prepared);
    TUTTI_TRY(walker_.walk(prepared, buffers));
    TUTTI_TRY(net_->finish(flush));
  }
  return prepared.scratch.count > 0 && ranks_ > 2 ? entry_.check_scratch_writers() : Status();
}

Status HostExecutor::meet_remote_ranks() {
  for (int peer = 0; peer < ranks_; ++peer) {
    if (links_.is_remote(peer)) TUTTI_TRY(net_->announce(peer));
  }
  TUTTI_TRY(net_->puts().finish());
  for (int peer = 0; peer < ranks_; ++peer) {
    if (links_.is_remote(peer)) TUTTI_TRY(entry_.see_entered_remote(peer, entry_.sequence()));
  }
  return {};
}

Status HostExecutor::move_remote(std::span<const int> peers, std::span<const RemoteMove> moves) {
  TUTTI_TRY(net_->announce(peers, {}));
  for (const int peer : peers) TUTTI_TRY(entry_.see_entered_remote(peer, entry_.sequence()));
  TUTTI_ASSIGN(const std::size_t bytes, net_->move(peers, moves));
  const int lanes = links_.sizes().lanes;
  moved_.bytes += bytes;
  moved_.signals += peers.size() * static_cast<std::size_t>(lanes);
  for (const int peer : peers) {
    for (int lane = 0; lane < lanes; ++lane) TUTTI_TRY(walker_.wait(peer, lane, 0, true).status());
  }
  return net_->puts().finish();
}

Counters HostExecutor::counters() const {
  return {calls_, moved_.bytes + walker_.bytes(), moved_.signals + walker_.signals()};
}

}  // namespace tutti::executor
