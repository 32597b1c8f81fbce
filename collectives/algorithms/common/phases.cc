#include "collectives/algorithms/common/phases.h"

#include <cstddef>
#include <map>
#include <numeric>

namespace tutti::algorithms {

using plan::Builder;
using plan::Plan;
using plan::Range;
using plan::RankBuilder;

Plan single_rank_plan(const PlanRequest& request, const std::string& algorithm) {
  Builder b(request.collective, algorithm, 1, 1);
  if (request.collective != Collective::barrier) {
    RankBuilder me = b.rank(0);
    me.copy(me.output(0), me.input(0));
  }
  return b.finish();
}

std::vector<std::vector<int>> ranks_by_host(const PlanRequest& request) {
  std::vector<std::vector<int>> hosts;
  std::map<int, std::size_t> index;
  for (int r = 0; r < request.ranks; ++r) {
    const int host = request.host_of_rank.empty() ? 0 : request.host_of_rank[r];
    const auto [at, is_new] = index.try_emplace(host, hosts.size());
    if (is_new) hosts.emplace_back();
    hosts[at->second].push_back(r);
  }
  return hosts;
}

std::vector<int> others_from(int r, int n) {
  std::vector<int> others;
  others.reserve(n - 1);
  for (int i = 1; i < n; ++i) others.push_back((r + i) % n);
  return others;
}

void open_all(RankBuilder& me, int n) {
  for (const int peer : others_from(me.index(), n)) me.open(peer);
}

void meet_all(RankBuilder& me, int n) {
  const std::vector<int> others = others_from(me.index(), n);
  for (const int peer : others) me.signal(peer);
  for (const int peer : others) me.wait(peer);
}

std::vector<Range> inputs_in_rank_order(const RankBuilder& me, int n, int piece) {
  std::vector<Range> inputs;
  inputs.reserve(n);
  for (int peer = 0; peer < n; ++peer) inputs.push_back(me.peer_input(peer, piece));
  return inputs;
}

std::vector<Range> take_in_rank_order(RankBuilder& me, int n, int piece) {
  std::vector<Range> contributions;
  contributions.reserve(n);
  for (int peer = 0; peer < n; ++peer) {
    contributions.push_back(peer == me.index() ? me.input(piece) : me.take(peer));
  }
  return contributions;
}

Team all_ranks(int r, int n) {
  Team team{std::vector<int>(n), r, 0};
  std::iota(team.members.begin(), team.members.end(), 0);
  return team;
}

void ring_reduce_scatter(RankBuilder& me, const Team& team, bool from_output) {
  const auto own = [&](int offset) {
    const int piece = team.piece(offset);
    return from_output ? me.output(piece) : me.input(piece);
  };
  // The sum of a piece starts at the member after its owner and collects one contribution at each hop.
  me.send(team.next(), own(team.me - 1));
  for (int hop = 2; hop < team.size(); ++hop) me.recv_reduce_send(team.prev(), own(team.me - hop), team.next());
  me.recv_reduce(team.prev(), me.output(team.piece(team.me)), own(team.me), /*last=*/true);
}

void ring_all_gather(RankBuilder& me, const Team& team) {
  const int n = team.size();
  me.send(team.next(), me.output(team.piece(team.me)));
  for (int hop = 1; hop < n - 1; ++hop) {
    me.recv_copy_send(team.prev(), me.output(team.piece(team.me - hop)), team.next());
  }
  me.recv(team.prev(), me.output(team.piece(team.me + 1)));
}

void reduce_up(RankBuilder& me, const TreeNode& node, int piece) {
  std::vector<Range> contributions;
  for (const int child : node.children) contributions.push_back(me.take(child));
  const Range sum = node.children.empty() ? me.input(piece) : contributions.front();
  contributions.push_back(me.input(piece));
  if (node.parent < 0) {
    me.reduce_last({me.output(piece)}, contributions);
  } else {
    if (!node.children.empty()) me.reduce({sum}, contributions);
    me.send(node.parent, sum);
  }
  for (const int child : node.children) me.release(child);
}

void send_down(RankBuilder& me, const TreeNode& node, int piece) {
  if (node.parent >= 0) me.recv(node.parent, me.output(piece));
  for (const int child : node.children) me.send(child, me.output(piece));
}

}  // namespace tutti::algorithms
