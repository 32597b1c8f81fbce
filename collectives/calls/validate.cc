#include "collectives/calls/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace tutti {

namespace {

bool has_blocks(Collective c) {
  return c == Collective::reduce_scatter || c == Collective::all_gather || c == Collective::all_to_all ||
         c == Collective::all_to_allv || c == Collective::gather || c == Collective::scatter;
}

bool overlap(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) {
  return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

/// Memory that a call reads or writes.
struct Piece {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
  bool written = false;
  const std::byte* end() const { return begin + bytes; }
};

/// Whether a piece that is written shares memory with another one. `each(see)`: calls `see` for every piece.
template <class Each>
bool clash(const Each& each) {
  struct Extent {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
  };
  Extent read, written;
  bool in_order = true;  // those that are written
  each([&](const Piece& piece) {
    if (piece.bytes == 0) return;
    Extent& extent = piece.written ? written : read;
    if (piece.written && extent.end != nullptr) in_order = in_order && piece.begin >= extent.end;
    extent.begin = extent.end == nullptr ? piece.begin : std::min(extent.begin, piece.begin);
    extent.end = std::max(extent.end, piece.end());
  });
  // Most often so, and nothing has to be sorted.
  if (in_order && (read.begin >= written.end || written.begin >= read.end)) return false;
  std::vector<Piece> all;
  each([&](const Piece& piece) {
    if (piece.bytes > 0) all.push_back(piece);
  });
  std::sort(all.begin(), all.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  const std::byte* read_until = nullptr;
  const std::byte* written_until = nullptr;
  for (const Piece& piece : all) {
    if (piece.begin < written_until || (piece.written && piece.begin < read_until)) return true;
    const std::byte*& until = piece.written ? written_until : read_until;
    until = std::max(until, piece.end());
  }
  return false;
}

/// Says what is wrong with the counts, offsets and buffers of an all_to_allv; empty: nothing. `most`: the most elements
/// that fit in memory.
std::string wrong_counts(const Call& call, int rank, int ranks, std::size_t most) {
  if (call.send_counts == nullptr || call.send_offsets == nullptr || call.recv_counts == nullptr ||
      call.recv_offsets == nullptr) {
    return "counts or offsets are null; expected one entry per rank in each";
  }
  std::size_t sent = 0;
  std::size_t received = 0;
  bool alike = true;  // both ways
  for (int r = 0; r < ranks; ++r) {
    for (const std::size_t count : {call.send_counts[r], call.recv_counts[r]}) {
      if (count > most) return fmt::format("a count for rank {} is {}; at most {} fit in memory", r, count, most);
    }
    for (const std::size_t offset : {call.send_offsets[r], call.recv_offsets[r]}) {
      if (offset > most) return fmt::format("an offset for rank {} is {}; at most {} fit in memory", r, offset, most);
    }
    sent += call.send_counts[r];
    received += call.recv_counts[r];
    alike = alike && call.send_counts[r] == call.recv_counts[r] && call.send_offsets[r] == call.recv_offsets[r];
  }
  if (call.send_counts[rank] != call.recv_counts[rank]) {
    return fmt::format("it sends {} elements to itself and expects {}", call.send_counts[rank], call.recv_counts[rank]);
  }
  if (sent > 0 && call.send == nullptr) return fmt::format("send is null; expected {} elements", sent);
  if (received > 0 && call.recv == nullptr) return fmt::format("recv is null; expected room for {} elements", received);
  if (sent > 0 && received > 0 && call.send == call.recv && !alike) {
    return "send is recv; expected the same counts and offsets both ways then";
  }
  const bool in_place = call.send == call.recv;
  const std::size_t size = size_of(call.type);
  const bool wrong = clash([&](const auto& see) {
    for (int r = 0; r < ranks; ++r) {
      const auto* send = static_cast<const std::byte*>(call.send) + call.send_offsets[r] * size;
      const auto* recv = static_cast<const std::byte*>(call.recv) + call.recv_offsets[r] * size;
      if (!in_place) see(Piece{send, call.send_counts[r] * size, false});
      see(Piece{recv, call.recv_counts[r] * size, true});
    }
  });
  return wrong ? "what it receives shares memory with other data of the call; expected pieces apart, or recv to be send"
               : "";
}

/// Says what is wrong with buffers that share memory; empty: nothing. Each collective has its own in-place pointer.
std::string wrong_overlap(const Call& call, int rank, int ranks) {
  if (!reads_send(call, rank) || !writes_recv(call, rank)) return {};
  const std::size_t block = call.count * size_of(call.type);
  const std::size_t all = block * static_cast<std::size_t>(ranks);
  const std::size_t own = block * static_cast<std::size_t>(rank);
  const auto* send = static_cast<const std::byte*>(call.send);
  const auto* recv = static_cast<const std::byte*>(call.recv);
  std::size_t sent = block;
  std::size_t received = block;
  const std::byte* in_place = send;  // where recv may be
  const char* expected = "recv to be send";
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::gather:
      received = all;
      in_place = send - own;
      expected = "send to be recv + rank x count";
      break;
    case Collective::reduce_scatter:
    case Collective::scatter:
      sent = all;
      in_place = send + own;
      expected = "recv to be send + rank x count";
      break;
    case Collective::all_to_all: sent = received = all; break;
    default: break;
  }
  if (recv == in_place || !overlap(send, sent, recv, received)) return {};
  return fmt::format("send and recv overlap; expected {}, or two buffers", expected);
}

}  // namespace

bool reads_send(const Call& call, int rank) {
  return (call.collective != Collective::broadcast && call.collective != Collective::scatter) || rank == call.root;
}

bool writes_recv(const Call& call, int rank) {
  return (call.collective != Collective::reduce && call.collective != Collective::gather) || rank == call.root;
}

std::size_t elements_of(const Call& call, int ranks) {
  return has_blocks(call.collective) ? call.count * static_cast<std::size_t>(ranks) : call.count;
}

Result<std::chrono::milliseconds> checked_timeout(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kForEver = std::chrono::hours(24 * 365 * 100);  // its nanoseconds fit 63 bits
  if (timeout.count() > 0) return std::min(timeout, kForEver);
  return invalid_argument(fmt::format("timeout is {} ms; expected more than 0", timeout.count()));
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
  if (reduces(call.collective) && !applies(call.op, call.type)) {
    return bad(fmt::format("{} of {}; bits are combined of integers only", name_of(call.op), name_of(call.type)));
  }
  if (has_root(call.collective) && (call.root < 0 || call.root >= ranks)) {
    return bad(fmt::format("root is {}; expected 0 to {}", call.root, ranks - 1));
  }
  const std::size_t most =
      std::numeric_limits<std::size_t>::max() / 2 / size_of(call.type) / static_cast<std::size_t>(ranks);
  if (call.collective == Collective::all_to_allv) {
    const std::string wrong = wrong_counts(call, rank, ranks, most);
    return wrong.empty() ? Status() : bad(wrong);
  }
  if (call.count > most) return bad(fmt::format("count is {}; at most {} elements fit in memory", call.count, most));
  if (call.count == 0) return {};
  if (call.send == nullptr && reads_send(call, rank))
    return bad(fmt::format("send is null; expected {} elements", call.count));
  if (call.recv == nullptr && writes_recv(call, rank)) {
    return bad(fmt::format("recv is null; expected room for {} elements", call.count));
  }
  const std::string wrong = wrong_overlap(call, rank, ranks);
  return wrong.empty() ? Status() : bad(wrong);
}

Status validate(std::span<const Transfer> transfers, int ranks, const std::string& who) {
  for (const Transfer& t : transfers) {
    const char* name = t.sending ? "send" : "recv";
    const bool any = !t.sending && t.peer == kAnySource;
    if (!any && (t.peer < 0 || t.peer >= ranks)) {
      return invalid_argument(fmt::format("{} called {}: peer is {}; expected 0 to {}{}", who, name, t.peer, ranks - 1,
                                          t.sending ? "" : ", or any source"));
    }
    if (t.tag < 0) {
      return invalid_argument(fmt::format("{} called {}: tag is {}; expected 0 or more", who, name, t.tag));
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

Status check_apart(std::span<const Transfer> transfers, int rank, bool on_device, const std::string& who) {
  const auto is_in_place = [&](const Transfer& sent) {
    return (on_device || sent.peer == rank) && std::any_of(transfers.begin(), transfers.end(), [&](const Transfer& t) {
             return !t.sending && t.buffer == sent.buffer &&
                    t.count * size_of(t.type) == sent.count * size_of(sent.type);
           });
  };
  const bool wrong = clash([&](const auto& see) {
    for (const Transfer& t : transfers) {
      if (t.sending && is_in_place(t)) continue;
      see(Piece{static_cast<const std::byte*>(t.buffer), t.count * size_of(t.type), !t.sending});
    }
  });
  if (!wrong) return {};
  return invalid_argument(fmt::format(
      "{} called recv: its buffer shares memory with another message of the group; expected buffers apart", who));
}

}  // namespace tutti
