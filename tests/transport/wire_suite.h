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

#include "tests/transport/wire_bytes.h"
#include "tests/transport/wire_job.h"

namespace tutti::testing {

class WireSuite : public ::testing::TestWithParam<std::tuple<WireMaker, Members>> {
 protected:
  const WireMaker& maker() const { return std::get<0>(GetParam()); }
  Members members() const { return std::get<1>(GetParam()); }
  void SetUp() override {
    const Outcome missing = in_child(maker().missing, maker().environment);
    ASSERT_EQ(missing.error, "");
    if (!missing.said.empty()) GTEST_SKIP() << "tutti-test: not run: " << missing.said;
  }
  void run(const std::vector<int>& hosts, const std::function<void(Party&)>& body) const {
    run_job(maker(), members(), hosts, body);
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
  run({0, 1}, [](Party& party) {
    const transport::WireInfo& info = party.wire().info();
    EXPECT_NE(info.name, "");
    EXPECT_NE(info.devices, "");
    EXPECT_GT(info.alpha_us, 0);
    EXPECT_GT(info.gb_per_s, 0);
    EXPECT_TRUE(party.wire().broken(1 - party.own()).ok());
  });
}

TEST_P(WireSuite, NeedsNobody) {
  run({0}, [](Party& party) {
    party.post();
    (void)party.wire().progress();
    party.wire().doze(1ms);
  });
}

TEST_P(WireSuite, PutsOfAnySizeArriveWhole) {
  run({0, 1, 2}, [](Party& party) {
    const std::size_t sizes[] = {0, 1, 63, 64, 65, 4096, 4097, 65536 + 3, std::size_t{1} << 20};
    constexpr std::size_t kRoom = std::size_t{2} << 20;  // of each sender
    std::vector<std::byte> own(kRoom);
    std::uint64_t count = 0;
    for (const std::size_t bytes : sizes) {
      for (const std::size_t shift : {0, 1, 3}) {
        const int lane = static_cast<int>(count) % party.job().lanes;
        ++count;
        std::memset(party.memory() + Party::kData, 0xEE, 3 * kRoom);
        party.barrier();
        std::byte* from = own.data() + 3 - shift;
        fill(from, bytes, count * 10 + static_cast<unsigned>(party.own()));
        const std::size_t at = Party::kData + static_cast<unsigned>(party.own()) * kRoom + 64 + shift;
        for (const int peer : party.linked()) {
          party.put(peer, lane, at, from, bytes);
          party.signal(peer, lane, count);
        }
        for (const int peer : party.linked()) {
          if (!party.until_signal(peer, lane, count)) return;
          const std::byte* there = party.memory() + Party::kData + static_cast<unsigned>(peer) * kRoom + 64 + shift;
          EXPECT_EQ(first_wrong(there, bytes, count * 10 + static_cast<unsigned>(peer)), bytes) << "shift " << shift;
          EXPECT_EQ(there[-1], std::byte{0xEE});
          EXPECT_EQ(there[bytes], std::byte{0xEE}) << bytes << " bytes, shift " << shift;
        }
        party.barrier();
      }
    }
  });
}

/// Rounds of random puts and signals, held back or not; at the receiver a thread that does nothing else looks for the
/// signal, so that it sees also what is written too early.
TEST_P(WireSuite, WhoSeesASignalSeesWhatWasPutBefore) {
  const unsigned seed = wire_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  run({0, 1}, [seed](Party& party) {
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
      return Party::kData + static_cast<unsigned>(k % kSlots) * kSlot + put * (kSlot / kPuts) + put;
    };
    const auto tag_of = [](int k) { return static_cast<std::uint64_t>(k) * 977 + 1; };
    const std::size_t early_at = 32 << 10;  // a cell of its own, for the signals behind the first puts
    if (party.own() == 0) {
      std::vector<std::vector<std::byte>> sources(kSlots * kPuts, std::vector<std::byte>(64 << 10));
      std::vector<Ticket> tickets(kSlots * kPuts);
      for (int k = 0; k < kRounds; ++k) {
        if (k >= kSlots && !party.until_signal(1, 0, static_cast<unsigned>(k - kSlots + 1))) return;
        const Round round = make_round(k);
        for (int i = 0; i < round.puts; ++i) {
          const std::size_t s = static_cast<std::size_t>(k % kSlots) * kPuts + static_cast<std::size_t>(i);
          if (!party.until_settled(tickets[s])) return;
          fill(sources[s].data(), round.bytes[i], static_cast<unsigned>(k) * kPuts + static_cast<unsigned>(i));
          tickets[s] = party.put(1, 0, slot_at(k, static_cast<std::size_t>(i)), sources[s].data(), round.bytes[i]);
          if (i == 0 && round.first_signal_later) {
            party.must(party.wire().signal(1, 0, party.region(1), early_at, static_cast<unsigned>(k + 1), tag_of(k),
                                           Push::later));
          }
        }
        party.signal(1, 0, static_cast<unsigned>(k + 1), tag_of(k));
      }
      party.until_signal(1, 0, kRounds);
    } else {
      std::atomic<int> checked{0};
      std::atomic<bool> give_up{false};
      std::thread checker([&] {
        SignalCell& cell = party.cell(0, 0);
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
            const std::byte* there = party.memory() + slot_at(k, static_cast<std::size_t>(i));
            EXPECT_EQ(first_wrong(there, round.bytes[i], static_cast<unsigned>(k) * kPuts + static_cast<unsigned>(i)),
                      round.bytes[i])
                << "round " << k << ", put " << i << " of " << round.puts;
          }
          if (round.puts > 0 && round.first_signal_later) {
            const auto* early = reinterpret_cast<const SignalCell*>(party.memory() + early_at);
            EXPECT_GE(early->count.load(std::memory_order_acquire), static_cast<unsigned>(k + 1));
          }
          checked.store(k + 1, std::memory_order_release);
          if (::testing::Test::HasFailure()) break;
        }
      });
      int answered = 0;
      party.until("all rounds to be checked", [&] {
        const int now = checked.load(std::memory_order_acquire);
        if (now > answered) party.signal(0, 0, static_cast<unsigned>(answered = now));
        return answered == kRounds || ::testing::Test::HasFailure();
      });
      give_up = true;
      checker.join();
      if (::testing::Test::HasFailure()) party.board().stop();
    }
  });
}

