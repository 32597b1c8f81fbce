// What a rank waits for before it may go away: that the network has taken what it sent.
#include "collectives/executor/host/net_puts.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "collectives/executor/wait/wait.h"
#include "transport/hosts/hosts.h"
#include "transport/inproc/inproc.h"

namespace tutti::executor::net_puts_test {
namespace {

using namespace std::chrono_literals;
using namespace transport;

/// A network that takes nothing.
class FullWire final : public Wire {
 public:
  const WireInfo& info() const override { return info_; }
  const std::string& address() const override { return info_.name; }
  Status meet(const std::vector<std::string>&) override { return {}; }
  Result<std::string> expose(std::byte*, std::size_t) override { return std::string(); }
  void unexpose(std::byte*) override {}
  Result<Region> attach(int, std::string_view, std::size_t) override { return Region{1}; }
  void detach(Region) override {}
  Status put(int rank, int, Region, std::size_t, const void*, std::size_t, Ticket& ticket) override {
    ticket = next_ticket;
    return broken(rank);
  }
  Status signal(int, int, Region, std::size_t, std::uint64_t, std::uint64_t, Flush) override { return {}; }
  bool completed(Ticket ticket) override { return ticket == 0; }
  void release_source(Ticket ticket) override { released.push_back(ticket); }
  Status flush() override { return {}; }
  bool idle(std::span<const int>) override { return false; }
  bool progress() override {
    if (beat) beat();
    return false;
  }
  void sleep(std::chrono::nanoseconds) override {
    ++sleeps;
    progress();
  }
  Status broken(int rank) override { return rank == 1 ? of_one : Status(); }
  std::string obstacle(int rank) override { return rank == 1 ? on_the_way : ""; }

  std::function<void()> beat;
  Status of_one;           // of the link to rank 1
  std::string on_the_way;  // to it
  Ticket next_ticket = 0;
  std::vector<Ticket> released;
  int sleeps = 0;

 private:
  const WireInfo info_{"full", "eth7", 4096, 1, 1};
};

/// Rank 0 of three on three hosts, whose two peers are this test; with `neighbour` rank 1 is on the host of rank 0.
class NetPutsTest : public ::testing::Test {
 protected:
  explicit NetPutsTest(bool neighbour = false) {
    WindowSizes sizes{3, 2, 4096, kCacheLine, 16 << 10};
    own_ = make_shared_window({1, 1, exposed_bytes(sizes), 0, 0});
    HostsTransport::Setup setup;
    setup.sizes = sizes;
    // A window that counts for this rank only.
    setup.local = std::make_unique<InprocTransport>(
        0, sizes,
        std::vector<SharedWindow>{
            make_shared_window(sizes), neighbour ? make_shared_window(sizes) : SharedWindow(), {}});
    setup.wire = wire_;
    setup.world_ranks = {0, 1, 2};
    setup.own = own_.get();
    setup.keys.resize(3);
    setup.alive = [this](int) { return alive_; };
    setup.server_alive = [this] { return server_alive_; };
    setup.marks = std::make_shared<LeaveMarks>(own_.get(), sizes);
    setup.send_leave_notice = [marks = setup.marks](const std::vector<int>&, bool came) {
      marks->set(0, came);  // it has been passed on
      return Status();
    };
    setup.keep = [](const HostsTransport::Gone&) {};
    transport_ = HostsTransport::connect(std::move(setup)).take();
    WaitOptions options;
    options.timeout = 50ms;
    if (neighbour) options.spin = 0ns;
    health_.emplace(*transport_->window(0).board);
    waiter_.emplace(
        *transport_, *health_, 0, [](int rank) { return "rank " + std::to_string(rank); }, options);
  }
  ~NetPutsTest() override { alive_ = false; }

  transport::NetLinks& links() { return *transport_->net_links(); }
  void write_to(int rank) { (void)links().signal(rank, 0, &links().mirror_at(rank).pulse, 0, 0, Flush::now); }
  void beat(int rank) { transport_->window(rank).board->pulse.beats.fetch_add(1); }

