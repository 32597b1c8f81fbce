// What every transport must do, whatever moves the bytes: one suite, instantiated for each.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "collectives/job/process_job.h"
#include "collectives/job/thread_job.h"
#include "tests/collectives/must.h"
#include "tests/collectives/processes.h"
#include "transport/bootstrap/bootstrap.h"

namespace tutti::transport::conformance_test {
namespace {

constexpr std::int64_t kTestTimeoutNs = 30'000'000'000;

/// The arguments of a rank's body.
struct Bench {
  Transport& transport;
  int rank;
  int ranks;
  Exchange exchange;  // also: until all ranks are here

  void meet() const { MUST(exchange({0}).ok()); }
};

using Body = std::function<void(const Bench&)>;

WindowSizes small_sizes(int ranks) {
  WindowSizes sizes;
  sizes.ranks = ranks;
  sizes.lanes = 2;
  sizes.scratch_half = 4096;
  sizes.published_half = 2048;
  sizes.mailbox = 8192;
  return sizes;
}

/// Runs `body` on ranks that share one transport's kind of links; each rank's error text.
using Run = std::vector<std::string> (*)(int ranks, const Body& body);

std::string name_of_rank(int rank) { return "rank " + std::to_string(rank); }

std::vector<std::string> run_inproc(int ranks, const Body& body) {
  ThreadJob job(ranks);
  const WindowSizes sizes = small_sizes(ranks);
  const std::vector<std::uint64_t> windows = job.make_windows(ranks, sizes).take();
  std::vector<int> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  std::barrier meeting(ranks);
  std::vector<std::uint64_t> words(members.size());
  std::vector<std::string> errors(members.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const Exchange given = [&](const Words&) -> Result<Words> { return windows; };
      const Exchange exchange = [&, rank](const Words& mine) -> Result<Words> {
        words[static_cast<std::size_t>(rank)] = mine[0];
        meeting.arrive_and_wait();
        std::vector<std::uint64_t> all = words;
        meeting.arrive_and_wait();
        return all;
      };
      try {
        const auto transport = job.connect(0, members, rank, name_of_rank, sizes, given).take();
        body({*transport, rank, ranks, exchange});
      } catch (const std::exception& error) {
        // The others may be in an exchange, which no rank can leave.
        fmt::print(stderr, "rank {}: {}\n", rank, error.what());
        std::abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::vector<std::string> run_shm(int ranks, const Body& body) {
  std::unique_ptr<sockets::Listener> listener = sockets::Listener::open_local().take();
  std::vector<testing::internal::ChildProcess> children;
  for (int rank = 0; rank < ranks; ++rank) {
    children.push_back(testing::internal::start_child({}, [&, rank] {
      bootstrap::Config config;
      config.rank = rank;
      config.size = ranks;
      config.server = listener->endpoint();
      config.secret = bootstrap::Secret::from_text("conformance");
      config.deadline = std::chrono::seconds(30);
      if (rank == 0) {
        config.listener = std::move(listener);
      } else {
        listener.reset();
      }
      auto met = bootstrap::Bootstrap::connect(std::move(config));
      if (!met.ok()) throw std::runtime_error(met.status().message());
      const auto job = ProcessJob::create(met.take(), std::chrono::seconds(30)).take();
      std::vector<int> members(static_cast<std::size_t>(ranks));
      std::iota(members.begin(), members.end(), 0);
      const Exchange exchange = job->bootstrap_exchange();
      const auto transport = job->connect(0, members, rank, name_of_rank, small_sizes(ranks), exchange).take();
      body({*transport, rank, ranks, exchange});
      return std::string();
    }));
  }
  listener.reset();
  std::vector<std::string> errors;
  for (const auto& child : children) errors.push_back(testing::internal::end_of(child).error);
  return errors;
}

struct Kind {
  const char* name;
  Run run;
};

class TransportConformance : public ::testing::TestWithParam<Kind> {
 protected:
  void run(int ranks, const Body& body) {
    const std::vector<std::string> errors = GetParam().run(ranks, body);
    for (std::size_t r = 0; r < errors.size(); ++r) EXPECT_EQ(errors[r], "") << "rank " << r;
  }
};

bool is_filled_with(const std::byte* at, std::size_t bytes, int value) {
  return std::all_of(at, at + bytes, [value](std::byte b) { return std::to_integer<int>(b) == value; });
}

/// Waits until a counter has come to `wanted`.
void await(const std::atomic<std::uint64_t>& count, std::uint64_t wanted) {
  for (const std::int64_t since = now_ns(); count.load(std::memory_order_acquire) < wanted;) {
    MUST(now_ns() - since < kTestTimeoutNs);
    std::this_thread::yield();
  }
}

TEST_P(TransportConformance, WindowsBeginZeroedAlignedAndAsLargeAsSaid) {
  run(3, [](const Bench& b) {
    MUST(b.transport.capabilities().load_store);
    MUST(b.transport.sizes().bytes() == small_sizes(b.ranks).bytes());
    const WindowSizes& sizes = b.transport.sizes();
    for (int r = 0; r < b.ranks; ++r) {
      const Window& w = b.transport.window(r);
      MUST(reinterpret_cast<std::uintptr_t>(w.board) % kCacheLine == 0);
      MUST(reinterpret_cast<std::uintptr_t>(w.scratch) % kCacheLine == 0);
      MUST(reinterpret_cast<std::uintptr_t>(w.published) % kCacheLine == 0);
      MUST(reinterpret_cast<std::uintptr_t>(w.mailboxes) % kCacheLine == 0);
      MUST(is_filled_with(reinterpret_cast<const std::byte*>(w.board), sizes.bytes(), 0));
    }
    b.meet();
  });
}

TEST_P(TransportConformance, WhatARankWritesToAWindowEveryRankSees) {
  run(3, [](const Bench& b) {
    const WindowSizes& sizes = b.transport.sizes();
    const std::size_t part = sizes.scratch_half / static_cast<std::size_t>(b.ranks) / 64 * 64;
    for (int r = 0; r < b.ranks; ++r) {  // each rank its part of each window's scratch, the owner the rest
      std::memset(b.transport.window(r).scratch + static_cast<std::size_t>(b.rank) * part, 10 * r + b.rank + 1, part);
    }
    const Window& own = b.transport.window(b.rank);
    std::memset(own.published, 100 + b.rank, 2 * sizes.published_half);
    std::memset(own.mailboxes, 200 + b.rank, static_cast<std::size_t>(b.ranks) * sizes.mailbox);
    b.meet();
    for (int r = 0; r < b.ranks; ++r) {
      const Window& w = b.transport.window(r);
      for (int writer = 0; writer < b.ranks; ++writer) {
        MUST(is_filled_with(w.scratch + static_cast<std::size_t>(writer) * part, part, 10 * r + writer + 1));
      }
      MUST(is_filled_with(w.published, 2 * sizes.published_half, 100 + r));
      MUST(is_filled_with(w.mailboxes, static_cast<std::size_t>(b.ranks) * sizes.mailbox, 200 + r));
      MUST(w.board->failure_code.load() == 0);  // nothing ran over from the parts behind it
    }
    b.meet();
  });
}

TEST_P(TransportConformance, ASignalIsBehindTheDataBeforeIt) {
  run(3, [](const Bench& b) {
    const WindowSizes& sizes = b.transport.sizes();
    const auto ranks = static_cast<std::size_t>(b.ranks);
    constexpr std::uint64_t kTurns = 2000;
    for (std::uint64_t turn = 1; turn <= kTurns; ++turn) {
      for (int step = 1; step < b.ranks; ++step) {
        const int to = (b.rank + step) % b.ranks;
        std::byte* slot = b.transport.window(to).scratch + static_cast<std::size_t>(b.rank) * 256;
        const std::uint64_t value = turn * ranks + static_cast<std::size_t>(b.rank);
        std::memcpy(slot + (turn % 2) * 128, &value, sizeof(value));
        SignalCell& cell = b.transport.window(to).signals[sizes.signal_index(b.rank, 1, 0)];
        cell.tag.store(value, std::memory_order_relaxed);
        cell.count.store(turn, std::memory_order_release);
      }
      for (int step = 1; step < b.ranks; ++step) {
        const int from = (b.rank + step) % b.ranks;
        const SignalCell& cell = b.transport.window(b.rank).signals[sizes.signal_index(from, 1, 0)];
        await(cell.count, turn);
        std::uint64_t value = 0;
        std::memcpy(&value, b.transport.window(b.rank).scratch + from * 256 + (turn % 2) * 128, sizeof(value));
        MUST(value == turn * ranks + static_cast<std::size_t>(from));
        MUST(cell.tag.load(std::memory_order_relaxed) >= value);
      }
    }
    b.meet();
  });
}

TEST_P(TransportConformance, RegisteredMemoryIsReachedByPointer) {
  run(3, [](const Bench& b) {
    for (const std::size_t bytes : {std::size_t{64}, std::size_t{3'000'001}}) {
      auto* memory = static_cast<std::byte*>(allocate(bytes));
      std::memset(memory, b.rank + 1, bytes);
      const Handle mine = b.transport.handle_of(memory + 5, bytes - 5);
      MUST(b.transport.reach(b.rank, mine) == memory + 5);
      const std::vector<std::uint64_t> handles = b.exchange({mine}).take();
      for (int r = 0; r < b.ranks; ++r) {
        const std::byte* there = b.transport.reach(r, handles[static_cast<std::size_t>(r)]);
        MUST(there != nullptr);
        MUST(is_filled_with(there, bytes - 5, r + 1));
      }
      b.meet();
      const int next = (b.rank + 1) % b.ranks;
      b.transport.reach(next, handles[static_cast<std::size_t>(next)])[0] = std::byte{77};
      b.meet();
      MUST(memory[5] == std::byte{77});
      deallocate(memory);
    }
  });
}

TEST_P(TransportConformance, PlainMemoryIsReachedByPointerOrByReadAndWriteOrNotAtAll) {
  run(2, [](const Bench& b) {
    const Capabilities& can = b.transport.capabilities();
    std::vector<std::byte> memory(1'234'567, std::byte(b.rank + 1));
    const std::vector<std::uint64_t> handles = b.exchange({b.transport.handle_of(memory.data(), memory.size())}).take();
    const int peer = 1 - b.rank;
    const Handle theirs = handles[static_cast<std::size_t>(peer)];
    MUST((b.transport.reach(peer, theirs) != nullptr) == can.any_pointer);
    MUST(!is_registered(theirs));
    if (can.any_pointer) MUST(is_filled_with(b.transport.reach(peer, theirs), memory.size(), peer + 1));
    if (can.cross_memory) {
      std::vector<std::byte> got(memory.size() - 3);
      MUST(b.transport.read(peer, theirs, 3, got.data(), got.size()).ok());
      MUST(is_filled_with(got.data(), got.size(), peer + 1));
    }
    b.meet();
    if (can.cross_memory) {
      const std::vector<std::byte> news(1000, std::byte{99});
      MUST(b.transport.write(peer, news.data(), theirs, 10, news.size()).ok());
      b.meet();
      MUST(is_filled_with(memory.data() + 10, 1000, 99));
      MUST(is_filled_with(memory.data(), 10, b.rank + 1));
      MUST(is_filled_with(memory.data() + 1010, memory.size() - 1010, b.rank + 1));
      std::byte one{};
      const Status bad = b.transport.read(peer, Handle{64}, 0, &one, 1);  // no process maps the first page
      MUST(bad.code() == Code::system);
    }
    b.meet();
  });
}

TEST_P(TransportConformance, ARankIsAliveUntilItsProcessEnds) {
  run(3, [](const Bench& b) {
    for (int r = 0; r < b.ranks; ++r) MUST(b.transport.alive(r));
    b.meet();
  });
}

TEST(TransportConformanceOfProcesses, ADeadRankIsNotAliveAndItsWindowStays) {
  const std::vector<std::string> errors = run_shm(3, [](const Bench& b) {
    std::memset(b.transport.window(b.rank).scratch, b.rank + 1, 64);
    b.meet();
    if (b.rank == 1) ::_exit(0);
    for (const std::int64_t since = now_ns(); b.transport.alive(1);) {
      MUST(now_ns() - since < kTestTimeoutNs);
      std::this_thread::yield();
    }
    MUST(is_filled_with(b.transport.window(1).scratch, 64, 2));
    MUST(b.transport.alive(2 - b.rank));
    // The bootstrap server has lost a rank too, so the two that are left meet in a window.
    std::atomic<std::uint64_t>& mine = b.transport.window(0).board->survivors.alive[b.rank == 0 ? 0 : 1];
    mine.store(1, std::memory_order_release);
    await(b.transport.window(0).board->survivors.alive[b.rank == 0 ? 1 : 0], 1);
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_EQ(errors[2], "");
}

INSTANTIATE_TEST_SUITE_P(Transports, TransportConformance,
                         ::testing::Values(Kind{"shm", run_shm}, Kind{"inproc", run_inproc}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti::transport::conformance_test
