// A rank's window: its board, the signal cells, the slots, and where each of them lies.
// Threads: signal cells and express cells are written by their sender, published slots by their owner.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/board.h"

namespace tutti::transport {

/// One direction of one link. Counter and tag share a cache line, so that a waiter that sees the count has the tag too.
/// tag mixes the call's fingerprint and number: a waiter whose own tag differs looks at the sender's record.
struct alignas(kCacheLine) SignalCell {
  std::atomic<std::uint64_t> count{0};
  std::atomic<std::uint64_t> tag{0};
};

/// A signal that brings its data along, for plans in which a rank sends each peer a few bytes, once in a call. The
/// first line has the signal and up to 48 bytes, where a signal and then a slot would move two lines, one after the
/// other. Several per sender, for as many calls: so a rank that only gives (a broadcast's root) can run ahead of the
/// others, and ranks that share a core change places once in that many calls.
///
/// From a remote sender the cell holds something else (executor/net_record.h): the first line of its record of the
/// call, and the data behind it, so that one message carries both.
struct alignas(kCacheLine) ExpressCell {
  static constexpr std::size_t kHeader = 16;
  std::atomic<std::uint64_t> tag{0};  // written last; that of the call it belongs to

  /// WindowSizes::express_bytes() of them; they reach beyond this struct.
  std::byte* payload() { return reinterpret_cast<std::byte*>(this) + kHeader; }
};

/// The memory of one rank, as it lies in this rank's address space.
///
/// The window of a remote rank is a shadow: only what this rank itself may write is used, and NetLinks sends it. The
/// board is a mirror in this rank's memory, where the remote rank puts the records of those calls in which the two are
/// neighbours.
struct Window {
  Board* board = nullptr;
  SignalCell* signals = nullptr;   // index with signal_index()
  std::byte* express = nullptr;    // ExpressCells, at express_offset()
  std::byte* scratch = nullptr;    // two halves of sizes().scratch_half
  std::byte* published = nullptr;  // two halves of sizes().published_half
  std::byte* mailboxes = nullptr;  // ranks x sizes().mailbox
};

struct WindowSizes {
  int ranks = 1;
  int lanes = 1;
  std::size_t scratch_half = 0;
  std::size_t published_half = 0;
  std::size_t mailbox = 0;
  std::size_t express_lines = 0;  // of an express cell, beside a remote rank's record; 0: the usual
  bool has_remote = false;        // some ranks are on other hosts

  // Express cells: of how many calls, and how large. Usually one takes 512 bytes of a message, or what fits into a line
  // where many ranks would make that too much.
  std::uint64_t express_calls() const { return ranks <= 8 ? 64 : ranks <= 64 ? 32 : 8; }
  std::size_t express_stride() const {
    return ((express_lines != 0 ? express_lines : ranks <= 16 ? 9 : 1) + (has_remote ? 1 : 0)) * kCacheLine;
  }
  std::size_t express_bytes() const { return express_stride() - (has_remote ? kCacheLine : ExpressCell::kHeader); }
  std::size_t express_offset(int sender, std::uint64_t call) const {
    return (static_cast<std::size_t>(sender) * express_calls() + call % express_calls()) * express_stride();
  }
  /// `cells`: those of a window.
  ExpressCell& express_cell(std::byte* cells, int sender, std::uint64_t call) const {
    return *reinterpret_cast<ExpressCell*>(cells + express_offset(sender, call));
  }

  std::size_t signal_cells() const { return static_cast<std::size_t>(ranks) * lanes * 2; }
  int signal_index(int sender, int lane, int channel) const { return (sender * lanes + lane) * 2 + channel; }
  // Where each part of a window begins, and its bytes.
  std::size_t signals_at() const { return sizeof(Board); }
  std::size_t express_at() const { return signals_at() + signal_cells() * sizeof(SignalCell); }
  std::size_t scratch_at() const { return express_at() + express_offset(ranks, 0); }
  std::size_t published_at() const { return scratch_at() + 2 * scratch_half; }
  std::size_t mailboxes_at() const { return published_at() + 2 * published_half; }
  std::size_t bytes() const { return mailboxes_at() + static_cast<std::size_t>(ranks) * mailbox; }
};

/// Returns the window whose memory begins at `base`.
inline Window window_at(std::byte* base, const WindowSizes& sizes) {
  Window window;
  window.board = reinterpret_cast<Board*>(base);
  window.signals = reinterpret_cast<SignalCell*>(base + sizes.signals_at());
  window.express = base + sizes.express_at();
  window.scratch = base + sizes.scratch_at();
  window.published = base + sizes.published_at();
  window.mailboxes = base + sizes.mailboxes_at();
  return window;
}

}  // namespace tutti::transport
