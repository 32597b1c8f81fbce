// A job of several wires for the tests: its ranks are threads of one process or processes, and meet at a board in
// shared memory. The test's own process never opens a wire: libraries of networks do not like to be forked.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/collectives/processes.h"
#include "transport/transport.h"
#include "transport/wire/wire.h"

namespace tutti::testing {

using namespace std::chrono_literals;
using transport::Flush;
using transport::Region;
using transport::SignalCell;
using transport::Ticket;
using transport::Wire;
using transport::WireJob;

/// A parameter of the suite: one wire, and where it can run.
struct WireMaker {
  std::string name;
  std::function<Result<std::unique_ptr<Wire>>(const WireJob&)> open;
  std::function<std::string()> missing = [] { return std::string(); };  // why it cannot run here; empty: it can
  Environment environment = {};                                         // of the ranks
  int lanes = 2;
  bool tells_of_death = true;
  std::function<void(int host)> enter = [](int) {};  // what brings a rank that is a process to its host
};
inline void PrintTo(const WireMaker& maker, std::ostream* out) { *out << maker.name; }

/// Nothing that is waited for here takes so long, however busy the machine is.
inline constexpr auto kTestTimeout = 60s;

/// A failure prints it; TUTTI_TEST_SEED repeats it.
inline unsigned wire_seed() {
  const char* given = std::getenv("TUTTI_TEST_SEED");
  return given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device{}();
}

/// Memory that all ranks of a job share, to meet in. Made before they start.
class Board {
 public:
  static constexpr int kMostMembers = 7;
  static constexpr std::size_t kMostText = Wire::kMostAddressBytes;

  Board() {
    void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    shared_ = static_cast<Shared*>(memory);  // zeros are its first state
  }
  ~Board() { ::munmap(shared_, sizeof(Shared)); }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  /// Cells that a test may use as it likes; zero at first.
  std::atomic<std::uint64_t>& cell(int i) { return shared_->cells[i]; }

  /// Ends all waits: something has failed.
  void stop() { shared_->stopped.store(1); }
  bool stopped() const { return shared_->stopped.load() != 0; }

  void write(int own, const std::string& text) {
    Member& rank = shared_->ranks[own];
    const std::uint64_t turn = rank.turn.load();
    if (text.size() > kMostText) std::abort();
    rank.bytes[turn % 2] = text.size();
    std::memcpy(rank.text[turn % 2], text.data(), text.size());
    rank.turn.store(turn + 1);
  }
  bool have_written(int own, int ranks) const {
    const std::uint64_t turn = shared_->ranks[own].turn.load();
    for (int m = 0; m < ranks; ++m) {
      if (shared_->ranks[m].turn.load() < turn) return false;
    }
    return true;
  }
  std::string text_of(int own, int rank) const {
    const std::uint64_t turn = shared_->ranks[own].turn.load() - 1;
    return {shared_->ranks[rank].text[turn % 2], shared_->ranks[rank].bytes[turn % 2]};
  }

 private:
  struct Member {
    std::atomic<std::uint64_t> turn;
    std::size_t bytes[2];  // a rank is at most one turn ahead of another that still reads
    char text[2][kMostText];
  };
  struct Shared {
    std::atomic<std::uint64_t> stopped;
    std::atomic<std::uint64_t> cells[16];
    Member ranks[kMostMembers];
  };
  Shared* shared_;
};

/// One rank of the job: its wire, and memory that the others may write.
class WireMember {
 public:
  static constexpr std::size_t kMemory = std::size_t{8} << 20;
  static constexpr std::size_t kData = std::size_t{64} << 10;  // before it: cells

  WireMember(Board& board, WireJob job) : board_(board), job_(std::move(job)) {
    memory_ =
        static_cast<std::byte*>(::mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory_ == MAP_FAILED) std::abort();
  }
  ~WireMember() {
    wire_.reset();
    ::munmap(memory_, kMemory);
  }
  WireMember(const WireMember&) = delete;
  WireMember& operator=(const WireMember&) = delete;

  /// Opens the wire and gets to know the others. REQUIRES: all do so. Failures are reported; then false.
  bool meet(const WireMaker& maker) {
    Result<std::unique_ptr<Wire>> opened = maker.open(job_);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    if (!opened.ok()) return false;
    wire_ = opened.take();
    EXPECT_LE(wire_->address().size(), Wire::kMostAddressBytes);
    const Status met = wire_->meet(gather(wire_->address()));
    EXPECT_TRUE(met.ok()) << met.message();
    if (!met.ok()) return false;
    regions_ = exchange(memory_, kMemory);
    return !::testing::Test::HasFailure();
  }

  int rank() const { return job_.rank; }
  const WireJob& job() const { return job_; }
  Board& board() { return board_; }
  Wire& wire() { return *wire_; }
  std::byte* memory() { return memory_; }
  Region region(int rank) const { return regions_[static_cast<std::size_t>(rank)]; }
  std::vector<int> linked() const {
    std::vector<int> ranks;
    for (int m = 0; m < job_.size(); ++m) {
      if (job_.linked(m)) ranks.push_back(m);
    }
    return ranks;
  }

  /// Returns the offset of the cell of (sender, lane) in the memory of each rank.
  std::size_t cell_at(int sender, int lane) const {
    return static_cast<std::size_t>(sender * job_.lanes + lane) * sizeof(SignalCell);
  }
  SignalCell& cell(int sender, int lane) { return *reinterpret_cast<SignalCell*>(memory_ + cell_at(sender, lane)); }

