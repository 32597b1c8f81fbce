#include "collectives/device/multi_host/gdr_moves.h"

namespace tutti {

namespace {

// A root with one NIC sends a broadcast this often, one after the other; trees and rings share that work.
constexpr int kBroadcastRanks = 3;

}  // namespace

bool is_gdr(const Call& call, int ranks) {
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::all_to_all:
    case Collective::gather:
    case Collective::scatter: return true;
    case Collective::broadcast: return ranks <= kBroadcastRanks;
    default: return false;
  }
}

std::vector<GdrMove> gdr_moves(const Call& call, int rank, int ranks) {
  const std::size_t block = call.count * size_of(call.type);
  const std::size_t own = static_cast<std::size_t>(rank) * block;
  const bool gives = call.collective != Collective::scatter && call.collective != Collective::broadcast;
  std::vector<GdrMove> moves;
  if (!gives && rank != call.root) return moves;
  for (int peer = 0; peer < ranks; ++peer) {
    if (call.collective == Collective::gather && peer != call.root) continue;
    const bool from_blocks = call.collective == Collective::all_to_all || call.collective == Collective::scatter;
    moves.push_back({peer, from_blocks ? static_cast<std::size_t>(peer) * block : 0, gives ? own : 0, block});
  }
  return moves;
}

}  // namespace tutti
