// A put that goes elsewhere than to its slot, and whose receiver gives up in the middle of it: a failed call's buffers
// are its caller's again. AddressSanitizer sees it if the wire still writes there.
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/transport/tcp/tcp_fixture.h"

namespace tutti::testing::tcp_redirect_test {
namespace {

constexpr std::size_t kBytes = 3000;

TEST(TcpRedirect, TheRestOfAPutWithoutAWaiterComesToItsSlot) {
  TcpFixture tcp(1);
  const Fd fd = tcp.join();
  auto elsewhere = std::make_unique<std::vector<std::byte>>(kBytes);
  tcp.wire().redirect(tcp.exposed() + 64, kBytes, elsewhere->data());
  std::vector<std::byte> data(kBytes);
  fill(data.data(), kBytes, 1);
  const Frame put{.kind = Kind::put, .region = 0, .at = 64, .bytes_or_count = kBytes, .tag = 0};
  tcp.send(fd, &put, sizeof put);
  tcp.send(fd, data.data(), 1000);
  tcp.until("the first part", [&] { return first_wrong(elsewhere->data(), 1000, 1) == 1000; });
  EXPECT_TRUE(tcp.wire().end_redirect(tcp.exposed() + 64));
  elsewhere.reset();
  tcp.send(fd, data.data() + 1000, kBytes - 1000);
  const Frame signal{.kind = Kind::signal, .region = 0, .at = 0, .bytes_or_count = 7, .tag = 0};
  tcp.send(fd, &signal, sizeof signal);
  tcp.until("the signal", [&] { return tcp.count_at(0) == 7; });
  EXPECT_EQ(std::memcmp(tcp.exposed() + 64 + 1000, data.data() + 1000, kBytes - 1000), 0);
  EXPECT_EQ(tcp.exposed()[64], std::byte{0x55}) << "the first part is elsewhere";
  EXPECT_TRUE(tcp.untouched_around());
  EXPECT_TRUE(tcp.wire().broken(0).ok());
}

}  // namespace
}  // namespace tutti::testing::tcp_redirect_test
