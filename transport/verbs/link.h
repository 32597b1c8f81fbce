// A reliable connection (RC queue pair) to one peer on one rail: RDMA writes into memory that the peer has exposed.
//
// Writes are held back until send(), which gives them to the device in one list: one doorbell for what belongs
// together. Small ones carry their data along (inline). Only writes of more than that ask for a completion each, since
// somebody waits for their source; of inline ones, one in a quarter of the send queue does.
//
// Threads: the owner serialises.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "transport/verbs/address.h"
#include "transport/verbs/flow.h"
#include "transport/verbs/rail.h"

namespace tutti::transport::verbs {

/// Memory of the peer.
struct Remote {
  std::uint64_t address = 0;
  std::uint32_t key = 0;
};

class Link {
 public:
  static constexpr std::uint32_t kMostHeld = 16;
  static constexpr std::size_t kMostInline = 512;

  /// Memory that is registered with the rail, in chunks that all links share.
  struct Staging {
    ChunkPool& pool;
    std::byte* memory;
    std::uint32_t key;
    std::size_t chunk_bytes;
  };

  /// `place`: its number among the wire's links. `who`: the peer, for errors.
  static Result<std::unique_ptr<Link>> make(Rail& rail, std::uint64_t place, std::string who, const Staging& staging);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  std::uint64_t place() const { return place_; }
  std::uint32_t queue_pair() const { return pair_->qp_num; }
  /// `pair`: the peer's queue pair for this process, on its rail `peer`. Errors: unsupported (the ends do not go
  /// together, or the peer's address is not reached), system.
  Status connect(const RailEnd& peer, std::uint32_t pair);
  bool connected() const { return connected_; }

  /// Bytes that a write may carry along.
  std::size_t inline_bytes() const { return inline_bytes_; }
  /// Room for one more write. Else: send(), and wait for completions.
  bool can_hold() const { return held_ < kMostHeld && window_.room() > 0; }
  bool holds() const { return held_ > 0; }
  std::size_t held_bytes() const { return held_bytes_; }

  // A write that is held back; its number. REQUIRES: can_hold(), not broken().
  /// `from` is read at once. REQUIRES: bytes <= inline_bytes().
  std::uint64_t hold_inline(const void* from, std::size_t bytes, const Remote& to);
  /// `from` is read until settled(number).
  std::uint64_t hold(const std::byte* from, std::uint32_t key, std::size_t bytes, const Remote& to);
  /// `from` is read at once, into staging memory. 0: there is none left now. REQUIRES: bytes <= chunk.
  std::uint64_t hold_staged(const std::byte* from, std::size_t bytes, const Remote& to);
  /// A write of nothing that wants an answer, to find out whether the peer is there.
  void hold_probe();

  /// Gives what is held to the device.
  void send();
  /// A completion of this queue pair.
  void take(const ibv_wc& completion);

  /// The source of write `number` is not read any more.
  bool settled(std::uint64_t number) const {
    return number <= window_.completed() || (!broken_.ok() && number > sent_) || finished();
  }
  /// Nothing is under way, and the device has told so. A probe makes it tell.
  bool idle() const { return window_.idle() || finished(); }
  const Status& broken() const { return broken_; }
  /// From now on it is. What is under way comes back as completions.
  void break_off(Code code, const std::string& why);

 private:
  struct Held {
    ibv_send_wr request;
    ibv_sge piece;
    std::byte data[kMostInline];
  };

  Link(Rail& rail, std::uint64_t place, std::string who, const Staging& staging);
  Status create();
  /// Broken, and all that the device had has come back: what the peer had acknowledged and nobody asked about does not,
  /// so the device is given a second.
  bool finished() const {
    return !broken_.ok() && (window_.completed() >= sent_ || now_ns() - broken_at_ns_ > 1'000'000'000);
  }
  Held& next(bool asks, std::size_t bytes, const Remote& to, std::uint64_t& number);

  Rail& rail_;
  const std::uint64_t place_;
  const std::string who_;
  const Staging staging_;
  ibv_qp* pair_ = nullptr;
  std::size_t inline_bytes_ = 0;
  bool connected_ = false;
  SendWindow window_;  // counts what is held as posted
  StagingQueue staged_;
  std::array<Held, kMostHeld> held_list_;
  std::uint32_t held_ = 0;
  std::size_t held_bytes_ = 0;
  std::uint64_t sent_ = 0;  // number of the last write that the device has
  Status broken_;
  std::int64_t broken_at_ns_ = 0;
};

}  // namespace tutti::transport::verbs
