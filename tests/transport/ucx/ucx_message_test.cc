// What goes as one message over UCX, and the order of what arrives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/ucx/am_message.h"

namespace tutti::ucx::ucx_message_test {
namespace {

AmMessage sample() {
  AmMessage message(4096);
  message.put(7, 1000, "record", 6);
  message.signal(7, 16, 41, 42);
  message.large_put(8, 5, 1 << 20);
  message.signal(8, 32, 43, 44);
  message.set_head(3, 1, 99, 17);
  return message;
}

TEST(AmMessage, IsReadAsItWasWritten) {
  const AmMessage message = sample();
  Result<MessageReader> reading = MessageReader::open(message.bytes());
  ASSERT_TRUE(reading.ok());
  EXPECT_EQ(reading.value().head().rank, 3u);
  EXPECT_EQ(reading.value().head().lane, 1u);
  EXPECT_EQ(reading.value().head().number, 99u);
  EXPECT_EQ(reading.value().head().pass, 17u);
  Entry entry;
  const char* behind = nullptr;
  ASSERT_TRUE(reading.value().next(entry, behind));
  EXPECT_EQ(entry.kind, Kind::put);
  EXPECT_EQ(entry.region, 7u);
  EXPECT_EQ(entry.at, 1000u);
  EXPECT_EQ(std::string(behind, entry.bytes_or_count), "record");
  ASSERT_TRUE(reading.value().next(entry, behind));
  EXPECT_EQ(entry.kind, Kind::signal);
  EXPECT_EQ(entry.bytes_or_count, 41u);
  EXPECT_EQ(entry.tag, 42u);
  ASSERT_TRUE(reading.value().next(entry, behind));
  EXPECT_EQ(entry.kind, Kind::large_put);
  EXPECT_EQ(entry.bytes_or_count, std::uint64_t{1} << 20);
  ASSERT_TRUE(reading.value().next(entry, behind));
  EXPECT_EQ(entry.at, 32u);
  EXPECT_FALSE(reading.value().next(entry, behind));
  EXPECT_TRUE(reading.value().status().ok());
}

TEST(AmMessage, KnowsItsRoom) {
  AmMessage message(256);
  EXPECT_TRUE(message.empty());
  int puts = 0;
  for (const std::string bytes(9, 'x'); message.has_room_for(bytes.size()); ++puts) {
    message.put(0, 0, bytes.data(), bytes.size());
  }
  EXPECT_EQ(puts, 4);  // 24 of the head, and 48 each
  EXPECT_LE(message.bytes().size(), 256u);
  message.clear();
  EXPECT_TRUE(message.empty());
  EXPECT_FALSE(message.has_room_for(256));
}

/// A peer that writes nonsense makes a sentence, and nothing beyond the text is read.
TEST(AmMessage, WhatIsCutOffOrMalformedIsRefused) {
  const std::string whole(sample().bytes());
  const auto read_all = [](std::string_view text) -> Status {
    // A copy of its own, so that a sanitizer sees what is read beyond.
    const std::vector<char> copy(text.begin(), text.end());
    TUTTI_ASSIGN(MessageReader reading, MessageReader::open({copy.data(), copy.size()}));
    Entry entry;
    const char* behind = nullptr;
    unsigned sum = 0;
    while (reading.next(entry, behind)) {
      if (entry.kind == Kind::put) sum += std::accumulate(behind, behind + entry.bytes_or_count, 0u);
    }
    EXPECT_NE(sum, 1u);
    return reading.status();
  };
  EXPECT_TRUE(read_all(whole).ok());
  int refused = 0;
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) refused += read_all(whole.substr(0, bytes)).ok() ? 0 : 1;
  EXPECT_EQ(refused, static_cast<int>(whole.size()) - 4);  // whole entries are no nonsense, nor is none: 4 ways
  std::string huge = whole;
  Entry entry;
  std::memcpy(&entry, huge.data() + sizeof(Head), sizeof entry);
  for (const std::uint64_t bytes : {UINT64_MAX, UINT64_MAX - 7, UINT64_MAX / 2, std::uint64_t{1} << 32}) {
    entry.bytes_or_count = bytes;
    std::memcpy(huge.data() + sizeof(Head), &entry, sizeof entry);
    EXPECT_THAT(read_all(huge).message(), ::testing::HasSubstr("cut off"));
  }
  entry.kind = static_cast<Kind>(17);
  std::memcpy(huge.data() + sizeof(Head), &entry, sizeof entry);
  EXPECT_FALSE(read_all(huge).ok());
}

/// Messages that arrive in any order, their large puts written in any order: signals come out in the sender's.
TEST(ReorderQueue, SignalsComeInOrder) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    ReorderQueue queue;
    std::vector<std::uint64_t> arriving(20), large, seen;
    std::iota(arriving.begin(), arriving.end(), 0);
    std::shuffle(arriving.begin(), arriving.end(), random);
    std::vector<bool> complete(arriving.size());
    const auto drain = [&] {
      queue.drain([&](const ReorderQueue::Signal& signal) { seen.push_back(signal.count); });
      const auto first_missing =
          static_cast<std::size_t>(std::find(complete.begin(), complete.end(), false) - complete.begin());
      EXPECT_EQ(seen.size(), first_missing);  // neither early nor late
    };
    for (const std::uint64_t number : arriving) {
      EXPECT_TRUE(queue.expects(number));
      const bool now = random() % 2 == 0;
      if (now && queue.is_next(number)) {
        queue.passed();
        seen.push_back(number);
      } else {
        queue.wait(number, {{0, 0, number, 0}}, now);
      }
      complete[number] = now;
      EXPECT_FALSE(queue.expects(number));
      if (!now) large.push_back(number);
      drain();
      if (!large.empty() && random() % 3 == 0) {
        std::swap(large.back(), large[random() % large.size()]);
        queue.complete(large.back());
        complete[large.back()] = true;
        large.pop_back();
        drain();
      }
    }
    for (; !large.empty(); large.pop_back()) {
      queue.complete(large.back());
      complete[large.back()] = true;
      drain();
    }
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
    EXPECT_EQ(seen.size(), arriving.size());
  }
}

}  // namespace
}  // namespace tutti::ucx::ucx_message_test
