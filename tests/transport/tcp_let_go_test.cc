// After a failed call its buffers are the caller's again, who may free them at once: what has not left is copied, and
// arrives as it was put. AddressSanitizer sees it if the wire still reads them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/transport/tcp_scene.h"

namespace tutti::testing::tcp_let_go_test {
namespace {

constexpr std::size_t kLarge = std::size_t{16} << 20;  // more than sockets take

using Buffer = std::vector<std::byte>;

std::unique_ptr<Buffer> filled(std::uint64_t seed) {
  auto buffer = std::make_unique<Buffer>(kLarge);
  fill(buffer->data(), kLarge, seed);
  return buffer;
}

/// As it may be after its owner has it again.
void spoil_and_free(std::unique_ptr<Buffer>& buffer) {
  std::fill(buffer->begin(), buffer->end(), std::byte{0xEE});
  buffer.reset();
}

void expect_put(Scene& scene, const Fd& fd, std::uint64_t seed) {
  Frame frame;
  ASSERT_TRUE(scene.read(fd, &frame, sizeof frame));
  EXPECT_EQ(frame.kind, Kind::put);
  ASSERT_EQ(frame.bytes_or_count, kLarge);
  Buffer come(kLarge);
  ASSERT_TRUE(scene.read(fd, come.data(), come.size()));
  EXPECT_EQ(first_wrong(come.data(), kLarge, seed), kLarge);
}

TEST(TcpLetGo, WhatHasNotBegunToLeave) {
  Scene scene(0);
  const Region there = scene.attach(kLarge);
  std::unique_ptr<Buffer> sources[2] = {filled(1), filled(2)};
  Ticket tickets[2] = {};
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(scene.wire().put(1, 0, there, 0, sources[i]->data(), kLarge, tickets[i]).ok());
    ASSERT_TRUE(scene.signal(static_cast<std::uint64_t>(i) + 1).ok());
  }
  scene.wire().let_go(tickets[1]);
  EXPECT_TRUE(scene.wire().settled(tickets[1]));
  EXPECT_FALSE(scene.wire().settled(tickets[0])) << "it is another call's";
  spoil_and_free(sources[1]);
  Hello hello;
  const Fd fd = scene.accept(hello);
  const char welcome = static_cast<char>(Answer::welcome);
  scene.send(fd, &welcome, 1);
  for (const std::uint64_t count : {1u, 2u}) {
    expect_put(scene, fd, count);
    Frame signal;
    ASSERT_TRUE(scene.read(fd, &signal, sizeof signal));
    EXPECT_EQ(signal.bytes_or_count, count);
  }
  EXPECT_TRUE(scene.wire().settled(tickets[0]));
  EXPECT_TRUE(scene.wire().broken(1).ok());
}

TEST(TcpLetGo, WhatHasLeftInPart) {
  Scene scene(0);
  const Fd fd = scene.join();
  std::unique_ptr<Buffer> source = filled(3);
  Ticket ticket = 0;
  ASSERT_TRUE(scene.wire().put(1, 0, scene.attach(kLarge), 0, source->data(), kLarge, ticket).ok());
  ASSERT_TRUE(scene.signal(1).ok());
  while (scene.wire().progress()) {  // until the sockets are full
  }
  EXPECT_FALSE(scene.wire().settled(ticket));
  scene.wire().let_go(ticket);
  EXPECT_TRUE(scene.wire().settled(ticket));
  scene.wire().let_go(ticket);  // again, and of none: nothing
  scene.wire().let_go(0);
  spoil_and_free(source);
  expect_put(scene, fd, 3);
  EXPECT_TRUE(scene.wire().broken(1).ok());
}

}  // namespace
}  // namespace tutti::testing::tcp_let_go_test