  /// Exposes memory, and attaches that of all linked ranks; by rank. REQUIRES: all do so.
  std::vector<Region> exchange(std::byte* base, std::size_t bytes) {
    const Result<std::string> key = wire_->expose(base, bytes);
    EXPECT_TRUE(key.ok()) << key.status().message();
    if (key.ok()) {
      EXPECT_LE(key.value().size(), Wire::kMostKeyBytes);
    }
    const std::vector<std::string> keys = gather(key.ok() ? key.value() : std::string());
    std::vector<Region> regions(keys.size());
    for (const int m : linked()) {
      const Result<Region> region = wire_->attach(m, keys[static_cast<std::size_t>(m)], bytes);
      EXPECT_TRUE(region.ok()) << region.status().message();
      EXPECT_TRUE(!region.ok() || region.value() != 0);
      if (region.ok()) regions[static_cast<std::size_t>(m)] = region.value();
    }
    return regions;
  }

  /// Returns the texts of all ranks, by rank.
  std::vector<std::string> gather(const std::string& own_text) {
    board_.write(rank(), own_text);
    until("all ranks' texts on the board", [&] { return board_.have_written(rank(), job_.size()); });
    std::vector<std::string> texts;
    for (int m = 0; m < job_.size(); ++m) texts.push_back(board_.text_of(rank(), m));
    return texts;
  }
  void barrier() { gather(""); }

  /// Moves the wire until `come`, as one who waits for `awaited` alone where that is a rank. False (and a failure):
  /// it did not, or the job has been stopped.
  bool until(const std::string& what, const std::function<bool()>& come, int awaited = -1) {
    const auto end = std::chrono::steady_clock::now() + kTestTimeout;
    while (!come()) {
      const bool moved = wire_ != nullptr && (awaited < 0 ? wire_->progress() : wire_->progress_for(awaited));
      if (!moved) std::this_thread::yield();
      if (board_.stopped() || std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "rank " << rank() << " waits in vain for: " << what;
        board_.stop();
        return false;
      }
    }
    return true;
  }

  bool until_signal(int sender, int lane, std::uint64_t count) {
    return until("signal " + std::to_string(count) + " of rank " + std::to_string(sender),
                 [&] { return cell(sender, lane).count.load(std::memory_order_acquire) >= count; });
  }

  // What must succeed; a failure is reported.
  Ticket put(int rank, int lane, Region to, std::size_t at, const void* from, std::size_t bytes) {
    Ticket ticket = 0;
    must(wire_->put(rank, lane, to, at, from, bytes, ticket));
    return ticket;
  }
  Ticket put(int rank, int lane, std::size_t at, const void* from, std::size_t bytes) {
    return put(rank, lane, region(rank), at, from, bytes);
  }
  void signal(int rank, int lane, std::uint64_t count, std::uint64_t tag = 0, Flush flush = Flush::now) {
    must(wire_->signal(rank, lane, region(rank), cell_at(job_.rank, lane), count, tag, flush));
  }
  void flush() { must(wire_->flush()); }
  bool until_idle() {
    return until("the wire to be idle", [&] { return wire_->idle(linked()); });
  }
  bool until_completed(Ticket ticket) {
    return until("a put to be completed", [&] { return wire_->completed(ticket); });
  }
  void must(const Status& status) {
    EXPECT_TRUE(status.ok()) << "rank " << rank() << ": " << status.message();
    if (!status.ok()) board_.stop();
  }

 private:
  Board& board_;
  const WireJob job_;
  std::byte* memory_ = nullptr;
  std::unique_ptr<Wire> wire_;
  std::vector<Region> regions_;
};

enum class Members { threads, processes };

namespace internal {

inline void take_part(const WireMaker& maker, Board& board, const WireJob& job,
                      const std::function<void(WireMember&)>& body) {
  WireMember member(board, job);
  if (member.meet(maker)) {
    body(member);
    if (!board.stopped()) member.barrier();  // no wire ends while a peer still uses it
  }
  if (::testing::Test::HasFailure()) board.stop();
}

inline std::string failed_here() { return ::testing::Test::HasFailure() ? "a check failed (see above)" : ""; }

}  // namespace internal

/// Runs `body` for every rank; `hosts` as in WireJob. `killed`: the rank that ends itself by SIGKILL.
inline void run_job(const WireMaker& maker, Members kind, const std::vector<int>& hosts,
                    const std::function<void(WireMember&)>& body, int killed = -1) {
  Board board;
  std::vector<WireJob> jobs;
  for (int m = 0; m < static_cast<int>(hosts.size()); ++m) {
    WireJob job;
    job.rank = m;
    job.hosts = hosts;
    for (std::size_t other = 0; other < hosts.size(); ++other) job.names.push_back("rank " + std::to_string(other));
    job.lanes = maker.lanes;
    jobs.push_back(job);
  }
  std::vector<tutti::testing::internal::ChildProcess> children;
  if (kind == Members::processes) {
    for (const WireJob& job : jobs) {
      children.push_back(tutti::testing::internal::start_child(maker.environment, [&] {
        maker.enter(hosts[static_cast<std::size_t>(job.rank)]);
        internal::take_part(maker, board, job, body);
        return internal::failed_here();
      }));
    }
  } else {
    children.push_back(tutti::testing::internal::start_child(maker.environment, [&] {
      std::vector<std::thread> threads;
      for (const WireJob& job : jobs) threads.emplace_back([&] { internal::take_part(maker, board, job, body); });
      for (std::thread& thread : threads) thread.join();
      return internal::failed_here();
    }));
  }
  for (std::size_t c = 0; c < children.size(); ++c) {
    const Outcome outcome = tutti::testing::internal::end_of(children[c]);
    EXPECT_EQ(outcome.said, "") << "child " << c;
    EXPECT_EQ(outcome.error, static_cast<int>(c) == killed ? "ended by signal 9" : "") << "child " << c;
  }
}

}  // namespace tutti::testing