TEST_P(WireSuite, WhoSeesAWholeNoteSeesWhatWasPutBefore) {
  const unsigned seed = wire_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  run({0, 1}, [seed](Party& party) {
    const int peer = 1 - party.own();
    constexpr std::size_t kNote = 48 << 10;  // where it is written
    std::mt19937 random(seed);               // both sides make the same rounds
    std::vector<std::byte> from(64 << 10);
    for (std::uint64_t round = 1; round <= 500; ++round) {
      const std::size_t bytes = random() % 8 == 0 ? random() % from.size() : random() % 600;
      std::vector<std::byte> note(16 + random() % (Wire::kMostNoteBytes - 15));
      const bool later = random() % 4 == 0;
      fill(from.data(), bytes, 2 * round);
      fill(note.data(), note.size(), 2 * round + 1);
      const Ticket ticket = party.put(peer, 0, Party::kData, from.data(), bytes);
      party.must(party.wire().note(peer, 0, party.region(peer), kNote, note.data(), note.size(),
                                   later ? Push::later : Push::now));
      std::fill(note.begin(), note.end(), std::byte{0});  // it is free at once
      if (later) party.post();
      const auto whole = [&] { return first_wrong(party.memory() + kNote, note.size(), 2 * round + 1) == note.size(); };
      if (!party.until("the note", whole) || !party.until_settled(ticket)) return;
      EXPECT_EQ(first_wrong(party.memory() + Party::kData, bytes, 2 * round), bytes);
      EXPECT_EQ(party.memory()[kNote + Wire::kMostNoteBytes], std::byte{0});
      party.barrier();
      if (::testing::Test::HasFailure()) return party.board().stop();
    }
  });
}

