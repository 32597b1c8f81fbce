// The messages between the ranks and the bootstrap server, as bytes. Every byte may come from an unauthenticated peer.
//
// A frame is a header (payload length, 4 bytes little-endian; type, 1 byte) and the payload. Numbers are little-endian;
// a string is its length (4 bytes) and its bytes; a list is its count (4 bytes) and its items.
//
//   server -> client   challenge     a fresh nonce
//   client -> server   join request  who it is, a nonce of its own, and the proof that it knows the job's secret
//   server -> client   welcome       who the server is, and its proof   (or a refusal, with its proof)
//   server -> client   roster        all ranks are here
//   then, in any order: gather, gathered, gather failed, deadline notice, failure, left, goodbye, survivor exchange,
//   progress report, leave notice
//
// Proofs show who opened the connection; what follows is neither signed nor encrypted.
// Errors: invalid_argument, for a frame that is too long or of no known type, and for a malformed payload.
// Threads: pure functions: no socket, no clock, no environment.
// Limits: kMaxPayload bytes from a rank that has proven itself, kMaxUnprovenPayload from any other peer.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "transport/sockets/nonce.h"

namespace tutti::bootstrap {

/// How long goodbyes may take to be sent and answered.
inline constexpr std::chrono::seconds kGoodbyeLimit{1};
/// The longest sleep of the bootstrap thread, in case that the system has refused to wake it.
inline constexpr std::chrono::seconds kLongestSleep{1};
inline constexpr std::size_t kHeaderBytes = 5;
inline constexpr std::size_t kMaxPayload = 16 << 20;     // from a rank that has proven itself
inline constexpr std::size_t kMaxUnprovenPayload = 512;  // from any other peer
inline constexpr std::size_t kMaxHostName = 255;
inline constexpr std::size_t kMaxAddressText = 64;  // of a numeric address, or of an interface's name
inline constexpr std::size_t kMaxText = 4096;       // of an error sentence
inline constexpr int kMaxRanks = 1 << 20;
/// The communicator id of a FailureNote by which a rank gives up while the job is made, for a reason of its own.
inline constexpr std::uint64_t kMakingComm = ~std::uint64_t{0};

using sockets::Nonce;
using Proof = std::array<unsigned char, 32>;

enum class MessageType : std::uint8_t {
  challenge = 1,
  join_request,
  welcome,
  refusal,
  roster,
  gather,
  gathered,
  gather_failed,
  deadline_notice,
  failure,
  left,
  goodbye,
  survivor_exchange,
  progress_report,
  leave_notice,
};
inline constexpr std::uint8_t kLastMessageType = 15;

struct Frame {
  MessageType type{};
  std::string payload;
};

/// REQUIRES: payload.size() <= kMaxPayload.
std::string encode_frame(MessageType type, std::string_view payload);

/// Cuts a stream of bytes into frames. Holds at most what was appended.
class FrameReader {
 public:
  void append(std::string_view bytes) { buffer_.append(bytes); }
  /// The next frame; nothing while it is incomplete. Errors: unknown type, or a payload longer than `max_payload`
  /// (seen from the header alone). After an error the stream is useless.
  Result<std::optional<Frame>> next(std::size_t max_payload);
  bool empty() const { return at_ == buffer_.size(); }

