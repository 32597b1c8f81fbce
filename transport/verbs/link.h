// A reliable connection (RC queue pair) to one peer on one rail: RDMA writes into memory that the peer has exposed.
//
// Requests are held back until send(), which gives them to the device in one list: one doorbell for what belongs
// together. Small ones carry their data along (inline). These ask for a completion: the last request of a write that is
// read from where it lies, since its caller waits for the source; one in a quarter of the send queue; and what is read
// from bounce buffers, once half of those are in use.
//
// No function waits. What finds the send queue or the bounce buffers full stays in a backlog, in its order, and
// advance() moves it on: the caller waits where it sees deadlines and aborts.
//
// Threads: the owner serialises.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/verbs/address.h"
#include "transport/verbs/flow.h"
#include "transport/verbs/rail.h"

namespace tutti::transport::verbs {

/// Memory of the peer.
struct RemoteBuffer {
  std::uint64_t address = 0;
  std::uint32_t key = 0;
};

class Link {
 public:
  static constexpr std::uint32_t kMostHeld = 16;
  static constexpr std::size_t kMostInline = 512;

  /// Memory that is registered with the rail, in chunks that all links share.
  struct BounceBuffers {
    ChunkPool& pool;
    std::byte* memory;
    std::uint32_t key;
    std::size_t chunk_bytes;
  };

  /// `place`: its number among the wire's links. `who`: the peer, for errors.
  static Result<std::unique_ptr<Link>> make(Rail& rail, std::uint64_t place, std::string who,
                                            const BounceBuffers& bounce);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  std::uint64_t place() const { return place_; }
  std::uint32_t queue_pair() const { return pair_->qp_num; }
  /// `pair`: the peer's queue pair for this process, on its rail `peer`. Errors: unsupported (the ends do not go
  /// together, or the peer's address is not reached), system.
  Status connect(const RailEnd& peer, std::uint32_t pair);
  bool connected() const { return connected_; }

  /// Returns how many bytes a request may carry along.
  std::size_t inline_bytes() const { return inline_bytes_; }

  /// `bytes` at `from` for the peer's memory at `to`.
  struct Write {
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
    RemoteBuffer to;
    std::optional<std::uint32_t> key;  // of the registered memory that they lie in; none: they are copied, into bounce
                                       // buffers unless they go along
  };
  /// Holds it back, or takes it into the backlog. Returns 0 if its source is free, else what completed() takes.
  /// REQUIRES: not broken().
  std::uint64_t write(const Write& write);
  /// Copies what is to be copied of `source`, which is free then. Returns false if it is not to be copied.
  bool copy_out(std::uint64_t source);
  bool backlogged() const { return !backlog_.empty(); }
  /// Returns true if there is something for advance() to do, now or later.
  bool waits() const { return !backlog_.empty() || (!broken_.ok() && !bounced_.empty()); }
  /// Sends the part of the backlog that there is room for. A broken link gives its bounce buffers back once the device
  /// does not read them any more. Returns true if anything moved.
  bool advance();
  /// Sends a write of no bytes that asks for a completion, to find out whether the peer is there. Returns false if
  /// something else is to be sent first, or the queue is full of requests that ask for one.
  bool probe();

  /// Gives what is held to the device.
  void send();
  /// Takes a completion of this queue pair.
  void take(const ibv_wc& completion);

  /// Returns true if `source`, which write() gave, is not read any more.
  bool completed(std::uint64_t source) const {
    const std::uint64_t last = source & ~kIsCopied;
    if ((source & kIsCopied) != 0) return last <= window_.posted() || !broken_.ok();
    return last <= window_.completed() || (!broken_.ok() && last > sent_) || finished();
  }
  /// Returns true if nothing is under way, as far as completions have shown. A probe makes the device give one.
  bool idle() const { return (window_.idle() && backlog_.empty()) || finished(); }
  const Status& broken() const { return broken_; }
  /// Breaks the link. What is under way comes back as completions.
  void break_off(Code code, const std::string& why);

 private:
  struct Held {
    ibv_send_wr request;
    ibv_sge piece;
    std::byte data[kMostInline];
  };

  struct Waiting {
    Write rest;
    std::uint64_t last = 0;         // the number of its last request
    std::vector<std::byte> copied;  // what `rest` points to; empty: it is the caller's
  };
  // Marks the last request of a write that is copied: its source is free when that one is held.
  static constexpr std::uint64_t kIsCopied = std::uint64_t{1} << 43;
  static constexpr std::size_t kPiece = 1 << 20;        // more is several requests
  static constexpr std::size_t kSentAtOnce = 16 << 10;  // so many held bytes do not wait for more

  Link(Rail& rail, std::uint64_t place, std::string who, const BounceBuffers& bounce);
  Status create();
  /// Returns true if it is broken and all that the device had has come back. Requests that the peer had acknowledged
  /// and that asked for no completion do not, so the device is given a second.
  bool finished() const {
    return !broken_.ok() && (window_.completed() >= sent_ || now_ns() - broken_at_ns_ > 1'000'000'000);
  }
  /// Makes room for one more request, by sending those that are held. Returns false if there is none.
  bool make_room();
  /// Returns how many bytes a request of it may have.
  std::size_t most_of(const Write& write) const { return write.key ? kPiece : bounce_.chunk_bytes; }
  /// Holds as much as there is room for. Returns true if that is all of it.
  bool hold(Write& write);
  /// REQUIRES: make_room().
  Held& next(bool asks, const RemoteBuffer& to);

  Rail& rail_;
  const std::uint64_t place_;
  const std::string who_;
  const BounceBuffers bounce_;
  ibv_qp* pair_ = nullptr;
  std::size_t inline_bytes_ = 0;
  bool connected_ = false;
  SendWindow window_;  // of requests; counts what is held as posted
  std::deque<Waiting> backlog_;
  BounceQueue bounced_;
  std::array<Held, kMostHeld> held_list_;
  std::uint32_t held_ = 0;
  std::size_t held_bytes_ = 0;
  std::uint64_t sent_ = 0;  // number of the last request that the device has
  Status broken_;
  std::int64_t broken_at_ns_ = 0;
};

}  // namespace tutti::transport::verbs
