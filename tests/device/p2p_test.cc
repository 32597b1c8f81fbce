// Messages between device walkers on host threads: groups of any shape, by any number of blocks.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/support/device_job.h"

namespace tutti::testing::p2p_test {
namespace {

using executor::cuda::make_p2p_list;

transport::DeviceWindowSizes window(int ranks) {
  return {.ranks = ranks, .lanes = 4, .scratch_half = 128, .published_half = 128, .p2p_bytes = 1024};
}

std::byte letter(int from, int to, int group, std::size_t message, std::size_t i) {
  return static_cast<std::byte>(from * 31 + to * 17 + group * 7 + static_cast<int>(message) * 3 + static_cast<int>(i));
}

// In each group every rank has some messages for every rank, as all know from the seed; blocks and addresses are its
// own business.
void exchange(int ranks, int groups, unsigned seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  DeviceJob job(ranks, window(ranks));
  job.disturb(seed);
  job.run([&](DeviceRank& rank) {
    std::minstd_rand same(seed);
    std::minstd_rand own(seed + 1 + static_cast<unsigned>(rank.index()));
    const int me = rank.index();
    for (int group = 0; group < groups; ++group) {
      struct Message {
        int from, to;
        std::size_t number;
        Transfer transfer;
        std::vector<std::byte> memory;
        std::size_t shift;
      };
      std::vector<Message> messages;
      for (int from = 0; from < ranks; ++from) {
        for (int to = 0; to < ranks; ++to) {
          const std::size_t many = same() % 3;
          for (std::size_t m = 0; m < many; ++m) {
            const std::size_t bytes = same() % 4 == 0 ? 70000 + same() % 200000 : same() % 3000;
            for (const bool sending : {true, false}) {
              if (me != (sending ? from : to)) continue;
              Message& message = messages.emplace_back(
                  Message{from, to, m, {sending, sending ? to : from, nullptr, bytes, DataType::u8}, {}, own() % 16});
              message.memory.resize(bytes + 32, std::byte{1});
              if (!sending) continue;
              for (std::size_t i = 0; i < bytes; ++i) message.memory[message.shift + i] = letter(from, to, group, m, i);
            }
          }
        }
      }
      std::vector<Transfer> transfers;
      for (Message& message : messages) {
        message.transfer.buffer = message.memory.data() + message.shift;
        transfers.push_back(message.transfer);
      }
      if (transfers.empty()) continue;
      const std::vector<std::byte> list = make_p2p_list(transfers, transport::kP2pStrips);
      ASSERT_TRUE(rank.run_p2p(list, 1 + static_cast<int>(own() % 5)));
      for (const Message& message : messages) {
        if (message.transfer.sending) continue;
        for (std::size_t i = 0; i < message.transfer.count; ++i) {
          ASSERT_EQ(message.memory[message.shift + i], letter(message.from, message.to, group, message.number, i))
              << "group " << group << ", from " << message.from << " to " << message.to << ", byte " << i;
        }
        ASSERT_EQ(message.memory[message.shift + message.transfer.count], std::byte{1});
      }
    }
  });
}

TEST(DeviceP2p, OneRankToItself) { exchange(1, 20, 41); }
TEST(DeviceP2p, TwoRanks) { exchange(2, 30, 42); }
TEST(DeviceP2p, FiveRanks) { exchange(5, 15, 43); }

TEST(DeviceP2p, AbortEndsIt) {
  DeviceJob job(2, window(2));
  job.run([&](DeviceRank& rank) {
    if (rank.index() == 1) {
      std::atomic_ref<std::uint64_t>(job.rank(0).host().abort).store(1);
      return;
    }
    std::vector<std::byte> memory(100);
    const Transfer receive{false, 1, memory.data(), 100, DataType::u8};
    EXPECT_FALSE(rank.run_p2p(make_p2p_list({&receive, 1}, transport::kP2pStrips), 3));
  });
}

}  // namespace
}  // namespace tutti::testing::p2p_test
