// The bytes between a rank and the bootstrap server: what is written is read, and whatever else is refused.
#include "transport/bootstrap/message.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>

#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/secret.h"
#include "transport/sockets/nonce.h"

namespace tutti::bootstrap::message_test {
namespace {

JoinRequest some_introduction() {
  JoinRequest join_request;
  join_request.nonce.fill(7);
  join_request.rank = 3;
  join_request.size = 4;
  join_request.who = {"alpha", 123456};
  join_request.proof.fill(9);
  return join_request;
}

template <class Message>
void expect_only_whole(const Message& message) {
  const std::string bytes = encode(message);
  const Result<Message> back = decode<Message>(bytes);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(encode(back.value()), bytes);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) EXPECT_FALSE(decode<Message>(bytes.substr(0, cut)).ok()) << cut;
  EXPECT_FALSE(decode<Message>(bytes + '\0').ok());
}

TEST(Message, EveryTypeIsReadAsItWasWrittenAndOnlyWhole) {
  expect_only_whole(Challenge{});
  expect_only_whole(some_introduction());
  expect_only_whole(Welcome{{"beta", -1}, {}});
  expect_only_whole(Refusal{Code::system, "no", {}});
  expect_only_whole(Roster{{{"a", 1}, {"", 2}}});
  expect_only_whole(Gather{1ULL << 63, std::string("\0x", 2)});
  expect_only_whole(Gathered{5, {"", "b", std::string(1000, 'c')}});
  expect_only_whole(GatherFailed{6, Code::timeout, "late"});
  expect_only_whole(DeadlineNotice{7, 250});
  expect_only_whole(FailureNote{-1, 8, Code::mismatch, "different"});
  expect_only_whole(ProgressReport{1, -1, 1ULL << 63, 17});
  expect_only_whole(LeaveNotice{11, 0, {2, 0}});
  expect_only_whole(Left{2});
  expect_only_whole(Goodbye{});
  expect_only_whole(SurvivorExchange{9, std::string("\1\0\1", 3), "x"});
}

TEST(Message, FieldsSurvive) {
  const JoinRequest back = decode<JoinRequest>(encode(some_introduction())).take();
  EXPECT_EQ(back.rank, 3);
  EXPECT_EQ(back.size, 4);
  EXPECT_EQ(back.who, (Identity{"alpha", 123456}));
  const FailureNote note = decode<FailureNote>(encode(FailureNote{-1, ~0ULL, Code::peer_died, "x"})).take();
  EXPECT_EQ(note.rank, -1);
  EXPECT_EQ(note.comm_id, ~0ULL);
  EXPECT_EQ(note.code, Code::peer_died);
}

TEST(Message, ForeignMagicUnknownCodeAndFalseCountsAreRefused) {
  std::string bytes = encode(Challenge{});
  bytes[0] = 'X';
  EXPECT_FALSE(decode<Challenge>(bytes).ok());
  std::string failed = encode(GatherFailed{0, Code::timeout, ""});
  failed[8] = 99;  // the code follows the 8 bytes of the sequence
  EXPECT_FALSE(decode<GatherFailed>(failed).ok());
  failed[8] = 0;  // a failure that is none
  EXPECT_FALSE(decode<GatherFailed>(failed).ok());
  EXPECT_FALSE(decode<Roster>("\xff\xff\xff\xff").ok());  // four thousand million ranks in no bytes
}

TEST(Message, LongTextIsCutToWhatTheReaderTakes) {
  const std::string bytes = encode(Refusal{Code::system, std::string(100'000, 'x'), {}});
  EXPECT_EQ(decode<Refusal>(bytes).take().text.size(), kMaxText);
  JoinRequest join_request = some_introduction();
  join_request.who.host = std::string(5000, 'h');
  EXPECT_LE(encode(join_request).size(), kMaxUnprovenPayload);
}

TEST(Message, FramesComeOutHoweverTheStreamIsCut) {
  std::string stream;
  for (int i = 0; i < 50; ++i) stream += frame_of(Gather{static_cast<std::uint64_t>(i), std::string(i * 7, 'g')});
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  FrameReader reader;
  int frames = 0;
  for (std::size_t at = 0; at < stream.size();) {
    const std::size_t size = std::min<std::size_t>(1 + random() % 200, stream.size() - at);
    reader.append(std::string_view(stream).substr(at, size));
    at += size;
    for (;;) {
      Result<std::optional<Frame>> frame = reader.next(kMaxPayload);
      ASSERT_TRUE(frame.ok()) << "seed " << seed;
      if (!frame.value()) break;
      const Gather gather = decode<Gather>(frame.value()->payload).take();
      ASSERT_EQ(gather.sequence, static_cast<std::uint64_t>(frames)) << "seed " << seed;
      ASSERT_EQ(gather.blob.size(), static_cast<std::size_t>(frames * 7)) << "seed " << seed;
      ++frames;
    }
  }
  EXPECT_EQ(frames, 50);
  EXPECT_TRUE(reader.empty());
}

TEST(Message, TooLongAndUnknownFramesAreRefusedFromTheirHeader) {
  FrameReader reader;
  reader.append(encode_frame(MessageType::gather, std::string(600, 'x')).substr(0, kHeaderBytes));
  EXPECT_FALSE(reader.next(kMaxUnprovenPayload).ok());
  EXPECT_TRUE(reader.next(kMaxPayload).ok());
  for (const char type : {'\0', '\x10', '\xff'}) {
    FrameReader other;
    other.append(std::string("\0\0\0\0", 4) + type);
    EXPECT_FALSE(other.next(kMaxPayload).ok()) << static_cast<int>(type);
  }
}

/// Expects that an accepted message is written back as the same bytes.
template <class Message>
void expect_canonical(const std::string& bytes, unsigned seed) {
  const Result<Message> value = decode<Message>(bytes);
  if (value.ok()) {
    EXPECT_EQ(encode(value.value()), bytes) << "seed " << seed;
  }
}

TEST(Message, RandomBytesNeverBreakTheReader) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes(random() % 64, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 4 == 0 ? random() : random() % 3);
    expect_canonical<Gathered>(bytes, seed);
    expect_canonical<Roster>(bytes, seed);
    expect_canonical<FailureNote>(bytes, seed);
    expect_canonical<LeaveNotice>(bytes, seed);
    FrameReader reader;
    reader.append(bytes);
    while (true) {
      const Result<std::optional<Frame>> frame = reader.next(kMaxPayload);
      if (!frame.ok() || !frame.value()) break;
    }
  }
}

TEST(Message, RankListsReadWell) {
  EXPECT_EQ(rank_list({3}), "rank 3");
  EXPECT_EQ(rank_list({0, 1, 2}), "ranks 0, 1, 2");
  EXPECT_EQ(rank_list({0, 2, 5, 6, 7, 8, 9, 11}), "ranks 0, 2, 5-9, 11");
}

TEST(Secret, AProofHoldsOnlyForItsSecretNoncesAndClaim) {
  const Secret secret = Secret::from_text("open");
  const Handshake handshake{sockets::random_nonce(), sockets::random_nonce()};
  JoinRequest join_request = some_introduction();
  join_request.proof = prove(secret, handshake, join_request);
  EXPECT_TRUE(is_proven(secret, handshake, join_request));
  EXPECT_FALSE(is_proven(Secret::from_text("Open"), handshake, join_request));
  EXPECT_FALSE(is_proven(secret, {handshake.server, sockets::random_nonce()}, join_request));
  EXPECT_FALSE(
      is_proven(secret, {sockets::random_nonce(), handshake.client}, join_request));  // a replay on another connection
  JoinRequest other_rank = join_request;
  other_rank.rank = 2;
  EXPECT_FALSE(is_proven(secret, handshake, other_rank));
  EXPECT_NE(Secret::random(), Secret::random());
}

TEST(UniqueId, RoundTripAndForeignBytes) {
  const JoinInfo info{{"@tutti-0123456789abcdef", 0}, Secret::random()};
  const JoinInfo tcp{{"192.168.17.255", 65535}, Secret::random()};
  for (const JoinInfo& one : {info, tcp}) {
    const std::array<char, 128> bytes = encode_join_info(one).take();
    const JoinInfo back = decode_join_info(bytes).take();
    EXPECT_EQ(back.server, one.server);
    EXPECT_EQ(back.secret, one.secret);
  }
  EXPECT_FALSE(decode_join_info(std::array<char, 128>{}).ok());
  EXPECT_FALSE(encode_join_info({{std::string(81, 'x'), 1}, {}}).ok());
}

}  // namespace
}  // namespace tutti::bootstrap::message_test
