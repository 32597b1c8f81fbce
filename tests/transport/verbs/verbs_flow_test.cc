// The arithmetic before a send queue, against a device that is played: it completes in order, tells only of what asked,
// and never holds more than it has room for.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <random>
#include <string>

#include "transport/verbs/flow.h"

namespace tutti::transport::verbs::verbs_flow_test {
namespace {

TEST(VerbsFlow, AFullQueueAlwaysHasACompletionToCome) {
  for (const std::uint32_t depth : {4u, 5u, 32u, 256u}) {
    const unsigned seed = std::random_device{}();
    SCOPED_TRACE("depth " + std::to_string(depth) + ", seed " + std::to_string(seed));
    std::mt19937 random(seed);
    SendWindow window(depth);
    std::deque<SendWindow::Next> device;  // what it has not told of
    for (int i = 0; i < 20'000; ++i) {
      if (window.room() > 0) {
        device.push_back(window.post(random() % 50 == 0));
        ASSERT_LE(device.size(), depth);
        EXPECT_EQ(device.back().number, window.posted());
      }
      if (window.room() > 0 && random() % 3 != 0) continue;
      // The device completes up to some request that asked; when the queue is full there must be one.
      std::size_t told = 0;
      for (std::size_t d = 0; d < device.size(); ++d) {
        if (device[d].signalled && (told == 0 || random() % 2 == 0)) told = d + 1;
      }
      if (told == 0) {
        ASSERT_GT(window.room(), 0u) << "a full queue without a signalled request";
        continue;
      }
      window.complete(device[told - 1].number);
      device.erase(device.begin(), device.begin() + static_cast<std::ptrdiff_t>(told));
      EXPECT_EQ(window.room(), depth - device.size());
    }
  }
}

TEST(VerbsFlow, CompletionsOfFailedRequestsMayComeForEach) {
  SendWindow window(8);
  for (int i = 0; i < 8; ++i) (void)window.post(false);
  EXPECT_EQ(window.room(), 0u);
  for (std::uint64_t number = 1; number <= 8; ++number) window.complete(number);
  window.complete(3);  // an old one takes nothing back
  EXPECT_TRUE(window.idle());
  EXPECT_EQ(window.room(), 8u);
}

TEST(VerbsFlow, QueuesFitIntoTheCompletionQueue) {
  EXPECT_EQ(send_queue_depth(1, 16384, 32767), 256u);
  EXPECT_EQ(send_queue_depth(0, 16384, 32767), 256u);
  EXPECT_EQ(send_queue_depth(1, 100, 32767), 100u);
  EXPECT_EQ(send_queue_depth(200, 16384, 32767), 163u);
  EXPECT_EQ(send_queue_depth(1023, 16384, 32767), 32u);
  EXPECT_EQ(send_queue_depth(1024, 16384, 32767), 0u);
  for (const int links : {1, 3, 128, 500, 1000}) {
    EXPECT_LE(static_cast<int>(send_queue_depth(links, 16384, 32767)) * links, 32767);
  }
}

/// Nothing in bounce buffers is written over before its request has been read, and all of it comes back.
TEST(VerbsFlow, BounceBuffersAreNotReusedTooEarly) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr std::size_t kChunk = 1024;
  constexpr std::size_t kChunks = 6;
  ChunkPool pool(kChunks);
  struct Played {
    BounceQueue queue;
    std::uint64_t next = 1;
    std::uint64_t done = 0;
  };
  Played links[2] = {{BounceQueue(pool, kChunk)}, {BounceQueue(pool, kChunk)}};
  struct Use {
    std::size_t link;
    std::uint64_t number;
    std::size_t end;
  };
  std::map<std::size_t, Use> used;  // by where it begins
  int refused = 0;
  for (int i = 0; i < 50'000; ++i) {
    const std::size_t l = random() % 2;
    Played& link = links[l];
    if (random() % 5 == 0 && link.done + 1 < link.next) {
      link.done += 1 + random() % (link.next - 1 - link.done);
      for (auto use = used.begin(); use != used.end();) {
        use = use->second.link == l && use->second.number <= link.done ? used.erase(use) : std::next(use);
      }
      link.queue.release(link.done);
      continue;
    }
    const std::size_t bytes = 1 + random() % (random() % 4 == 0 ? kChunk : 200);
    const auto place = link.queue.take(bytes, link.next);
    if (!place) {
      ++refused;
      continue;
    }
    ASSERT_LT(place->chunk, kChunks);
    ASSERT_LE(place->at + bytes, kChunk);
    const std::size_t begin = place->chunk * kChunk + place->at;
    for (const auto& [other, use] : used) {
      ASSERT_TRUE(begin + bytes <= other || use.end <= begin) << "request " << link.next << " over " << use.number;
    }
    used[begin] = {l, link.next++, begin + bytes};
  }
  EXPECT_GT(refused, 0) << "the pool was never empty: the test shows little";
  for (Played& link : links) link.queue.release(link.next - 1);
  EXPECT_EQ(pool.left(), kChunks);
}

}  // namespace
}  // namespace tutti::transport::verbs::verbs_flow_test
