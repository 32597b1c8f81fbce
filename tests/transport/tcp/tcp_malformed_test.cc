// What may come in by a connection that should not: unauthenticated peers are shut out, a rank that sends nonsense gets
// a sentence and a broken link, and nothing is written outside of what is exposed. And who may connect when.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/tcp/tcp_fixture.h"

namespace tutti::testing::tcp_malformed_test {
namespace {

const Frame kGood{Kind::signal, 0, 16, 41, 42};

TEST(TcpMalformed, WhatMakesNoSenseBreaksTheLink) {
  const std::pair<Frame, std::string> malformed[] = {
      {{static_cast<Kind>(7), 0, 0, 7, 7}, "what is no frame"},
      {{Kind::signal, 0, 8, 7, 7}, "a signal for place 8, which is no multiple of 16"},
      {{Kind::signal, 0, 4096, 7, 7}, "16 bytes for memory that this process has not exposed"},
      {{Kind::signal, 0, UINT64_MAX - 15, 7, 7}, "16 bytes for memory that this process has not exposed"},
      {{Kind::put, 0, 4088, 9, 0}, "9 bytes for memory that this process has not exposed"},
      {{Kind::put, 1, 0, 9, 0}, "9 bytes for memory that this process has not exposed"},
      {{Kind::put, 0, 1, UINT64_MAX, 0}, "18446744073709551615 bytes for memory that this process has not exposed"},
  };
  for (const auto& [frame, what] : malformed) {
    TcpFixture tcp(0);
    const Fd fd = tcp.connect();
    const Hello hello = tcp.hello();
    tcp.send(fd, &hello, sizeof hello);
    EXPECT_EQ(tcp.answer(fd), static_cast<char>(Answer::welcome));
    tcp.send(fd, &kGood, sizeof kGood);
    tcp.send(fd, &frame, sizeof frame);
    tcp.until("the link to break", [&] { return !tcp.wire().broken(1).ok(); });
    EXPECT_EQ(tcp.wire().broken(1).message(), "the link to rank 1 by TCP over lo has broken: it has sent " + what);
    EXPECT_EQ(tcp.count_at(16), 41u);
    EXPECT_TRUE(tcp.untouched_around());
  }
}

/// A rank that is dead for the bootstrap server may have sent more than has been read: a put whose first bytes have
/// come, and another. The caller of unexpose() frees it.
TEST(TcpMalformed, APutEndsWithItsMemory) {
  TcpFixture tcp(0);
  const Fd fd = tcp.join();
  const Frame put{Kind::put, 0, 0, TcpFixture::kBytes, 0};
  const std::vector<std::byte> bytes(TcpFixture::kBytes, std::byte{0x77});
  tcp.send(fd, &put, sizeof put);
  tcp.send(fd, bytes.data(), 100);
  tcp.until("the first bytes", [&] { return tcp.exposed()[99] == std::byte{0x77}; });
  tcp.wire().unexpose(tcp.exposed());
  std::fill_n(tcp.exposed(), TcpFixture::kBytes, std::byte{0x55});
  tcp.send(fd, bytes.data(), bytes.size() - 100);
  tcp.until("the link to break", [&] { return !tcp.wire().broken(1).ok(); });
  EXPECT_THAT(tcp.wire().broken(1).message(),
              ::testing::EndsWith("it has sent a part of a put for memory that is exposed no longer"));
  EXPECT_EQ(std::count(tcp.exposed(), tcp.exposed() + TcpFixture::kBytes, std::byte{0x55}),
            static_cast<std::ptrdiff_t>(TcpFixture::kBytes));
}

TEST(TcpMalformed, WhatComesLateFindsNoOtherMemory) {
  TcpFixture tcp(0);
  const Fd fd = tcp.join();
  tcp.wire().unexpose(tcp.exposed());
  EXPECT_NE(tcp.wire().expose(tcp.exposed(), TcpFixture::kBytes).take(), "0 4096");
  tcp.send(fd, &kGood, sizeof kGood);
  tcp.until("the link to break", [&] { return !tcp.wire().broken(1).ok(); });
  EXPECT_NE(tcp.count_at(16), 41u);
}

/// A client without the nonces that the ranks exchanged gets no answer, and does no harm.
TEST(TcpMalformed, UnauthenticatedClientsAreShutOut) {
  const std::pair<std::string, std::function<void(Hello&)>> unauthenticated[] = {
      {"another program", [](Hello& hello) { hello.magic[0] = 'G'; }},
      {"a number that there is not", [](Hello& hello) { hello.from = 2; }},
      {"this rank's number", [](Hello& hello) { hello.from = 0; }},
      {"for another rank", [](Hello& hello) { hello.to = 1; }},
      {"without this process's nonce", [](Hello& hello) { hello.of_receiver[31] ^= 1; }},
      {"without its rank's nonce", [](Hello& hello) { hello.of_sender[0] ^= 1; }},
  };
  TcpFixture tcp(0);
  for (const auto& [who, change] : unauthenticated) {
    SCOPED_TRACE(who);
    const Fd fd = tcp.connect();
    Hello hello = tcp.hello();
    change(hello);
    tcp.send(fd, &hello, sizeof hello);
    tcp.send(fd, &kGood, sizeof kGood);
    EXPECT_EQ(tcp.answer(fd), '-');
  }
  { const Fd silent = tcp.connect(); }
  EXPECT_TRUE(tcp.wire().broken(1).ok());
  EXPECT_NE(tcp.count_at(16), 41u);
  // The rank itself, a byte at a time.
  const Fd fd = tcp.connect();
  const Hello hello = tcp.hello();
  for (std::size_t i = 0; i < sizeof hello; ++i) {
    tcp.send(fd, reinterpret_cast<const char*>(&hello) + i, 1);
    (void)tcp.wire().progress();
  }
  EXPECT_EQ(tcp.answer(fd), static_cast<char>(Answer::welcome));
  for (std::size_t i = 0; i < sizeof kGood; ++i) {
    tcp.send(fd, reinterpret_cast<const char*>(&kGood) + i, 1);
    (void)tcp.wire().progress();
  }
  tcp.until("the signal", [&] { return tcp.count_at(16) == 41; });
  // A second one by the same name does not take its place.
  const Fd second = tcp.connect();
  tcp.send(second, &hello, sizeof hello);
  EXPECT_EQ(tcp.answer(second), '-');
  EXPECT_TRUE(tcp.wire().broken(1).ok());
}

/// Both have connected: that of the lower number stays.
TEST(TcpMalformed, OfTwoConnectionsOneStays) {
  for (const int own : {0, 1}) {
    SCOPED_TRACE("the wire is rank " + std::to_string(own));
    TcpFixture tcp(own);
    const std::array peer{1 - own};
    ASSERT_TRUE(tcp.signal(5).ok());
    EXPECT_FALSE(tcp.wire().idle(peer));
    Hello of_wire;
    const Fd its = tcp.accept(of_wire);
    EXPECT_EQ(of_wire.from, static_cast<std::uint32_t>(own));
    const Fd mine = tcp.connect();
    const Hello hello = tcp.hello();
    tcp.send(mine, &hello, sizeof hello);
    EXPECT_EQ(tcp.answer(mine), static_cast<char>(own == 0 ? Answer::other : Answer::welcome));
    const char welcome = static_cast<char>(Answer::welcome);
    if (own == 0) {
      tcp.send(its, &welcome, 1);
    } else {
      EXPECT_EQ(tcp.answer(its), '-');
    }
    Frame frame;
    ASSERT_TRUE(tcp.read(own == 0 ? its : mine, &frame, sizeof frame));
    EXPECT_EQ(frame.bytes_or_count, 5u);
    EXPECT_TRUE(tcp.wire().idle(peer));
    EXPECT_TRUE(tcp.wire().broken(1 - own).ok());
  }
}

/// It has been told that the other's connection stays, before that has come.
TEST(TcpMalformed, TheOthersConnectionIsAwaited) {
  TcpFixture tcp(1);
  ASSERT_TRUE(tcp.signal(6).ok());
  Hello of_wire;
  {
    const Fd its = tcp.accept(of_wire);
    const char other = static_cast<char>(Answer::other);
    tcp.send(its, &other, 1);
    EXPECT_EQ(tcp.answer(its), '-');
  }
  const Fd mine = tcp.connect();
  const Hello hello = tcp.hello();
  tcp.send(mine, &hello, sizeof hello);
  EXPECT_EQ(tcp.answer(mine), static_cast<char>(Answer::welcome));
  Frame frame;
  ASSERT_TRUE(tcp.read(mine, &frame, sizeof frame));
  EXPECT_EQ(frame.bytes_or_count, 6u);
}

TEST(TcpMalformed, WhoEndsBeforeItAnswersBreaksTheLink) {
  TcpFixture tcp(0);
  ASSERT_TRUE(tcp.signal(7).ok());
  Hello of_wire;
  { const Fd its = tcp.accept(of_wire); }
  tcp.until("the link to break", [&] { return !tcp.wire().broken(1).ok(); });
  EXPECT_FALSE(tcp.signal(8).ok());
  EXPECT_TRUE(tcp.wire().idle(std::array{1}));
}

TEST(TcpMalformed, AddressesAndKeysThatMakeNoSenseAreRefused) {
  const std::unique_ptr<Wire> wire = TcpWire::open(job_of(0)).take();
  const std::string own = wire->address();
  for (const std::string& address : {std::string(), std::string("tutti ucx 1\n127.0.0.1 1 00"),
                                     own.substr(0, own.size() - 1), own.substr(0, own.rfind(' ')), own + "0"}) {
    EXPECT_EQ(wire->meet({own, address}).message(),
              "rank 1 cannot be reached by TCP: it has given no address of this version");
  }
  for (const char* key : {"", "x", "7", "7 ", "-1 4096", "7 4096 ", "99999999999 4096"}) {
    EXPECT_EQ(wire->attach(1, key, 4096).status().message(), "TCP: what rank 1 has sent is no key of exposed memory");
  }
  EXPECT_EQ(wire->attach(1, "7 4095", 4096).status().message(), "TCP: rank 1 exposes 4095 bytes; 4096 were expected");
}

}  // namespace
}  // namespace tutti::testing::tcp_malformed_test
