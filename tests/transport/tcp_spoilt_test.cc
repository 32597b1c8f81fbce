// What may come in by a connection that should not: strangers are shut out, a member that sends nonsense gets a
// sentence and a broken link, and nothing is written outside of what is exposed. And who may connect when.
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

#include "tests/transport/tcp_scene.h"

namespace tutti::testing::tcp_spoilt_test {
namespace {

const Frame kGood{Kind::signal, 0, 16, 41, 42};

TEST(TcpSpoilt, WhatMakesNoSenseBreaksTheLink) {
  const std::pair<Frame, std::string> spoilt[] = {
      {{static_cast<Kind>(7), 0, 0, 7, 7}, "what is no frame"},
      {{Kind::signal, 0, 8, 7, 7}, "a signal for place 8, which is no multiple of 16"},
      {{Kind::signal, 0, 4096, 7, 7}, "16 bytes for memory that this process has not exposed"},
      {{Kind::signal, 0, UINT64_MAX - 15, 7, 7}, "16 bytes for memory that this process has not exposed"},
      {{Kind::put, 0, 4088, 9, 0}, "9 bytes for memory that this process has not exposed"},
      {{Kind::put, 1, 0, 9, 0}, "9 bytes for memory that this process has not exposed"},
      {{Kind::put, 0, 1, UINT64_MAX, 0}, "18446744073709551615 bytes for memory that this process has not exposed"},
  };
  for (const auto& [frame, what] : spoilt) {
    Scene scene(0);
    const Fd fd = scene.connect();
    const Hello hello = scene.hello();
    scene.send(fd, &hello, sizeof hello);
    EXPECT_EQ(scene.answer(fd), static_cast<char>(Answer::welcome));
    scene.send(fd, &kGood, sizeof kGood);
    scene.send(fd, &frame, sizeof frame);
    scene.until("the link to break", [&] { return !scene.wire().broken(1).ok(); });
    EXPECT_EQ(scene.wire().broken(1).message(), "the link to member 1 by TCP over lo has broken: it has sent " + what);
    EXPECT_EQ(scene.count_at(16), 41u);
    EXPECT_TRUE(scene.untouched_around());
  }
}

/// A member that is dead for the bootstrap server may have sent more than has been read: a put whose first bytes have
/// come, and another. Whoever conceals the memory frees it.
TEST(TcpSpoilt, APutEndsWithItsMemory) {
  Scene scene(0);
  const Fd fd = scene.join();
  const Frame put{Kind::put, 0, 0, Scene::kBytes, 0};
  const std::vector<std::byte> bytes(Scene::kBytes, std::byte{0x77});
  scene.send(fd, &put, sizeof put);
  scene.send(fd, bytes.data(), 100);
  scene.until("the first bytes", [&] { return scene.exposed()[99] == std::byte{0x77}; });
  scene.wire().conceal(scene.exposed());
  std::fill_n(scene.exposed(), Scene::kBytes, std::byte{0x55});
  scene.send(fd, bytes.data(), bytes.size() - 100);
  scene.until("the link to break", [&] { return !scene.wire().broken(1).ok(); });
  EXPECT_THAT(scene.wire().broken(1).message(),
              ::testing::EndsWith("it has sent a part of a put for memory that is exposed no longer"));
  EXPECT_EQ(std::count(scene.exposed(), scene.exposed() + Scene::kBytes, std::byte{0x55}),
            static_cast<std::ptrdiff_t>(Scene::kBytes));
}

TEST(TcpSpoilt, WhatComesLateFindsNoOtherMemory) {
  Scene scene(0);
  const Fd fd = scene.join();
  scene.wire().conceal(scene.exposed());
  EXPECT_NE(scene.wire().expose(scene.exposed(), Scene::kBytes).take(), "0 4096");
  scene.send(fd, &kGood, sizeof kGood);
  scene.until("the link to break", [&] { return !scene.wire().broken(1).ok(); });
  EXPECT_NE(scene.count_at(16), 41u);
}

/// Whoever does not know what the members have told each other gets no answer, and does no harm.
TEST(TcpSpoilt, StrangersAreShutOut) {
  const std::pair<std::string, std::function<void(Hello&)>> strangers[] = {
      {"another program", [](Hello& hello) { hello.magic[0] = 'G'; }},
      {"a number that there is not", [](Hello& hello) { hello.from = 2; }},
      {"the own number", [](Hello& hello) { hello.from = 0; }},
      {"for another member", [](Hello& hello) { hello.to = 1; }},
      {"without this process's nonce", [](Hello& hello) { hello.of_receiver[31] ^= 1; }},
      {"without its member's nonce", [](Hello& hello) { hello.of_sender[0] ^= 1; }},
  };
  Scene scene(0);
  for (const auto& [who, spoil] : strangers) {
    SCOPED_TRACE(who);
    const Fd fd = scene.connect();
    Hello hello = scene.hello();
    spoil(hello);
    scene.send(fd, &hello, sizeof hello);
    scene.send(fd, &kGood, sizeof kGood);
    EXPECT_EQ(scene.answer(fd), '-');
  }
  { const Fd silent = scene.connect(); }
  EXPECT_TRUE(scene.wire().broken(1).ok());
  EXPECT_NE(scene.count_at(16), 41u);
  // The member itself, a byte at a time.
  const Fd fd = scene.connect();
  const Hello hello = scene.hello();
  for (std::size_t i = 0; i < sizeof hello; ++i) {
    scene.send(fd, reinterpret_cast<const char*>(&hello) + i, 1);
    (void)scene.wire().progress();
  }
  EXPECT_EQ(scene.answer(fd), static_cast<char>(Answer::welcome));
  for (std::size_t i = 0; i < sizeof kGood; ++i) {
    scene.send(fd, reinterpret_cast<const char*>(&kGood) + i, 1);
    (void)scene.wire().progress();
  }
  scene.until("the signal", [&] { return scene.count_at(16) == 41; });
  // A second one by the same name does not take its place.
  const Fd second = scene.connect();
  scene.send(second, &hello, sizeof hello);
  EXPECT_EQ(scene.answer(second), '-');
  EXPECT_TRUE(scene.wire().broken(1).ok());
}

/// Both have connected: that of the lower number stays.
TEST(TcpSpoilt, OfTwoConnectionsOneStays) {
  for (const int own : {0, 1}) {
    SCOPED_TRACE("the wire is member " + std::to_string(own));
    Scene scene(own);
    const std::array peer{1 - own};
    ASSERT_TRUE(scene.signal(5).ok());
    EXPECT_FALSE(scene.wire().idle(peer));
    Hello of_wire;
    const Fd its = scene.accept(of_wire);
    EXPECT_EQ(of_wire.from, static_cast<std::uint32_t>(own));
    const Fd mine = scene.connect();
    const Hello hello = scene.hello();
    scene.send(mine, &hello, sizeof hello);
    EXPECT_EQ(scene.answer(mine), static_cast<char>(own == 0 ? Answer::other : Answer::welcome));
    const char welcome = static_cast<char>(Answer::welcome);
    if (own == 0) {
      scene.send(its, &welcome, 1);
    } else {
      EXPECT_EQ(scene.answer(its), '-');
    }
    Frame frame;
    ASSERT_TRUE(scene.read(own == 0 ? its : mine, &frame, sizeof frame));
    EXPECT_EQ(frame.bytes_or_count, 5u);
    EXPECT_TRUE(scene.wire().idle(peer));
    EXPECT_TRUE(scene.wire().broken(1 - own).ok());
  }
}

/// It has been told that the other's connection stays, before that has come.
TEST(TcpSpoilt, TheOthersConnectionIsAwaited) {
  Scene scene(1);
  ASSERT_TRUE(scene.signal(6).ok());
  Hello of_wire;
  {
    const Fd its = scene.accept(of_wire);
    const char other = static_cast<char>(Answer::other);
    scene.send(its, &other, 1);
    EXPECT_EQ(scene.answer(its), '-');
  }
  const Fd mine = scene.connect();
  const Hello hello = scene.hello();
  scene.send(mine, &hello, sizeof hello);
  EXPECT_EQ(scene.answer(mine), static_cast<char>(Answer::welcome));
  Frame frame;
  ASSERT_TRUE(scene.read(mine, &frame, sizeof frame));
  EXPECT_EQ(frame.bytes_or_count, 6u);
}

TEST(TcpSpoilt, WhoEndsBeforeItAnswersBreaksTheLink) {
  Scene scene(0);
  ASSERT_TRUE(scene.signal(7).ok());
  Hello of_wire;
  { const Fd its = scene.accept(of_wire); }
  scene.until("the link to break", [&] { return !scene.wire().broken(1).ok(); });
  EXPECT_FALSE(scene.signal(8).ok());
  EXPECT_TRUE(scene.wire().idle(std::array{1}));
}

TEST(TcpSpoilt, AddressesAndKeysThatMakeNoSenseAreRefused) {
  const std::unique_ptr<Wire> wire = TcpWire::open(job_of(0)).take();
  const std::string own = wire->address();
  for (const std::string& address : {std::string(), std::string("tutti ucx 1\n127.0.0.1 1 00"),
                                     own.substr(0, own.size() - 1), own.substr(0, own.rfind(' ')), own + "0"}) {
    EXPECT_EQ(wire->meet({own, address}).message(),
              "member 1 cannot be reached by TCP: it has given no address of this version");
  }
  for (const char* key : {"", "x", "7", "7 ", "-1 4096", "7 4096 ", "99999999999 4096"}) {
    EXPECT_EQ(wire->attach(1, key, 4096).status().message(), "TCP: what member 1 has sent is no key of exposed memory");
  }
  EXPECT_EQ(wire->attach(1, "7 4095", 4096).status().message(), "TCP: member 1 exposes 4095 bytes; 4096 were expected");
}

}  // namespace
}  // namespace tutti::testing::tcp_spoilt_test
