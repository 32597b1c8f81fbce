// What travels between the ranks and the meeting place, as bytes. Pure functions: no socket, no clock, no environment;
// every byte may come from a stranger.
//
// A frame is a header (payload length, 4 bytes little-endian; type, 1 byte) and the payload. Numbers are little-endian;
// a string is its length (4 bytes) and its bytes; a list is its count (4 bytes) and its items.
//
//   hub -> guest   challenge      a fresh nonce
//   guest -> hub   introduction   who it is, a nonce of its own, and the proof that it knows the job's secret
//   hub -> guest   welcome        who the hub is, and its proof            (or a refusal, with its proof)
//   hub -> guest   roster         everybody is here
//   then, in any order: gather, regroup, gathered, gather_failed, impatient, failure, left, goodbye, standing,
//   farewells
//
// Proofs show who opened the connection; what follows is neither signed nor encrypted.
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
inline constexpr std::chrono::seconds kFarewell{1};
/// Of the meeting's thread, in case that the system has refused to wake it.
inline constexpr std::chrono::seconds kLongestSleep{1};
inline constexpr std::size_t kHeaderBytes = 5;
inline constexpr std::size_t kMaxPayload = 16 << 20;     // from a rank that has proven itself
inline constexpr std::size_t kMaxUnprovenPayload = 512;  // from anybody
inline constexpr std::size_t kMaxHostName = 255;
inline constexpr std::size_t kMaxAddressText = 64;  // of a numeric address, or of an interface's name
inline constexpr std::size_t kMaxText = 4096;       // of an error sentence
inline constexpr int kMaxRanks = 1 << 20;
/// The scope of a FailureNote by which a rank gives up while the communicator is made: for a reason of its own.
inline constexpr std::uint64_t kMakingScope = ~std::uint64_t{0};

using sockets::Nonce;
using Proof = std::array<unsigned char, 32>;

enum class MessageType : std::uint8_t {
  challenge = 1,
  introduction,
  welcome,
  refusal,
  roster,
  gather,
  gathered,
  gather_failed,
  impatient,
  failure,
  left,
  goodbye,
  regroup,
  standing,
  farewells,
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
  std::array<unsigned char, 8> magic{'T', 'U', 'T', 'T', 'I', 'H', 'U', '1'};
  Nonce nonce{};
  template <class Archive>
  void fields(Archive& archive) {
    archive(magic)(nonce);
  }
};

struct Introduction {
  static constexpr MessageType kType = MessageType::introduction;
  std::array<unsigned char, 8> magic{'T', 'U', 'T', 'T', 'I', 'R', 'K', '1'};
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

/// A rank's contribution to an exchange of those who are left, which has a name in place of a number. May be sent again
/// with fewer ranks to wait for.
struct Regroup {
  static constexpr MessageType kType = MessageType::regroup;
  static constexpr std::uint64_t kName = std::uint64_t{1} << 63;  // set in all names, and in no number
  std::uint64_t sequence = 0;
  std::string among;  // a byte for each rank: whether it may take part. Those that are dead or have left do not
  std::string blob;   // not empty
  template <class Archive>
  void fields(Archive& archive) {
    archive(sequence)(among, kMaxRanks)(blob, kMaxPayload);
  }
};

struct Gathered {
  static constexpr MessageType kType = MessageType::gathered;
  std::uint64_t sequence = 0;
  std::vector<std::string> blobs;  // one per rank; after a Regroup: empty of those that take no part
  template <class Archive>
  void fields(Archive& archive) {
    archive(sequence)(blobs);
  }
};

/// The exchange cannot happen any more. Sequence 0 is the meeting itself. Of a Regroup that took too long, the text is
/// the number of a rank that has not come.
struct GatherFailed {
  static constexpr MessageType kType = MessageType::gather_failed;
  std::uint64_t sequence = 0;
  Code code = Code::timeout;
  std::string text;
  template <class Archive>
  void fields(Archive& archive) {
    archive(sequence)(code)(text, kMaxText);
  }
};

/// A rank's deadline for an exchange has passed: the hub says who is missing.
struct Impatient {
  static constexpr MessageType kType = MessageType::impatient;
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
  std::uint64_t scope = 0;
  Code code = Code::aborted;
  std::string text;
  template <class Archive>
  void fields(Archive& archive) {
    archive(rank)(scope)(code)(text, kMaxText);
  }
};

/// A question, which the hub passes on to all, who asks too, or (with a rank) that rank's answer, which goes to who
/// asked.
struct Standing {
  static constexpr MessageType kType = MessageType::standing;
  std::int32_t asker = 0;
  std::int32_t rank = -1;
  std::uint64_t scope = 0;
  std::uint64_t word = 0;
  template <class Archive>
  void fields(Archive& archive) {
    archive(asker)(rank)(scope)(word);
  }
};

/// To the hub: a rank has written nothing to these of `scope`, and will not, of which they hear, and itself too. From
/// the hub: these have said so.
struct Farewells {
  static constexpr MessageType kType = MessageType::farewells;
  std::uint64_t scope = 0;
  std::uint8_t came = 1;  // it was there; else it could not come
  std::vector<std::int32_t> ranks;
  template <class Archive>
  void fields(Archive& archive) {
    archive(scope)(came)(ranks);
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
