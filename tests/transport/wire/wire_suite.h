// What transport/wire/wire.h promises, for any wire, between threads of one process and between processes. A test of a
// wire:
//
//   INSTANTIATE_TEST_SUITE_P(Ucx, WireSuite, every_way({"ucx", open_ucx, why_not_here}), name_of_wire_test);
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/transport/wire/wire_bytes.h"
#include "tests/transport/wire/wire_job.h"

namespace tutti::testing {

class WireSuite : public ::testing::TestWithParam<std::tuple<WireMaker, Members>> {
 protected:
  const WireMaker& maker() const { return std::get<0>(GetParam()); }
  Members ranks() const { return std::get<1>(GetParam()); }
  void SetUp() override {
    const Outcome missing = in_child(maker().missing, maker().environment);
    ASSERT_EQ(missing.error, "");
    if (!missing.said.empty()) GTEST_SKIP() << "tutti-test: not run: " << missing.said;
  }
  void run(const std::vector<int>& hosts, const std::function<void(WireMember&)>& body) const {
    run_job(maker(), ranks(), hosts, body);
  }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WireSuite);

inline auto every_way(const WireMaker& maker) {
  return ::testing::Combine(::testing::Values(maker), ::testing::Values(Members::threads, Members::processes));
}
inline std::string name_of_wire_test(const ::testing::TestParamInfo<std::tuple<WireMaker, Members>>& info) {
  return std::get<0>(info.param).name + (std::get<1>(info.param) == Members::threads ? "Threads" : "Processes");
}

TEST_P(WireSuite, SaysWhatItIs) {
  run({0, 1}, [](WireMember& member) {
    const transport::WireInfo& info = member.wire().info();
    EXPECT_NE(info.name, "");
    EXPECT_NE(info.devices, "");
    EXPECT_GT(info.alpha_us, 0);
    EXPECT_GT(info.gb_per_s, 0);
    EXPECT_TRUE(member.wire().broken(1 - member.rank()).ok());
  });
}

TEST_P(WireSuite, NeedsNoPeer) {
  run({0}, [](WireMember& member) {
    member.flush();
    (void)member.wire().progress();
    member.wire().sleep(1ms);
  });
}

TEST_P(WireSuite, PutsOfAnySizeArriveWhole) {
  run({0, 1, 2}, [](WireMember& member) {
    const std::size_t sizes[] = {0, 1, 63, 64, 65, 4096, 4097, 65536 + 3, std::size_t{1} << 20};
    constexpr std::size_t kRoom = std::size_t{2} << 20;  // of each sender
    std::vector<std::byte> own(kRoom);
    std::uint64_t count = 0;
    for (const std::size_t bytes : sizes) {
      for (const std::size_t shift : {0, 1, 3}) {
        const int lane = static_cast<int>(count) % member.job().lanes;
        ++count;
        std::memset(member.memory() + WireMember::kData, 0xEE, 3 * kRoom);
        member.barrier();
        std::byte* from = own.data() + 3 - shift;
        fill(from, bytes, count * 10 + static_cast<unsigned>(member.rank()));
        const std::size_t at = WireMember::kData + static_cast<unsigned>(member.rank()) * kRoom + 64 + shift;
        for (const int peer : member.linked()) {
          member.put(peer, lane, at, from, bytes);
          member.signal(peer, lane, count);
        }
        for (const int peer : member.linked()) {
          if (!member.until_signal(peer, lane, count)) return;
          const std::byte* there =
              member.memory() + WireMember::kData + static_cast<unsigned>(peer) * kRoom + 64 + shift;
          EXPECT_EQ(first_wrong(there, bytes, count * 10 + static_cast<unsigned>(peer)), bytes) << "shift " << shift;
          EXPECT_EQ(there[-1], std::byte{0xEE});
          EXPECT_EQ(there[bytes], std::byte{0xEE}) << bytes << " bytes, shift " << shift;
        }
        member.barrier();
      }
    }
  });
}

/// Rounds of random puts and signals, held back or not; at the receiver a thread that does nothing else looks for the
/// signal, so that it sees also what is written too early.
TEST_P(WireSuite, WhoSeesASignalSeesWhatWasPutBefore) {
  const unsigned seed = wire_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  run({0, 1}, [seed](WireMember& member) {
    constexpr int kRounds = 3000;
    constexpr int kSlots = 4;  // so many rounds may be under way
    constexpr std::size_t kSlot = std::size_t{192} << 10;
    constexpr std::size_t kPuts = 3;
    struct Round {
      int puts;
      std::size_t bytes[kPuts];
      bool first_signal_later;  // a signal behind the first put, held back; the one that counts comes at the end
    };
    // Both sides make the same rounds.
    const auto make_round = [seed](int k) {
      std::mt19937 random(seed + static_cast<unsigned>(k));
      Round round{static_cast<int>(random() % (kPuts + 1)), {}, random() % 2 == 0};
      for (std::size_t& bytes : round.bytes) {
        const unsigned kind = random() % 32;
        bytes = kind == 0 ? random() % (64 << 10) : kind < 6 ? random() % (12 << 10) : random() % 200;
      }
      return round;
    };
    const auto slot_at = [](int k, std::size_t put) {
      return WireMember::kData + static_cast<unsigned>(k % kSlots) * kSlot + put * (kSlot / kPuts) + put;
    };
    const auto tag_of = [](int k) { return static_cast<std::uint64_t>(k) * 977 + 1; };
    const std::size_t early_at = 32 << 10;  // a cell of its own, for the signals behind the first puts
    if (member.rank() == 0) {
      std::vector<std::vector<std::byte>> sources(kSlots * kPuts, std::vector<std::byte>(64 << 10));
      std::vector<Ticket> tickets(kSlots * kPuts);
      for (int k = 0; k < kRounds; ++k) {
        if (k >= kSlots && !member.until_signal(1, 0, static_cast<unsigned>(k - kSlots + 1))) return;
        const Round round = make_round(k);
        for (int i = 0; i < round.puts; ++i) {
          const std::size_t s = static_cast<std::size_t>(k % kSlots) * kPuts + static_cast<std::size_t>(i);
          if (!member.until_completed(tickets[s])) return;
          fill(sources[s].data(), round.bytes[i], static_cast<unsigned>(k) * kPuts + static_cast<unsigned>(i));
          tickets[s] = member.put(1, 0, slot_at(k, static_cast<std::size_t>(i)), sources[s].data(), round.bytes[i]);
          if (i == 0 && round.first_signal_later) {
            member.must(member.wire().signal(1, 0, member.region(1), early_at, static_cast<unsigned>(k + 1), tag_of(k),
                                             Flush::later));
          }
        }
        member.signal(1, 0, static_cast<unsigned>(k + 1), tag_of(k));
      }
      member.until_signal(1, 0, kRounds);
    } else {
      std::atomic<int> checked{0};
      std::atomic<bool> give_up{false};
      std::thread checker([&] {
        SignalCell& cell = member.cell(0, 0);
        for (int k = 0; k < kRounds && !give_up; ++k) {
          std::uint64_t count = 0;
          for (int looks = 0; (count = cell.count.load(std::memory_order_acquire)) <= static_cast<unsigned>(k);) {
            if (give_up) return;
            if (++looks % 4096 == 0) std::this_thread::yield();  // looks closely: what is wrong is so for a moment
          }
          // The cell may be some rounds ahead already, and on its way from one to the next.
          EXPECT_LE(count, static_cast<unsigned>(k + kSlots));
          while (cell.tag.load(std::memory_order_acquire) < tag_of(static_cast<int>(count) - 1)) {  // in a moment
            if (give_up) return;
          }
          const Round round = make_round(k);
          for (int i = 0; i < round.puts; ++i) {
            const std::byte* there = member.memory() + slot_at(k, static_cast<std::size_t>(i));
            EXPECT_EQ(first_wrong(there, round.bytes[i], static_cast<unsigned>(k) * kPuts + static_cast<unsigned>(i)),
                      round.bytes[i])
                << "round " << k << ", put " << i << " of " << round.puts;
          }
          if (round.puts > 0 && round.first_signal_later) {
            const auto* early = reinterpret_cast<const SignalCell*>(member.memory() + early_at);
            EXPECT_GE(early->count.load(std::memory_order_acquire), static_cast<unsigned>(k + 1));
          }
          checked.store(k + 1, std::memory_order_release);
          if (::testing::Test::HasFailure()) break;
        }
      });
      int answered = 0;
      member.until("all rounds to be checked", [&] {
        const int now = checked.load(std::memory_order_acquire);
        if (now > answered) member.signal(0, 0, static_cast<unsigned>(answered = now));
        return answered == kRounds || ::testing::Test::HasFailure();
      });
      give_up = true;
      checker.join();
      if (::testing::Test::HasFailure()) member.board().stop();
    }
  });
}

TEST_P(WireSuite, WhoSeesAWholeNoteSeesWhatWasPutBefore) {
  const unsigned seed = wire_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  run({0, 1}, [seed](WireMember& member) {
    const int peer = 1 - member.rank();
    constexpr std::size_t kNote = 48 << 10;  // where it is written
    std::mt19937 random(seed);               // both sides make the same rounds
    std::vector<std::byte> from(64 << 10);
    for (std::uint64_t round = 1; round <= 500; ++round) {
      const std::size_t bytes = random() % 8 == 0 ? random() % from.size() : random() % 600;
      std::vector<std::byte> note(16 + random() % (Wire::kMostInlineBytes - 15));
      const bool later = random() % 4 == 0;
      fill(from.data(), bytes, 2 * round);
      fill(note.data(), note.size(), 2 * round + 1);
      const Ticket ticket = member.put(peer, 0, WireMember::kData, from.data(), bytes);
      member.must(member.wire().put_inline(peer, 0, member.region(peer), kNote, note.data(), note.size(),
                                           later ? Flush::later : Flush::now));
      std::fill(note.begin(), note.end(), std::byte{0});  // it is free at once
      if (later) member.flush();
      const auto whole = [&] {
        return first_wrong(member.memory() + kNote, note.size(), 2 * round + 1) == note.size();
      };
      if (!member.until("the note", whole) || !member.until_completed(ticket)) return;
      EXPECT_EQ(first_wrong(member.memory() + WireMember::kData, bytes, 2 * round), bytes);
      EXPECT_EQ(member.memory()[kNote + Wire::kMostInlineBytes], std::byte{0});
      member.barrier();
      if (::testing::Test::HasFailure()) return member.board().stop();
    }
  });
}

TEST_P(WireSuite, WhatIsHeldBackGoesOutAtPost) {
  run({0, 1}, [](WireMember& member) {
    const int peer = 1 - member.rank();
    for (std::uint64_t round = 1; round <= 20; ++round) {
      const std::size_t bytes = round % 2 == 0 ? 100 : 300'000;
      std::vector<std::byte> from(bytes);
      fill(from.data(), bytes, round);
      member.put(peer, 0, WireMember::kData, from.data(), bytes);
      member.signal(peer, 0, round, round, Flush::later);
      if (round % 3 == 0) member.put(peer, 0, WireMember::kData + (1 << 20), from.data(), 8);
      member.flush();
      if (!member.until_signal(peer, 0, round)) return;
      EXPECT_EQ(first_wrong(member.memory() + WireMember::kData, bytes, round), bytes);
      member.barrier();
    }
  });
}

/// A rank whose puts are completed and whose wire is idle may compute: no peer waits for its calls any more.
TEST_P(WireSuite, WhoHasPostedMayGoAway) {
  run({0, 1}, [](WireMember& member) {
    const int peer = 1 - member.rank();
    const int lane = 1 % member.job().lanes;
    std::vector<std::byte> from(std::size_t{1} << 20);
    for (std::uint64_t round = 1; round <= 12; ++round) {  // in the first one connections may be made
      const std::size_t bytes = round % 3 == 1 ? 0 : round % 3 == 2 ? 3000 : from.size();
      if (member.rank() == 0) {
        fill(from.data(), bytes, round);
        const Ticket ticket = member.put(peer, 0, WireMember::kData, from.data(), bytes);
        member.signal(peer, 0, round, round, Flush::later);
        for (std::uint64_t i = 0; i < 300; ++i) member.signal(peer, lane, round * 1000 + i);
        member.flush();
        if (!member.until_completed(ticket) || !member.until_idle()) return;
        const auto end = std::chrono::steady_clock::now() + kTestTimeout / 2;
        while (member.board().cell(0).load() < round && std::chrono::steady_clock::now() < end) {
          std::this_thread::yield();  // computing
        }
        EXPECT_EQ(member.board().cell(0).load(), round) << "still under way";
        if (::testing::Test::HasFailure()) return member.board().stop();
      } else {
        if (!member.until_signal(peer, 0, round) || !member.until_signal(peer, lane, round * 1000 + 299)) return;
        EXPECT_EQ(first_wrong(member.memory() + WireMember::kData, bytes, round), bytes);
        member.board().cell(0).store(round);
      }
    }
  });
}

TEST_P(WireSuite, TheSourceIsFreeOnceAPutIsSettled) {
  run({0, 1}, [](WireMember& member) {
    const int peer = 1 - member.rank();
    const std::size_t copied = member.wire().info().copied;
    const std::size_t sizes[] = {1, 64, copied, copied + 1, 8192, 100'000, std::size_t{1} << 20};
    // Sources in plain memory, and in memory that is exposed.
    std::vector<std::byte> plain(std::size_t{1} << 20);
    std::byte* exposed = member.memory() + WireMember::kMemory - (std::size_t{2} << 20);
    std::uint64_t count = 0;
    for (int round = 0; round < 10; ++round) {
      for (const std::size_t bytes : sizes) {
        for (std::byte* from : {plain.data(), exposed}) {
          if (bytes > plain.size()) continue;
          ++count;
          fill(from, bytes, count);
          const Ticket ticket = member.put(peer, 0, WireMember::kData, from, bytes);
          if (bytes <= copied) {
            EXPECT_TRUE(member.wire().completed(ticket)) << bytes << " of " << copied;
          }
          member.flush();
          if (!member.until_completed(ticket)) return;
          std::memset(from, 0xDD, bytes);
          member.signal(peer, 0, count);
          if (!member.until_signal(peer, 0, count)) return;
          EXPECT_EQ(first_wrong(member.memory() + WireMember::kData, bytes, count), bytes) << bytes << " bytes";
          member.barrier();
        }
      }
    }
    EXPECT_TRUE(member.wire().completed(0));
  });
}

TEST_P(WireSuite, ManyRegionsComeAndGo) {
  run({0, 1}, [](WireMember& member) {
    const int peer = 1 - member.rank();
    constexpr std::size_t kRegions = 40;
    constexpr std::size_t kBytes = 3 * 4096;
    const auto own = static_cast<unsigned>(member.rank());
    std::byte* pages = static_cast<std::byte*>(
        ::mmap(nullptr, kRegions * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(pages, MAP_FAILED);
    std::uint64_t count = 0;
    for (int round = 0; round < 3; ++round) {
      std::vector<Region> regions;
      for (std::size_t r = 0; r < kRegions; ++r) {
        regions.push_back(member.exchange(pages + r * kBytes, kBytes)[static_cast<std::size_t>(peer)]);
      }
      std::vector<std::byte> from(kBytes);
      for (std::size_t r = 0; r < kRegions; ++r) {
        fill(from.data(), kBytes, r + 100 * own + static_cast<unsigned>(round));
        const Ticket ticket = member.put(peer, 0, regions[r], 0, from.data(), kBytes);
        member.signal(peer, 0, ++count);
        if (!member.until_completed(ticket)) return;
      }
      if (!member.until_signal(peer, 0, count)) return;
      for (std::size_t r = 0; r < kRegions; ++r) {
        EXPECT_EQ(first_wrong(pages + r * kBytes, kBytes, r + 100 * (1 - own) + static_cast<unsigned>(round)), kBytes)
            << "region " << r << ", round " << round;
      }
      for (const Region region : regions) member.wire().detach(region);
      member.barrier();
      for (std::size_t r = 0; r < kRegions; ++r) member.wire().unexpose(pages + r * kBytes);
      // The same addresses, other memory.
      ASSERT_NE(
          ::mmap(pages, kRegions * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
          MAP_FAILED);
    }
    ::munmap(pages, kRegions * kBytes);
  });
}

/// Two ranks share a host and are not linked; all other pairs send to each other, on all lanes at once.
TEST_P(WireSuite, PeersAndLanesDoNotMixUp) {
  run({0, 1, 0, 2}, [](WireMember& member) {
    constexpr std::size_t kBytes = 20'000;
    const int lanes = member.job().lanes;
    const auto at = [&](int sender, int lane) {
      return WireMember::kData + static_cast<unsigned>(sender * lanes + lane) * (kBytes + 8);
    };
    const auto number = [](int from, int to, int lane, std::uint64_t round) {
      return static_cast<unsigned>(from * 64 + to * 16 + lane) * 1000 + round;
    };
    for (std::uint64_t round = 1; round <= 50; ++round) {
      std::vector<std::vector<std::byte>> sources;
      std::vector<Ticket> tickets;
      for (int lane = 0; lane < lanes; ++lane) {
        for (const int peer : member.linked()) {
          sources.emplace_back(kBytes);
          fill(sources.back().data(), kBytes, number(member.rank(), peer, lane, round));
          for (std::size_t done = 0; done < kBytes;) {  // in pieces that grow
            const std::size_t piece = std::min(done + 1, kBytes - done);
            tickets.push_back(
                member.put(peer, lane, at(member.rank(), lane) + done, sources.back().data() + done, piece));
            done += piece;
          }
        }
      }
      for (int lane = 0; lane < lanes; ++lane) {
        for (const int peer : member.linked()) member.signal(peer, lane, round, round + static_cast<unsigned>(lane));
      }
      for (int lane = 0; lane < lanes; ++lane) {
        for (const int peer : member.linked()) {
          if (!member.until_signal(peer, lane, round)) return;
          const std::uint64_t tag = round + static_cast<unsigned>(lane);
          if (!member.until("its tag", [&] { return member.cell(peer, lane).tag.load() == tag; })) return;
          EXPECT_EQ(first_wrong(member.memory() + at(peer, lane), kBytes, number(peer, member.rank(), lane, round)),
                    kBytes)
              << "from " << peer << ", lane " << lane << ", round " << round;
        }
      }
      for (const Ticket ticket : tickets) {
        if (!member.until_completed(ticket)) return;
      }
      member.barrier();
    }
  });
}

/// Among few and among many: a wire may look at those in another way.
TEST_P(WireSuite, WhoIsNotWaitedForIsHeardAllTheSame) {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 1, 2}, std::vector<int>{0, 1, 2, 0, 1, 2, 0}}) {
    run(hosts, [](WireMember& member) {
      const std::vector<int> peers = member.linked();
      for (std::uint64_t round = 1; round <= 50; ++round) {
        for (const int peer : peers) member.signal(peer, 0, round);
        for (const int peer : peers) {
          const int another = peer == peers.back() ? peers.front() : peers.back();
          const auto come = [&] { return member.cell(peer, 0).count.load(std::memory_order_acquire) >= round; };
          if (!member.until("a signal of rank " + std::to_string(peer), come, another)) return;
        }
      }
    });
  }
}

TEST_P(WireSuite, AnyThreadMayCall) {
  run({0, 1}, [](WireMember& member) {
    const int peer = 1 - member.rank();
    constexpr int kThreads = 4;
    constexpr std::size_t kBytes = 30'000;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        // Lanes are shared, cells and memory are not.
        const int lane = t % member.job().lanes;
        const std::size_t cell_at = 4096 + static_cast<unsigned>(t) * sizeof(SignalCell);
        const auto& cell = *reinterpret_cast<SignalCell*>(member.memory() + cell_at);
        const std::size_t at = WireMember::kData + static_cast<unsigned>(t) * kBytes;
        std::vector<std::byte> from(kBytes);
        for (std::uint64_t round = 1; round <= 200; ++round) {
          const std::size_t bytes = round % 8 == 0 ? kBytes : 1 + round * 7 % 500;
          fill(from.data(), bytes, round * 16 + static_cast<unsigned>(t));
          const Ticket ticket = member.put(peer, lane, at, from.data(), bytes);
          member.must(member.wire().signal(peer, lane, member.region(peer), cell_at, 2 * round, round, Flush::now));
          const auto come = [&] {
            if (t == 3) member.wire().sleep(100us);
            return cell.count.load(std::memory_order_acquire) >= 2 * round;
          };
          if (!member.until("a signal for thread " + std::to_string(t), come)) return;
          EXPECT_EQ(first_wrong(member.memory() + at, bytes, round * 16 + static_cast<unsigned>(t)), bytes);
          if (!member.until_completed(ticket)) return;
          // The peer's answer: it has looked.
          const std::size_t answer_at = cell_at + 1024;
          member.must(member.wire().signal(peer, lane, member.region(peer), answer_at, round, 0, Flush::now));
          const auto& answer = *reinterpret_cast<SignalCell*>(member.memory() + answer_at);
          const auto answered = [&] { return answer.count.load(std::memory_order_acquire) >= round; };
          if (!member.until("an answer for thread " + std::to_string(t), answered)) return;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

/// Rank 2 ends without a word; its peers send to it and to each other.
TEST_P(WireSuite, ADeadPeerBreaksItsLinkAlone) {
  if (ranks() == Members::threads) GTEST_SKIP() << "a thread cannot die alone";
  if (!maker().tells_of_death) GTEST_SKIP() << "it does not tell of a peer's death";
  const auto body = [](WireMember& member) {
    const auto lives = [](int m) { return m < 2; };
    std::vector<std::byte> large(std::size_t{1} << 20);
    for (const int peer : member.linked()) member.signal(peer, 0, 1);
    for (const int peer : member.linked()) {
      if (!member.until_signal(peer, 0, 1)) return;
    }
    member.board().cell(0).fetch_add(1);
    if (!lives(member.rank())) {
      // The others have all that they want of this one.
      member.until("the others", [&] { return member.board().cell(0).load() == 3; });
      ::raise(SIGKILL);
    }
    const int other = 1 - member.rank();
    Ticket last = 0;
    std::uint64_t count = 1;
    member.until("the dead peer's link to break", [&] {
      if (!member.wire().broken(2).ok()) return true;
      Ticket ticket = 0;
      ++count;
      if (count % 64 == 0 && member.wire().completed(last) &&
          member.wire().put(2, 0, member.region(2), WireMember::kData, large.data(), large.size(), ticket).ok()) {
        last = ticket;
      }
      (void)member.wire().signal(2, 0, member.region(2), member.cell_at(member.rank(), 0), count, 0, Flush::now);
      return false;
    });
    const Status why = member.wire().broken(2);
    EXPECT_THAT(why.message(), ::testing::HasSubstr("rank 2"));
    Ticket ticket = 0;
    EXPECT_FALSE(member.wire().put(2, 0, member.region(2), WireMember::kData, large.data(), 8, ticket).ok());
    EXPECT_FALSE(
        member.wire().signal(2, 0, member.region(2), member.cell_at(member.rank(), 0), count, 0, Flush::now).ok());
    member.until_completed(last);
    EXPECT_TRUE(member.wire().broken(other).ok()) << member.wire().broken(other).message();
    for (std::uint64_t round = 2; round <= 100; ++round) {
      fill(large.data(), 50'000, round);
      const Ticket sent = member.put(other, 0, WireMember::kData, large.data(), 50'000);
      member.signal(other, 0, round);
      if (!member.until_signal(other, 0, round) || !member.until_completed(sent)) return;
      EXPECT_EQ(first_wrong(member.memory() + WireMember::kData, 50'000, round), 50'000u);
      member.signal(other, 1 % member.job().lanes, round);
      if (member.job().lanes > 1 && !member.until_signal(other, 1, round)) return;
    }
    EXPECT_TRUE(member.wire().broken(other).ok());
    // The last meeting is of three; this one stands in for the dead one.
    if (member.rank() == 0) member.board().write(2, "");
  };
  run_job(maker(), ranks(), {0, 1, 2}, body, 2);
}

/// After a failed call: the source is written over at once. What arrives is what was put, or the link has broken.
TEST_P(WireSuite, WhatIsLetGoIsTheOwnersAgain) {
  if (!maker().tells_of_death) GTEST_SKIP() << "what cannot tell of a death is not ended by force either";
  run({0, 1}, [](WireMember& member) {
    constexpr std::size_t kBytes = std::size_t{7} << 20;
    enum { lies_there, has_broken };
    if (member.rank() == 0) {
      std::vector<std::byte> source(kBytes);
      fill(source.data(), kBytes, 5);
      const Ticket ticket = member.put(1, 0, WireMember::kData, source.data(), kBytes);
      member.signal(1, 0, 1);
      member.wire().release_source(ticket);
      EXPECT_TRUE(member.wire().completed(ticket));
      std::fill(source.begin(), source.end(), std::byte{0xEE});
      member.wire().release_source(ticket);
      if (!member.wire().broken(1).ok()) member.board().cell(has_broken).store(1);
      member.board().cell(lies_there).store(1);
    } else {
      // It takes nothing before.
      const auto end = std::chrono::steady_clock::now() + kTestTimeout;
      while (member.board().cell(lies_there).load() == 0 && !member.board().stopped()) {
        std::this_thread::yield();
        ASSERT_LT(std::chrono::steady_clock::now(), end);
      }
      const auto come = [&] { return member.cell(0, 0).count.load(std::memory_order_acquire) == 1; };
      const auto ended = [&] { return come() || member.board().cell(has_broken).load() != 0; };
      if (!member.until("what was released", ended) || !come()) return;
      EXPECT_EQ(first_wrong(member.memory() + WireMember::kData, kBytes, 5), kBytes);
    }
  });
}

TEST_P(WireSuite, SleepEndsWhenSomethingComes) {
  run({0, 1}, [](WireMember& member) {
    for (std::uint64_t round = 1; round <= 50; ++round) {
      if (member.rank() == 0) {
        const auto asleep = [&] { return member.board().cell(0).load() == round; };
        if (!member.until("the other to lie down", asleep)) return;
        member.signal(1, 0, round);
        if (!member.until_signal(1, 0, round)) return;
      } else {
        member.board().cell(0).store(round);
        // A sleep of an hour would end the test: kTestTimeout is less.
        const auto come = [&] {
          if (member.cell(0, 0).count.load(std::memory_order_acquire) >= round) return true;
          member.wire().sleep(1h);
          return false;
        };
        if (!member.until("what ends the sleep", come)) return;
        member.signal(0, 0, round);
      }
    }
  });
}

TEST_P(WireSuite, SleepTakesItsTime) {
  run({0, 1}, [](WireMember& member) {
    member.signal(1 - member.rank(), 0, 1);
    if (!member.until_signal(1 - member.rank(), 0, 1)) return;
    member.barrier();
    // What the thread has used says little on a busy machine, where one that never sleeps gets little too; how often it
    // has slept says more.
    const auto usage = [] {
      rusage used{};
      ::getrusage(RUSAGE_THREAD, &used);
      return used;
    };
    const auto seconds = [](const rusage& used) {
      return std::chrono::seconds(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
             std::chrono::microseconds(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    };
    const auto begin = std::chrono::steady_clock::now();
    const rusage before = usage();
    long has_sleepers = 0;
    for (; std::chrono::steady_clock::now() - begin < 1s; ++has_sleepers) {
      (void)member.wire().progress();
      member.wire().sleep(100ms);
    }
    const rusage after = usage();
    EXPECT_GE(2 * (after.ru_nvcsw - before.ru_nvcsw), has_sleepers);
    EXPECT_LT(seconds(after) - seconds(before), (std::chrono::steady_clock::now() - begin) / 4);
  });
}

}  // namespace tutti::testing