  bool alive_ = true;
  bool server_alive_ = true;
  std::shared_ptr<FullWire> wire_ = std::make_shared<FullWire>();
  SharedWindow own_;
  std::unique_ptr<HostsTransport> transport_;
  std::optional<Health> health_;
  std::optional<Waiter> waiter_;
};

class NetPutsAndANeighbourTest : public NetPutsTest {
 protected:
  NetPutsAndANeighbourTest() : NetPutsTest(true) {}
};

/// Its signal would not end that: two ranks on each of two hosts were half as fast where they slept so by turns.
TEST_F(NetPutsAndANeighbourTest, WhoWaitsForANeighbourDoesNotSleepOnTheNetworkAtOnce) {
  for (const int peer : {1, 2}) {
    int looks = 0;
    // One at once, 20 quick ones, one before a pause: so there is one pause.
    EXPECT_TRUE(waiter_->until([&] { return ++looks > 22; }, peer).ok());
    EXPECT_EQ(wire_->sleeps, peer == 1 ? 0 : 1) << "rank " << peer;
  }
}

TEST_F(NetPutsTest, ADeadlineNamesTheNetworkAndNotTheOwnRank) {
  wire_->beat = [this] {
    beat(1);
    beat(2);
  };
  const Status status = NetPuts(links(), *waiter_).finish();
  EXPECT_EQ(status.code(), Code::timeout);
  EXPECT_EQ(status.message(),
            "the network (full, eth7) has not taken what was sent to it; rank 0 waited 0.1 s in a send, and timed out");
}

TEST_F(NetPutsTest, ADeadlineNamesWhoStandsStill) {
  for (const int rank : {1, 2}) write_to(rank);
  wire_->beat = [this] { beat(1); };
  const Status status = NetPuts(links(), *waiter_).finish();
  EXPECT_EQ(status.message(), "rank 2 has not taken what was sent to it; rank 0 waited 0.1 s in a send, and timed out");
}

/// And does not name those to whom nothing was sent.
TEST_F(NetPutsTest, ADeadlineSaysWhatIsOnTheWay) {
  write_to(1);
  wire_->on_the_way = "no connection to 10.0.0.9:41234";
  const Status status = NetPuts(links(), *waiter_).finish();
  EXPECT_EQ(status.message(),
            "rank 1 has not taken what was sent to it; rank 0 waited 0.1 s in a send, and timed out; rank 1: no "
            "connection to "
            "10.0.0.9:41234");
}

/// Their buffers may be freed when the call returns.
TEST_F(NetPutsTest, WhatIsStillReadAfterAFailureIsTakenFromTheWire) {
  server_alive_ = false;
  NetPuts puts(links(), *waiter_);
  const std::byte source[8] = {};
  wire_->next_ticket = 4;
  ASSERT_TRUE(puts.put(2, 0, Region{1}, 0, source, sizeof source).ok());
  // A part of it was taken before the link broke.
  wire_->next_ticket = 5;
  wire_->of_one = Status(Code::peer_died, "the link to rank 1 has broken");
  EXPECT_FALSE(puts.put(1, 0, Region{1}, 0, source, sizeof source).ok());
  puts.drop();
  EXPECT_EQ(wire_->released, (std::vector<Ticket>{4, 5}));
}

/// A signal may come before the record of its call, by another rail; who dies in between is not out of step.
TEST_F(NetPutsTest, WhoDiesBeforeItsRecordHasComeHasDied) {
  alive_ = false;
  const Status status = waiter_->check_peer(1, 5);
  EXPECT_EQ(status.code(), Code::peer_died);
  EXPECT_EQ(status.message(), "rank 1 died");
}

TEST_F(NetPutsTest, WhoseLinkBreaksBeforeItsRecordHasComeIsNotOutOfStep) {
  server_alive_ = false;
  wire_->of_one = Status(Code::peer_died, "the link to rank 1 has broken");
  EXPECT_EQ(waiter_->check_peer(1, 5).message(), "rank 1 died, or is cut off: the link to rank 1 has broken");
}

/// The bootstrap server would have told of a death.
TEST_F(NetPutsTest, ABrokenLinkIsNoDeath) {
  wire_->of_one = Status(Code::peer_died, "the link to rank 1 has broken");
  EXPECT_EQ(waiter_->lost(1, wire_->of_one).code(), Code::system);
}

/// A failure of this side is no death, whichever rank could report one.
TEST_F(NetPutsTest, WhatBrokeALinkFromThisSideStaysWhatItIs) {
  server_alive_ = false;
  wire_->of_one = Status(Code::memory_limit, "the link to rank 1 has broken: Out of memory");
  const Status status = waiter_->lost(1, wire_->of_one);
  EXPECT_EQ(status.code(), Code::memory_limit);
  EXPECT_THAT(status.message(), ::testing::EndsWith("rank 1: the link to rank 1 has broken: Out of memory"));
}

TEST_F(NetPutsTest, ABrokenLinkIsADeathWithoutAServer) {
  server_alive_ = false;
  waiter_->set_timeout(30s);  // else that would come first
  wire_->of_one = Status(Code::peer_died, "the link to rank 1 has broken");
  const Status status = NetPuts(links(), *waiter_).finish();
  EXPECT_EQ(status.code(), Code::peer_died);
  EXPECT_EQ(status.message(), "rank 1 died, or is cut off: the link to rank 1 has broken");
}

/// A rank that shares the dead rank's host knows better.
TEST_F(NetPutsTest, WhatARemoteRankReportsComesBeforeABrokenLink) {
  server_alive_ = false;
  wire_->of_one = Status(Code::peer_died, "the link to rank 1 has broken");
  wire_->beat = [this] {
    transport::Board& mirror = *transport_->window(2).board;
    std::string("rank 1 died in barrier(), its call 7").copy(mirror.failure_text, sizeof mirror.failure_text - 1);
    mirror.failure_code.store(static_cast<std::uint64_t>(Code::peer_died), std::memory_order_release);
  };
  EXPECT_EQ(waiter_->lost(1, wire_->of_one).message(), "rank 1 died in barrier(), its call 7");
}

}  // namespace
}  // namespace tutti::executor::net_puts_test
