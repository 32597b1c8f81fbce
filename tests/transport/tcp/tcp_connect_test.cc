// Connections that are not there yet, or never will be: who puts does not wait, other links go on, and what is put
// meanwhile arrives when there is one.
#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/transport/sockets/full_listener.h"
#include "tests/transport/tcp/tcp_fixture.h"

namespace tutti::testing::tcp_connect_test {
namespace {

using ::testing::HasSubstr;

/// The frame of a signal, and no more. The other end has been welcomed, or has welcomed.
std::uint64_t next_signal(TcpFixture& tcp, const Fd& fd) {
  Frame frame;
  EXPECT_TRUE(tcp.read(fd, &frame, sizeof frame));
  EXPECT_EQ(frame.kind, Kind::signal);
  return frame.bytes_or_count;
}

TEST(TcpConnect, WhoDoesNotAnswerStallsNoOtherLink) {
  const FullListener silent;
  std::unique_ptr<Wire> wires[2];  // of ranks 0 and 2
  for (int i = 0; i < 2; ++i) wires[i] = TcpWire::open(job_of(2 * i, 3)).take();
  const std::vector<std::string> addresses{wires[0]->address(), address_text(silent.endpoint(), {}),
                                           wires[1]->address()};
  for (const auto& wire : wires) ASSERT_TRUE(wire->meet(addresses).ok());
  alignas(64) std::byte memory[4096] = {};
  const std::string key = wires[1]->expose(memory, sizeof memory).take();
  const Region there = wires[0]->attach(2, key, sizeof memory).take();
  const Region nowhere = wires[0]->attach(1, "0 65536", 65536).take();

  const std::vector<std::byte> large(65536);
  Ticket ticket = 0;
  EXPECT_TRUE(wires[0]->put(1, 0, nowhere, 0, large.data(), large.size(), ticket).ok());
  EXPECT_TRUE(wires[0]->signal(1, 0, nowhere, 0, 1, 0, Flush::now).ok());
  const auto& cell = *reinterpret_cast<SignalCell*>(memory);
  for (std::uint64_t count = 1; count <= 1000; ++count) {
    ASSERT_TRUE(wires[0]->signal(2, 0, there, 0, count, 0, Flush::now).ok());
    const auto end = std::chrono::steady_clock::now() + kTestTimeout;
    while (cell.count.load(std::memory_order_acquire) < count) {
      for (const auto& wire : wires) (void)wire->progress();
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "signal " << count;
    }
  }
  EXPECT_TRUE(wires[0]->idle(std::array{2}));
  EXPECT_FALSE(wires[0]->idle(std::array{1}));
  EXPECT_FALSE(wires[0]->completed(ticket));
  EXPECT_TRUE(wires[0]->broken(1).ok()) << "the kernel has not given up";
  EXPECT_EQ(wires[0]->obstacle(2), "");
  EXPECT_THAT(wires[0]->obstacle(1),
              HasSubstr("no connection to " + silent.endpoint().text() + " by TCP over lo within "));
}

TEST(TcpConnect, WhatIsPutMeanwhileArrives) {
  FullListener full;
  TcpFixture tcp(0, full.endpoint());
  ASSERT_TRUE(tcp.signal(1).ok());
  ASSERT_TRUE(tcp.signal(2).ok());
  EXPECT_NE(tcp.wire().obstacle(1), "");
  full.make_room();  // the kernel asks again after a second
  Fd fd;
  tcp.until("the wire's connection", [&] {
    tcp.wire().sleep(10ms);
    fd = full.accept();
    return static_cast<bool>(fd);
  });
  Hello hello;
  ASSERT_TRUE(tcp.read(fd, &hello, sizeof hello));
  EXPECT_EQ(hello.magic, Hello::kMagic);
  const char welcome = static_cast<char>(Answer::welcome);
  tcp.send(fd, &welcome, 1);
  EXPECT_EQ(next_signal(tcp, fd), 1u);
  EXPECT_EQ(next_signal(tcp, fd), 2u);
  EXPECT_EQ(tcp.wire().obstacle(1), "");
}

/// The new connection wakes a rank that sleeps.
TEST(TcpConnect, AConnectionEndsASleep) {
  FullListener full;
  TcpFixture tcp(0, full.endpoint());
  ASSERT_TRUE(tcp.signal(1).ok());
  full.make_room();
  tcp.until("the wire's connection", [&] {
    if (tcp.wire().obstacle(1).empty()) return true;
    tcp.wire().sleep(kTestTimeout);  // to miss it would take all the time there is
    return false;
  });
}

/// A firewall may let connections through in one direction alone; and the number that decides between two connections
/// does so between connections that are there.
TEST(TcpConnect, TheOthersConnectionIsTakenInPlaceOfOneThatIsStillBeingMade) {
  for (const int own : {0, 1}) {
    SCOPED_TRACE("the wire is rank " + std::to_string(own));
    const FullListener silent;
    TcpFixture tcp(own, silent.endpoint());
    ASSERT_TRUE(tcp.signal(7).ok());
    const Fd fd = tcp.join();
    EXPECT_EQ(next_signal(tcp, fd), 7u);
    EXPECT_EQ(tcp.wire().obstacle(1 - own), "");
    EXPECT_TRUE(tcp.wire().broken(1 - own).ok());
  }
}

TEST(TcpConnect, ARefusalBreaksTheLinkAndNamesTheAddress) {
  const sockets::Endpoint left = sockets::Listener::open({"127.0.0.1", 0}).take()->endpoint();
  TcpFixture tcp(0, left);
  (void)tcp.signal(1);
  tcp.until("the link to break", [&] { return !tcp.wire().broken(1).ok(); });
  EXPECT_EQ(tcp.wire().broken(1).message(), "the link to rank 1 by TCP over lo has broken: no process answers at " +
                                                left.text() + ": Connection refused");
  EXPECT_FALSE(tcp.signal(2).ok());
  EXPECT_TRUE(tcp.wire().idle(std::array{1}));
}

}  // namespace
}  // namespace tutti::testing::tcp_connect_test