 private:
  std::string buffer_;
  std::size_t at_ = 0;
};

/// Who a rank is, for error sentences, and where its peers on other hosts reach it.
struct Identity {
  std::string host;
  std::int64_t pid = 0;
  std::string address;    // numeric (interfaces.h); empty where all ranks meet inside one host
  std::string interface;  // that has it. Without an address: by which another host was met, with link-local ones alone
  template <class Archive>
  void fields(Archive& archive) {
    archive(host, kMaxHostName)(pid)(address, kMaxAddressText)(interface, kMaxAddressText);
  }
  friend bool operator==(const Identity&, const Identity&) = default;
};

// The payloads. fields() is both the writer's and the reader's list.

struct Challenge {
  static constexpr MessageType kType = MessageType::challenge;
  std::array<unsigned char, 8> magic{'T', 'U', 'T', 'T', 'I', 'S', 'V', '2'};
  Nonce nonce{};
  template <class Archive>
  void fields(Archive& archive) {
    archive(magic)(nonce);
  }
};

struct JoinRequest {
  static constexpr MessageType kType = MessageType::join_request;
  std::array<unsigned char, 8> magic{'T', 'U', 'T', 'T', 'I', 'C', 'L', '2'};
  Nonce nonce{};
  std::int32_t rank = 0;
  std::int32_t size = 0;
  Identity who;
  Proof proof{};  // over both nonces and the fields before it
  template <class Archive>
  void fields(Archive& archive) {
    archive(magic)(nonce)(rank)(size)(who)(proof);
  }
};

struct Welcome {
  static constexpr MessageType kType = MessageType::welcome;
  Identity who;
  Proof proof{};
  template <class Archive>
  void fields(Archive& archive) {
    archive(who)(proof);
  }
};

/// `code`: what the refused rank's own error has.
struct Refusal {
  static constexpr MessageType kType = MessageType::refusal;
  Code code = Code::invalid_argument;
  std::string text;
  Proof proof{};
  template <class Archive>
  void fields(Archive& archive) {
    archive(code)(text, kMaxText)(proof);
  }
};

struct Roster {
  static constexpr MessageType kType = MessageType::roster;
  std::vector<Identity> ranks;
  template <class Archive>
  void fields(Archive& archive) {
    archive(ranks);
  }
};

/// A rank's contribution to its `sequence`-th exchange (from 1).
struct Gather {
  static constexpr MessageType kType = MessageType::gather;
  std::uint64_t sequence = 0;
  std::string blob;
  template <class Archive>
  void fields(Archive& archive) {
    archive(sequence)(blob, kMaxPayload);
  }
};

/// A rank's contribution to an exchange of the survivors of a failed communicator, which has a name in place of a
/// number. May be sent again with fewer ranks to wait for.
struct SurvivorExchange {
  static constexpr MessageType kType = MessageType::survivor_exchange;
  static constexpr std::uint64_t kName = std::uint64_t{1} << 63;  // set in all names, and in no number
  std::uint64_t sequence = 0;
  std::string among;  // a byte for each rank: whether it may take part. Ranks that are dead or have left do not
  std::string blob;   // not empty
  template <class Archive>
  void fields(Archive& archive) {
    archive(sequence)(among, kMaxRanks)(blob, kMaxPayload);
  }
};

struct Gathered {
  static constexpr MessageType kType = MessageType::gathered;
  std::uint64_t sequence = 0;
  std::vector<std::string> blobs;  // by rank; of a survivor exchange: empty for ranks that take no part
  template <class Archive>
  void fields(Archive& archive) {
    archive(sequence)(blobs);
  }
};

/// The exchange cannot complete any more. Sequence 0 stands for the joining of all ranks.
struct GatherFailed {
  static constexpr MessageType kType = MessageType::gather_failed;
  std::uint64_t sequence = 0;
  Code code = Code::timeout;
  std::string text;
  std::int32_t rank = -1;  // of a survivor exchange that took too long: one that has not contributed
  template <class Archive>
  void fields(Archive& archive) {
    archive(sequence)(code)(text, kMaxText)(rank);
  }
};

/// A rank's deadline for an exchange has passed: the server is to say who is missing.
struct DeadlineNotice {
  static constexpr MessageType kType = MessageType::deadline_notice;
  std::uint64_t sequence = 0;
  std::uint64_t waited_ms = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(sequence)(waited_ms);
  }
};

struct FailureNote {
  static constexpr MessageType kType = MessageType::failure;
  std::int32_t rank = -1;
  std::uint64_t comm_id = 0;
  Code code = Code::aborted;
  std::string text;
  template <class Archive>
  void fields(Archive& archive) {
    archive(rank)(comm_id)(code)(text, kMaxText);
  }
};

/// Asks for the progress of a communicator (`rank` is -1), or reports it. The server sends a question to all ranks, the
/// asker too, and a report to its asker.
struct ProgressReport {
  static constexpr MessageType kType = MessageType::progress_report;
  std::int32_t asker = 0;
  std::int32_t rank = -1;
  std::uint64_t comm_id = 0;
  std::uint64_t word = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(asker)(rank)(comm_id)(word);
  }
};

/// Client to server: this rank sends nothing (more) to `ranks` in the communicator. The server forwards it to each of
/// them and echoes it to the sender. Server to client: `ranks` have sent this notice.
struct LeaveNotice {
  static constexpr MessageType kType = MessageType::leave_notice;
  std::uint64_t comm_id = 0;
  std::uint8_t came = 1;  // 0: it could not join the communicator
  std::vector<std::int32_t> ranks;
  template <class Archive>
  void fields(Archive& archive) {
    archive(comm_id)(came)(ranks);
  }
};

struct Left {
  static constexpr MessageType kType = MessageType::left;
  std::int32_t rank = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(rank);
  }
};

struct Goodbye {
  static constexpr MessageType kType = MessageType::goodbye;
  template <class Archive>
  void fields(Archive&) {}
};

/// The payload alone.
template <class Message>
std::string encode(const Message& message);

/// Errors: invalid_argument when the payload is too short, too long or breaks a limit.
template <class Message>
Result<Message> decode(std::string_view payload);

/// Header and payload.
template <class Message>
std::string frame_of(const Message& message) {
  return encode_frame(Message::kType, encode(message));
}

/// "rank 3", "ranks 0, 2, 5-9".
std::string rank_list(const std::vector<int>& sorted_ranks);

}  // namespace tutti::bootstrap