TEST_P(WireSuite, WhatIsHeldBackGoesOutAtPost) {
  run({0, 1}, [](Party& party) {
    const int peer = 1 - party.own();
    for (std::uint64_t round = 1; round <= 20; ++round) {
      const std::size_t bytes = round % 2 == 0 ? 100 : 300'000;
      std::vector<std::byte> from(bytes);
      fill(from.data(), bytes, round);
      party.put(peer, 0, Party::kData, from.data(), bytes);
      party.signal(peer, 0, round, round, Push::later);
      if (round % 3 == 0) party.put(peer, 0, Party::kData + (1 << 20), from.data(), 8);
      party.post();
      if (!party.until_signal(peer, 0, round)) return;
      EXPECT_EQ(first_wrong(party.memory() + Party::kData, bytes, round), bytes);
      party.barrier();
    }
  });
}

/// Whoever has its puts settled and finds the wire idle may go away and compute: nothing waits for its calls any more.
TEST_P(WireSuite, WhoHasPostedMayGoAway) {
  run({0, 1}, [](Party& party) {
    const int peer = 1 - party.own();
    const int lane = 1 % party.job().lanes;
    std::vector<std::byte> from(std::size_t{1} << 20);
    for (std::uint64_t round = 1; round <= 12; ++round) {  // in the first one connections may be made
      const std::size_t bytes = round % 3 == 1 ? 0 : round % 3 == 2 ? 3000 : from.size();
      if (party.own() == 0) {
        fill(from.data(), bytes, round);
        const Ticket ticket = party.put(peer, 0, Party::kData, from.data(), bytes);
        party.signal(peer, 0, round, round, Push::later);
        for (std::uint64_t i = 0; i < 300; ++i) party.signal(peer, lane, round * 1000 + i);
        party.post();
        if (!party.until_settled(ticket) || !party.until_idle()) return;
        const auto end = std::chrono::steady_clock::now() + kTestTimeout / 2;
        while (party.board().note(0).load() < round && std::chrono::steady_clock::now() < end) {
          std::this_thread::yield();  // computing
        }
        EXPECT_EQ(party.board().note(0).load(), round) << "still under way";
        if (::testing::Test::HasFailure()) return party.board().stop();
      } else {
        if (!party.until_signal(peer, 0, round) || !party.until_signal(peer, lane, round * 1000 + 299)) return;
        EXPECT_EQ(first_wrong(party.memory() + Party::kData, bytes, round), bytes);
        party.board().note(0).store(round);
      }
    }
  });
}

