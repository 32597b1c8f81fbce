// What goes from one rank to another as one message: small puts with their bytes, signals, and at most one large put,
// whose bytes are not part of the message but go behind it. And the order of what arrives.
//
//   AmMessage message(most);
//   if (!message.has_room_for(bytes)) ... send it first ...
//   message.put(region, at, from, bytes);
//   message.signal(region, at, count, tag);
//   message.set_head(own, lane, number, pass);       // message.bytes() is what goes
//
// How: a head, then entries in order, each followed by the bytes that it has, filled up to a multiple of eight.
// Errors: system, when what has come is no message or is cut off.
// Threads: one at a time.
// Limits: both sides have the same byte order (UCX wants that too).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tutti::ucx {

enum class Kind : std::uint32_t { put, large_put, signal };

struct Entry {
  Kind kind{};
  std::uint32_t region = 0;  // the receiver's number for it
  std::uint64_t at = 0;
  std::uint64_t bytes_or_count = 0;
  std::uint64_t tag = 0;
};
static_assert(sizeof(Entry) == 32);

struct Head {
  std::uint32_t rank = 0;  // the sender
  std::uint32_t lane = 0;
  std::uint64_t number = 0;  // of the message, in its lane; from 0
  std::uint64_t pass = 0;    // what the two ranks alone know: see pass_between()
};
static_assert(sizeof(Head) == 24);

class AmMessage {
 public:
  /// `most`: bytes that it may have.
  explicit AmMessage(std::size_t most) : most_(most) { clear(); }

  void clear() { text_.assign(sizeof(Head), '\0'); }
  bool empty() const { return text_.size() == sizeof(Head); }
  /// Returns true if there is room for one more entry, with so many bytes.
  bool has_room_for(std::size_t bytes) const { return text_.size() + sizeof(Entry) + rounded(bytes) <= most_; }

  // REQUIRES: there is room.
  void put(std::uint32_t region, std::uint64_t at, const void* from, std::size_t bytes);
  void large_put(std::uint32_t region, std::uint64_t at, std::size_t bytes);
  void signal(std::uint32_t region, std::uint64_t at, std::uint64_t count, std::uint64_t tag);

  void set_head(int rank, int lane, std::uint64_t number, std::uint64_t pass);
  std::string_view bytes() const { return text_; }

 private:
  static constexpr std::size_t rounded(std::size_t bytes) { return (bytes + 7) / 8 * 8; }
  void add(const Entry& entry);

  std::size_t most_;
  std::string text_;
};

/// Reads a message. Errors: system, it is no message ("... 17 bytes are too few").
class MessageReader {
 public:
  static Result<MessageReader> open(std::string_view text);

  const Head& head() const { return head_; }
  /// Gives the next entry and its bytes. Returns false if there is none, or if it is cut off (status()).
  bool next(Entry& entry, const char*& bytes);
  const Status& status() const { return status_; }

 private:
  Head head_;
  std::string_view rest_;
  Status status_;
};

/// The messages of one sender in one lane. Their puts are written as they come, their signals when all messages before
/// have come and all large puts up to there have been written.
class ReorderQueue {
 public:
  struct Signal {
    std::uint32_t region = 0;
    std::uint64_t at = 0;
    std::uint64_t count = 0;
    std::uint64_t tag = 0;
  };

  /// Returns true if a message can have this number. Each comes once.
  bool expects(std::uint64_t number) const { return number >= next_ && waiting_.count(number) == 0; }
  /// Returns true if the message is the next one, so that its signals need not wait for another. Then passed() follows,
  /// if it has no large put.
  bool is_next(std::uint64_t number) const { return waiting_.empty() && number == next_; }
  void passed() { ++next_; }

  /// A message whose signals must wait. REQUIRES: expects(number).
  void wait(std::uint64_t number, std::vector<Signal> signals, bool complete);
  /// The large put of a waiting message has been written. REQUIRES: it waits, and is not complete.
  void complete(std::uint64_t number);
  /// Signals whose time has come, in order.
  void drain(const std::function<void(const Signal&)>& apply);

 private:
  struct Waiting {
    std::vector<Signal> signals;
    bool complete = false;
  };
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, Waiting> waiting_;
};

}  // namespace tutti::ucx
