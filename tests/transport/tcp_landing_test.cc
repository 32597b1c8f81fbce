// A put that lands elsewhere than in its slot, and whose receiver gives up in the middle of it: a failed call's buffers
// are its caller's again. AddressSanitizer sees it if the wire still writes there.
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/transport/tcp_scene.h"

namespace tutti::testing::tcp_landing_test {
namespace {

constexpr std::size_t kBytes = 3000;

TEST(TcpLanding, TheRestOfAPutThatNobodyWaitsForComesToItsSlot) {
  Scene scene(1);
  const Fd fd = scene.join();
  auto elsewhere = std::make_unique<std::vector<std::byte>>(kBytes);
  scene.wire().land(scene.exposed() + 64, kBytes, elsewhere->data());
  std::vector<std::byte> data(kBytes);
  fill(data.data(), kBytes, 1);
  const Frame put{.kind = Kind::put, .region = 0, .at = 64, .bytes_or_count = kBytes, .tag = 0};
  scene.send(fd, &put, sizeof put);
  scene.send(fd, data.data(), 1000);
  scene.until("the first part", [&] { return first_wrong(elsewhere->data(), 1000, 1) == 1000; });
  EXPECT_TRUE(scene.wire().landed(scene.exposed() + 64));
  elsewhere.reset();
  scene.send(fd, data.data() + 1000, kBytes - 1000);
  const Frame signal{.kind = Kind::signal, .region = 0, .at = 0, .bytes_or_count = 7, .tag = 0};
  scene.send(fd, &signal, sizeof signal);
  scene.until("the signal", [&] { return scene.count_at(0) == 7; });
  EXPECT_EQ(std::memcmp(scene.exposed() + 64 + 1000, data.data() + 1000, kBytes - 1000), 0);
  EXPECT_EQ(scene.exposed()[64], std::byte{0x55}) << "the first part is elsewhere";
  EXPECT_TRUE(scene.untouched_around());
  EXPECT_TRUE(scene.wire().broken(0).ok());
}

}  // namespace
}  // namespace tutti::testing::tcp_landing_test