TEST_P(WireSuite, TheSourceIsFreeOnceAPutIsSettled) {
  run({0, 1}, [](Party& party) {
    const int peer = 1 - party.own();
    const std::size_t copied = party.wire().info().copied;
    const std::size_t sizes[] = {1, 64, copied, copied + 1, 8192, 100'000, std::size_t{1} << 20};
    // Sources in plain memory, and in memory that is exposed.
    std::vector<std::byte> plain(std::size_t{1} << 20);
    std::byte* exposed = party.memory() + Party::kMemory - (std::size_t{2} << 20);
    std::uint64_t count = 0;
    for (int round = 0; round < 10; ++round) {
      for (const std::size_t bytes : sizes) {
        for (std::byte* from : {plain.data(), exposed}) {
          if (bytes > plain.size()) continue;
          ++count;
          fill(from, bytes, count);
          const Ticket ticket = party.put(peer, 0, Party::kData, from, bytes);
          if (bytes <= copied) {
            EXPECT_TRUE(party.wire().settled(ticket)) << bytes << " of " << copied;
          }
          party.post();
          if (!party.until_settled(ticket)) return;
          std::memset(from, 0xDD, bytes);
          party.signal(peer, 0, count);
          if (!party.until_signal(peer, 0, count)) return;
          EXPECT_EQ(first_wrong(party.memory() + Party::kData, bytes, count), bytes) << bytes << " bytes";
          party.barrier();
        }
      }
    }
    EXPECT_TRUE(party.wire().settled(0));
  });
}

TEST_P(WireSuite, ManyRegionsComeAndGo) {
  run({0, 1}, [](Party& party) {
    const int peer = 1 - party.own();
    constexpr std::size_t kRegions = 40;
    constexpr std::size_t kBytes = 3 * 4096;
    const auto own = static_cast<unsigned>(party.own());
    std::byte* pages = static_cast<std::byte*>(
        ::mmap(nullptr, kRegions * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(pages, MAP_FAILED);
    std::uint64_t count = 0;
    for (int round = 0; round < 3; ++round) {
      std::vector<Region> regions;
      for (std::size_t r = 0; r < kRegions; ++r) {
        regions.push_back(party.exchange(pages + r * kBytes, kBytes)[static_cast<std::size_t>(peer)]);
      }
      std::vector<std::byte> from(kBytes);
      for (std::size_t r = 0; r < kRegions; ++r) {
        fill(from.data(), kBytes, r + 100 * own + static_cast<unsigned>(round));
        const Ticket ticket = party.put(peer, 0, regions[r], 0, from.data(), kBytes);
        party.signal(peer, 0, ++count);
        if (!party.until_settled(ticket)) return;
      }
      if (!party.until_signal(peer, 0, count)) return;
      for (std::size_t r = 0; r < kRegions; ++r) {
        EXPECT_EQ(first_wrong(pages + r * kBytes, kBytes, r + 100 * (1 - own) + static_cast<unsigned>(round)), kBytes)
            << "region " << r << ", round " << round;
      }
      for (const Region region : regions) party.wire().detach(region);
      party.barrier();
      for (std::size_t r = 0; r < kRegions; ++r) party.wire().conceal(pages + r * kBytes);
      // The same addresses, other memory.
      ASSERT_NE(
          ::mmap(pages, kRegions * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
          MAP_FAILED);
    }
    ::munmap(pages, kRegions * kBytes);
  });
}

/// Two members share a host and are not linked; everybody else sends to everybody, on all lanes at once.
TEST_P(WireSuite, PeersAndLanesDoNotMixUp) {
  run({0, 1, 0, 2}, [](Party& party) {
    constexpr std::size_t kBytes = 20'000;
    const int lanes = party.job().lanes;
    const auto at = [&](int sender, int lane) {
      return Party::kData + static_cast<unsigned>(sender * lanes + lane) * (kBytes + 8);
    };
    const auto number = [](int from, int to, int lane, std::uint64_t round) {
      return static_cast<unsigned>(from * 64 + to * 16 + lane) * 1000 + round;
    };
    for (std::uint64_t round = 1; round <= 50; ++round) {
      std::vector<std::vector<std::byte>> sources;
      std::vector<Ticket> tickets;
      for (int lane = 0; lane < lanes; ++lane) {
        for (const int peer : party.linked()) {
          sources.emplace_back(kBytes);
          fill(sources.back().data(), kBytes, number(party.own(), peer, lane, round));
          for (std::size_t done = 0; done < kBytes;) {  // in pieces that grow
            const std::size_t piece = std::min(done + 1, kBytes - done);
            tickets.push_back(party.put(peer, lane, at(party.own(), lane) + done, sources.back().data() + done, piece));
            done += piece;
          }
        }
      }
      for (int lane = 0; lane < lanes; ++lane) {
        for (const int peer : party.linked()) party.signal(peer, lane, round, round + static_cast<unsigned>(lane));
      }
      for (int lane = 0; lane < lanes; ++lane) {
        for (const int peer : party.linked()) {
          if (!party.until_signal(peer, lane, round)) return;
          const std::uint64_t tag = round + static_cast<unsigned>(lane);
          if (!party.until("its tag", [&] { return party.cell(peer, lane).tag.load() == tag; })) return;
          EXPECT_EQ(first_wrong(party.memory() + at(peer, lane), kBytes, number(peer, party.own(), lane, round)),
                    kBytes)
              << "from " << peer << ", lane " << lane << ", round " << round;
        }
      }
      for (const Ticket ticket : tickets) {
        if (!party.until_settled(ticket)) return;
      }
      party.barrier();
    }
  });
}

/// Among few and among many: a wire may look at those in another way.
TEST_P(WireSuite, WhoIsNotWaitedForIsHeardAllTheSame) {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 1, 2}, std::vector<int>{0, 1, 2, 0, 1, 2, 0}}) {
    run(hosts, [](Party& party) {
      const std::vector<int> peers = party.linked();
      for (std::uint64_t round = 1; round <= 50; ++round) {
        for (const int peer : peers) party.signal(peer, 0, round);
        for (const int peer : peers) {
          const int another = peer == peers.back() ? peers.front() : peers.back();
          const auto come = [&] { return party.cell(peer, 0).count.load(std::memory_order_acquire) >= round; };
          if (!party.until("a signal of member " + std::to_string(peer), come, another)) return;
        }
      }
    });
  }
}

TEST_P(WireSuite, AnyThreadMayCall) {
  run({0, 1}, [](Party& party) {
    const int peer = 1 - party.own();
    constexpr int kThreads = 4;
    constexpr std::size_t kBytes = 30'000;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        // Lanes are shared, cells and memory are not.
        const int lane = t % party.job().lanes;
        const std::size_t cell_at = 4096 + static_cast<unsigned>(t) * sizeof(SignalCell);
        const auto& cell = *reinterpret_cast<SignalCell*>(party.memory() + cell_at);
        const std::size_t at = Party::kData + static_cast<unsigned>(t) * kBytes;
        std::vector<std::byte> from(kBytes);
        for (std::uint64_t round = 1; round <= 200; ++round) {
          const std::size_t bytes = round % 8 == 0 ? kBytes : 1 + round * 7 % 500;
          fill(from.data(), bytes, round * 16 + static_cast<unsigned>(t));
          const Ticket ticket = party.put(peer, lane, at, from.data(), bytes);
          party.must(party.wire().signal(peer, lane, party.region(peer), cell_at, 2 * round, round, Push::now));
          const auto come = [&] {
            if (t == 3) party.wire().doze(100us);
            return cell.count.load(std::memory_order_acquire) >= 2 * round;
          };
          if (!party.until("a signal for thread " + std::to_string(t), come)) return;
          EXPECT_EQ(first_wrong(party.memory() + at, bytes, round * 16 + static_cast<unsigned>(t)), bytes);
          if (!party.until_settled(ticket)) return;
          // The peer's answer: it has looked.
          const std::size_t answer_at = cell_at + 1024;
          party.must(party.wire().signal(peer, lane, party.region(peer), answer_at, round, 0, Push::now));
          const auto& answer = *reinterpret_cast<SignalCell*>(party.memory() + answer_at);
          const auto answered = [&] { return answer.count.load(std::memory_order_acquire) >= round; };
          if (!party.until("an answer for thread " + std::to_string(t), answered)) return;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

/// Member 2 ends without a word; its peers send to it and to each other.
TEST_P(WireSuite, ADeadPeerBreaksItsLinkAlone) {
  if (members() == Members::threads) GTEST_SKIP() << "a thread cannot die alone";
  if (!maker().tells_of_death) GTEST_SKIP() << "it does not tell of a peer's death";
  const auto body = [](Party& party) {
    const auto lives = [](int m) { return m < 2; };
    std::vector<std::byte> large(std::size_t{1} << 20);
    for (const int peer : party.linked()) party.signal(peer, 0, 1);
    for (const int peer : party.linked()) {
      if (!party.until_signal(peer, 0, 1)) return;
    }
    party.board().note(0).fetch_add(1);
    if (!lives(party.own())) {
      // The others have all that they want of this one.
      party.until("the others", [&] { return party.board().note(0).load() == 3; });
      ::raise(SIGKILL);
    }
    const int other = 1 - party.own();
    Ticket last = 0;
    std::uint64_t count = 1;
    party.until("the dead peer's link to break", [&] {
      if (!party.wire().broken(2).ok()) return true;
      Ticket ticket = 0;
      ++count;
      if (count % 64 == 0 && party.wire().settled(last) &&
          party.wire().put(2, 0, party.region(2), Party::kData, large.data(), large.size(), ticket).ok()) {
        last = ticket;
      }
      (void)party.wire().signal(2, 0, party.region(2), party.cell_at(party.own(), 0), count, 0, Push::now);
      return false;
    });
    const Status why = party.wire().broken(2);
    EXPECT_THAT(why.message(), ::testing::HasSubstr("member 2"));
    Ticket ticket = 0;
    EXPECT_FALSE(party.wire().put(2, 0, party.region(2), Party::kData, large.data(), 8, ticket).ok());
    EXPECT_FALSE(party.wire().signal(2, 0, party.region(2), party.cell_at(party.own(), 0), count, 0, Push::now).ok());
    party.until_settled(last);
    EXPECT_TRUE(party.wire().broken(other).ok()) << party.wire().broken(other).message();
    for (std::uint64_t round = 2; round <= 100; ++round) {
      fill(large.data(), 50'000, round);
      const Ticket sent = party.put(other, 0, Party::kData, large.data(), 50'000);
      party.signal(other, 0, round);
      if (!party.until_signal(other, 0, round) || !party.until_settled(sent)) return;
      EXPECT_EQ(first_wrong(party.memory() + Party::kData, 50'000, round), 50'000u);
      party.signal(other, 1 % party.job().lanes, round);
      if (party.job().lanes > 1 && !party.until_signal(other, 1, round)) return;
    }
    EXPECT_TRUE(party.wire().broken(other).ok());
    // The last meeting is of three; this one stands in for the dead one.
    if (party.own() == 0) party.board().write(2, "");
  };
  run_job(maker(), members(), {0, 1, 2}, body, 2);
}

/// After a failed call: the source is written over at once. What arrives is what was put, or the link has broken.
TEST_P(WireSuite, WhatIsLetGoIsTheOwnersAgain) {
  if (!maker().tells_of_death) GTEST_SKIP() << "what cannot tell of a death is not ended by force either";
  run({0, 1}, [](Party& party) {
    constexpr std::size_t kBytes = std::size_t{7} << 20;
    enum { lies_there, has_broken };
    if (party.own() == 0) {
      std::vector<std::byte> source(kBytes);
      fill(source.data(), kBytes, 5);
      const Ticket ticket = party.put(1, 0, Party::kData, source.data(), kBytes);
      party.signal(1, 0, 1);
      party.wire().let_go(ticket);
      EXPECT_TRUE(party.wire().settled(ticket));
      std::fill(source.begin(), source.end(), std::byte{0xEE});
      party.wire().let_go(ticket);
      if (!party.wire().broken(1).ok()) party.board().note(has_broken).store(1);
      party.board().note(lies_there).store(1);
    } else {
      // It takes nothing before.
      const auto end = std::chrono::steady_clock::now() + kTestTimeout;
      while (party.board().note(lies_there).load() == 0 && !party.board().stopped()) {
        std::this_thread::yield();
        ASSERT_LT(std::chrono::steady_clock::now(), end);
      }
      const auto come = [&] { return party.cell(0, 0).count.load(std::memory_order_acquire) == 1; };
      const auto ended = [&] { return come() || party.board().note(has_broken).load() != 0; };
      if (!party.until("what was let go", ended) || !come()) return;
      EXPECT_EQ(first_wrong(party.memory() + Party::kData, kBytes, 5), kBytes);
    }
  });
}

TEST_P(WireSuite, DozeEndsWhenSomethingComes) {
  run({0, 1}, [](Party& party) {
    for (std::uint64_t round = 1; round <= 50; ++round) {
      if (party.own() == 0) {
        const auto asleep = [&] { return party.board().note(0).load() == round; };
        if (!party.until("the other to lie down", asleep)) return;
        party.signal(1, 0, round);
        if (!party.until_signal(1, 0, round)) return;
      } else {
        party.board().note(0).store(round);
        // A doze of an hour would end the test: kTestTimeout is less.
        const auto come = [&] {
          if (party.cell(0, 0).count.load(std::memory_order_acquire) >= round) return true;
          party.wire().doze(1h);
          return false;
        };
        if (!party.until("what ends the doze", come)) return;
        party.signal(0, 0, round);
      }
    }
  });
}

TEST_P(WireSuite, DozeSleeps) {
  run({0, 1}, [](Party& party) {
    party.signal(1 - party.own(), 0, 1);
    if (!party.until_signal(1 - party.own(), 0, 1)) return;
    party.barrier();
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
    long dozes = 0;
    for (; std::chrono::steady_clock::now() - begin < 1s; ++dozes) {
      (void)party.wire().progress();
      party.wire().doze(100ms);
    }
    const rusage after = usage();
    EXPECT_GE(2 * (after.ru_nvcsw - before.ru_nvcsw), dozes);
    EXPECT_LT(seconds(after) - seconds(before), (std::chrono::steady_clock::now() - begin) / 4);
  });
}

}  // namespace tutti::testing
