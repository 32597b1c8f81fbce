#include "collectives/validate.h"

#include <fmt/format.h>

#include <limits>

namespace tutti {

namespace {

bool has_blocks(Collective c) {
  return c == Collective::reduce_scatter || c == Collective::all_gather || c == Collective::all_to_all ||
         c == Collective::gather || c == Collective::scatter;
}

bool reads_send(const Call& call, int rank) {
  return (call.collective != Collective::broadcast && call.collective != Collective::scatter) || rank == call.root;
}

bool writes_recv(const Call& call, int rank) {
  return (call.collective != Collective::reduce && call.collective != Collective::gather) || rank == call.root;
}

}  // namespace

std::size_t elements_of(const Call& call, int ranks) {
  return has_blocks(call.collective) ? call.count * static_cast<std::size_t>(ranks) : call.count;
}

Status validate(const Call& call, int rank, int ranks, const std::string& who) {
  if (call.collective == Collective::barrier) return {};
  const char* name = name_of(call.collective);
  const auto bad = [&](const std::string& what) {
    return invalid_argument(fmt::format("{} called {}: {}", who, name, what));
  };
  if (static_cast<int>(call.type) >= kDataTypes)
    return bad(fmt::format("type {} is none", static_cast<int>(call.type)));
  if (static_cast<int>(call.op) >= kReduceOps) return bad(fmt::format("op {} is none", static_cast<int>(call.op)));
  if (has_root(call.collective) && (call.root < 0 || call.root >= ranks)) {
    return bad(fmt::format("root is {}; expected 0 to {}", call.root, ranks - 1));
  }
  const std::size_t most =
      std::numeric_limits<std::size_t>::max() / 2 / size_of(call.type) / static_cast<std::size_t>(ranks);
  if (call.collective == Collective::all_to_allv) {
    if (call.send_counts == nullptr || call.send_offsets == nullptr || call.recv_counts == nullptr ||
        call.recv_offsets == nullptr) {
      return bad("counts or offsets are null; expected one entry per rank in each");
    }
    std::size_t sent = 0;
    std::size_t received = 0;
    for (int r = 0; r < ranks; ++r) {
      for (const std::size_t count : {call.send_counts[r], call.recv_counts[r]}) {
        if (count > most)
          return bad(fmt::format("a count for rank {} is {}; at most {} fit in memory", r, count, most));
      }
      sent += call.send_counts[r];
      received += call.recv_counts[r];
    }
    if (sent > 0 && call.send == nullptr) return bad(fmt::format("send is null; expected {} elements", sent));
    if (received > 0 && call.recv == nullptr)
      return bad(fmt::format("recv is null; expected room for {} elements", received));
    return {};
  }
  if (call.count > most) return bad(fmt::format("count is {}; at most {} elements fit in memory", call.count, most));
  if (call.count == 0) return {};
  if (call.send == nullptr && reads_send(call, rank))
    return bad(fmt::format("send is null; expected {} elements", call.count));
  if (call.recv == nullptr && writes_recv(call, rank)) {
    return bad(fmt::format("recv is null; expected room for {} elements", call.count));
  }
  return {};
}

Status validate(std::span<const Transfer> transfers, int ranks, const std::string& who) {
  for (const Transfer& t : transfers) {
    const char* name = t.sending ? "send" : "recv";
    if (t.peer < 0 || t.peer >= ranks) {
      return invalid_argument(fmt::format("{} called {}: peer is {}; expected 0 to {}", who, name, t.peer, ranks - 1));
    }
    if (static_cast<int>(t.type) >= kDataTypes) {
      return invalid_argument(fmt::format("{} called {}: type {} is none", who, name, static_cast<int>(t.type)));
    }
    const std::size_t most = std::numeric_limits<std::size_t>::max() / 2 / size_of(t.type);
    if (t.count > most) {
      return invalid_argument(
          fmt::format("{} called {}: count is {}; at most {} elements fit in memory", who, name, t.count, most));
    }
    if (t.count > 0 && t.buffer == nullptr) {
      return invalid_argument(fmt::format("{} called {}: buffer is null; expected {} elements", who, name, t.count));
    }
  }
  return {};
}

}  // namespace tutti
