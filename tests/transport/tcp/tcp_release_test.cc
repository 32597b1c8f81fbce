// After a failed call its buffers are the caller's again, who may free them at once: what has not left is copied, and
// arrives as it was put. AddressSanitizer sees it if the wire still reads them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/transport/tcp/tcp_fixture.h"

namespace tutti::testing::tcp_release_test {
namespace {

constexpr std::size_t kLarge = std::size_t{16} << 20;  // more than sockets take

using Buffer = std::vector<std::byte>;

std::unique_ptr<Buffer> filled(std::uint64_t seed) {
  auto buffer = std::make_unique<Buffer>(kLarge);
  fill(buffer->data(), kLarge, seed);
  return buffer;
}

/// Changes and frees a buffer, as its owner may after release.
void overwrite_and_free(std::unique_ptr<Buffer>& buffer) {
  std::fill(buffer->begin(), buffer->end(), std::byte{0xEE});
  buffer.reset();
}

void expect_put(TcpFixture& tcp, const Fd& fd, std::uint64_t seed) {
  Frame frame;
  ASSERT_TRUE(tcp.read(fd, &frame, sizeof frame));
  EXPECT_EQ(frame.kind, Kind::put);
  ASSERT_EQ(frame.bytes_or_count, kLarge);
  Buffer come(kLarge);
  ASSERT_TRUE(tcp.read(fd, come.data(), come.size()));
  EXPECT_EQ(first_wrong(come.data(), kLarge, seed), kLarge);
}

TEST(TcpLetGo, WhatHasNotBegunToLeave) {
  TcpFixture tcp(0);
  const Region there = tcp.attach(kLarge);
  std::unique_ptr<Buffer> sources[2] = {filled(1), filled(2)};
  Ticket tickets[2] = {};
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(tcp.wire().put(1, 0, there, 0, sources[i]->data(), kLarge, tickets[i]).ok());
    ASSERT_TRUE(tcp.signal(static_cast<std::uint64_t>(i) + 1).ok());
  }
  tcp.wire().release_source(tickets[1]);
  EXPECT_TRUE(tcp.wire().completed(tickets[1]));
  EXPECT_FALSE(tcp.wire().completed(tickets[0])) << "it is another call's";
  overwrite_and_free(sources[1]);
  Hello hello;
  const Fd fd = tcp.accept(hello);
  const char welcome = static_cast<char>(Answer::welcome);
  tcp.send(fd, &welcome, 1);
  for (const std::uint64_t count : {1u, 2u}) {
    expect_put(tcp, fd, count);
    Frame signal;
    ASSERT_TRUE(tcp.read(fd, &signal, sizeof signal));
    EXPECT_EQ(signal.bytes_or_count, count);
  }
  EXPECT_TRUE(tcp.wire().completed(tickets[0]));
  EXPECT_TRUE(tcp.wire().broken(1).ok());
}

TEST(TcpLetGo, WhatHasLeftInPart) {
  TcpFixture tcp(0);
  const Fd fd = tcp.join();
  std::unique_ptr<Buffer> source = filled(3);
  Ticket ticket = 0;
  ASSERT_TRUE(tcp.wire().put(1, 0, tcp.attach(kLarge), 0, source->data(), kLarge, ticket).ok());
  ASSERT_TRUE(tcp.signal(1).ok());
  while (tcp.wire().progress()) {  // until the sockets are full
  }
  EXPECT_FALSE(tcp.wire().completed(ticket));
  tcp.wire().release_source(ticket);
  EXPECT_TRUE(tcp.wire().completed(ticket));
  tcp.wire().release_source(ticket);  // again, and of none: nothing
  tcp.wire().release_source(0);
  overwrite_and_free(source);
  expect_put(tcp, fd, 3);
  EXPECT_TRUE(tcp.wire().broken(1).ok());
}

}  // namespace
}  // namespace tutti::testing::tcp_release_test
