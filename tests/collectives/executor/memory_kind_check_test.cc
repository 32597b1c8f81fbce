// Whether ranks' records show that one has passed host memory where the other has passed device memory.
#include "collectives/executor/memory_kind_check.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

namespace tutti::executor::memory_kind_check_test {
namespace {

using transport::Board;
using transport::kCallRing;

/// A rank that makes calls of both kinds.
class Rank {
 public:
  void on_host() { announce(*board_, ++host_, call(), 0, 0, 0, 1.0); }
  void on_device() {
    refused_on_device();
    count_launch(*board_, ++device_);
  }
  void refused_on_device() { announce_launch(*board_, device_ + 1, call()); }
  void captured() {
    stop_counting(*board_);
    on_device();
  }
  Board& board() { return *board_; }
  /// Return the call of `other` in place of this rank's last call on host memory, or on device memory.
  std::uint64_t host_call_meets(Rank& other) {
    return called_instead(board_->calls[host_ % kCallRing], other.board_->launches).sequence;
  }
  std::uint64_t device_call_meets(Rank& other) {
    return called_instead(board_->launches[device_ % kCallRing], other.board_->calls).sequence;
  }

 private:
  static Announcement call() {
    Announcement announcement;
    announcement.identity.words.collective = static_cast<std::uint8_t>(Collective::all_reduce);
    announcement.identity.count = 4;
    return announcement;
  }
  const std::unique_ptr<Board> board_ = std::make_unique<Board>();
  std::uint64_t host_ = 0;
  std::uint64_t device_ = 0;
};

TEST(Kinds, TheSameOrderIsFine) {
  Rank one, other;
  for (int i = 0; i < 3 * kCallRing; ++i) {
    for (Rank* rank : {&one, &other}) {
      if (i % 3 == 0) rank->on_host();
      rank->on_device();
      EXPECT_EQ(one.host_call_meets(other), 0u);
      EXPECT_EQ(other.host_call_meets(one), 0u);
      EXPECT_EQ(one.device_call_meets(other), 0u);
      EXPECT_EQ(other.device_call_meets(one), 0u);
    }
  }
}

TEST(Kinds, OneBehindTheOtherIsFine) {
  Rank one, other;
  one.on_host();
  one.on_device();
  one.on_device();
  EXPECT_EQ(one.device_call_meets(other), 0u);
  other.on_host();
  EXPECT_EQ(other.host_call_meets(one), 0u);
  EXPECT_EQ(one.device_call_meets(other), 0u);
}

TEST(Kinds, BothFindOut) {
  Rank one, other;
  for (Rank* rank : {&one, &other}) {
    rank->on_host();
    rank->on_device();
    rank->on_device();
  }
  one.on_host();      // its second
  other.on_device();  // its third
  EXPECT_EQ(one.host_call_meets(other), 3u);
  EXPECT_EQ(other.device_call_meets(one), 2u);
}

// By then the record of the call itself has been written over.
TEST(Kinds, AlsoLongAfterwards) {
  Rank one, other;
  one.on_host();
  for (int i = 0; i < kCallRing + 5; ++i) other.on_device();
  EXPECT_EQ(one.host_call_meets(other), static_cast<std::uint64_t>(kCallRing) + 1);
}

TEST(Kinds, ACallThatWasRefusedDoesNotCount) {
  Rank one, other;
  one.refused_on_device();
  one.on_host();
  other.on_host();
  EXPECT_EQ(other.host_call_meets(one), 0u);
  other.on_device();
  EXPECT_EQ(one.host_call_meets(other), 0u);
}

TEST(Kinds, ARankWithGraphsDoesNotCount) {
  Rank one, other;
  one.captured();
  one.on_host();
  for (int i = 0; i < 3; ++i) other.on_device();
  other.on_host();
  EXPECT_EQ(one.host_call_meets(other), 0u);
  EXPECT_EQ(one.device_call_meets(other), 0u);
  EXPECT_EQ(other.host_call_meets(one), 0u);
  EXPECT_EQ(other.device_call_meets(one), 0u);
}

TEST(Kinds, TheSentenceBeginsWithTheLowerRank) {
  CallSnapshot host;
  host.sequence = 7;
  CallSnapshot device;
  device.sequence = 2;
  const auto name = [](int rank) { return "R" + std::to_string(rank); };
  EXPECT_EQ(mixed_text(name, 1, host, 0, device),
            "R0 called barrier() as its call 2 on device memory, R1 called barrier() as its call 7 on host memory; "
            "expected one kind of memory on all ranks");
  EXPECT_EQ(mixed_text(name, 1, host, 2, device).substr(0, 12), "R1 called ba");
}

}  // namespace
}  // namespace tutti::executor::memory_kind_check_test
