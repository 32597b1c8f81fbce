// Descriptors from process to process.
#include "transport/sockets/fd_socket.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstddef>

#include "tests/transport/bootstrap/bootstrap_support.h"
#include "tests/transport/sockets/connect_to.h"

namespace tutti::sockets::fd_socket_test {
namespace {

using namespace bootstrap;  // bootstrap_support.h
using testing::connect_to;

std::chrono::steady_clock::time_point in(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

Fd memory_with(const std::string& text) {
  Fd fd(::memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return fd;
}

std::string content(const Fd& fd) {
  char text[64] = {};
  return ::pread(fd.get(), text, sizeof text - 1, 0) < 0 ? "(unreadable)" : text;
}

TEST(FdSocket, ProcessesHandOverMemory) {
  FdSocket socket = FdSocket::listen().take();
  const Token token = random_token();
  std::vector<Child> children;
  for (int sender = 0; sender < 3; ++sender) {
    children.emplace_back([&, sender](const Child::Say& say) {
      const Fd one = memory_with("one of " + std::to_string(sender));
      const Fd two = memory_with("two of " + std::to_string(sender));
      const Status status = send_fds(socket.name(), token, sender, {one.get(), two.get()});
      say(status.ok() ? "sent" : status.message());
    });
  }
  for (Child& child : children) EXPECT_EQ(child.line(), "sent");
  std::vector<bool> seen(3);
  for (int i = 0; i < 3; ++i) {
    auto received = socket.accept_fds(in(10s), token);
    ASSERT_TRUE(received.ok()) << received.status().message();
    ASSERT_EQ(received.value().fds.size(), 2u);
    const int sender = received.value().sender;
    ASSERT_GE(sender, 0);
    ASSERT_LT(sender, 3);
    seen[static_cast<std::size_t>(sender)] = true;
    EXPECT_EQ(content(received.value().fds[0]), "one of " + std::to_string(sender));
    EXPECT_EQ(content(received.value().fds[1]), "two of " + std::to_string(sender));
    EXPECT_NE(::fcntl(received.value().fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(seen, std::vector<bool>(3, true));
}

TEST(FdSocket, UnauthenticatedPeersAreDroppedWithTheirDescriptors) {
  ::testing::internal::CaptureStderr();
  const int before = open_descriptors();
  {
    FdSocket socket = FdSocket::listen().take();
    const Token token = random_token();
    const Fd memory = memory_with("x");
    // More silent connections than are kept, a sender with another token, a short message, a client that hangs up.
    std::vector<Fd> silent;
    for (int i = 0; i < 20; ++i) silent.push_back(connect_to({socket.name(), 0}, 1000).take());
    EXPECT_TRUE(send_fds(socket.name(), random_token(), 1, {memory.get(), memory.get()}).ok());
    const Fd brief = connect_to({socket.name(), 0}, 1000).take();
    EXPECT_EQ(::send(brief.get(), "hi", 2, 0), 2);
    (void)connect_to({socket.name(), 0}, 1000).take();
    EXPECT_TRUE(send_fds(socket.name(), token, 7, {memory.get()}).ok());
    auto received = socket.accept_fds(in(10s), token);
    ASSERT_TRUE(received.ok()) << received.status().message();
    EXPECT_EQ(received.value().sender, 7);
    EXPECT_EQ(received.value().fds.size(), 1u);
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("does not know the token"), std::string::npos);
}

// All have sent before the first one is taken, and some connections say nothing.
TEST(FdSocket, HundredsOfMessagesWaitForTheirReceiver) {
  constexpr int kMessages = 400;
  const int before = open_descriptors();
  FdSocket socket = FdSocket::listen().take();
  const Token token = random_token();
  const Fd memory = memory_with("x");
  std::vector<Fd> silent;
  for (int i = 0; i < kMessages; ++i) {
    if (i % 4 == 0) silent.push_back(connect_to({socket.name(), 0}, 1000).take());
    ASSERT_TRUE(send_fds(socket.name(), token, i, {memory.get()}).ok());
  }
  for (int i = 0; i < kMessages; ++i) {
    auto received = socket.accept_fds(in(10s), token);
    ASSERT_TRUE(received.ok()) << "after " << i << ": " << received.status().message();
    EXPECT_EQ(received.value().sender, i);
    EXPECT_EQ(received.value().fds.size(), 1u);
  }
  EXPECT_LT(open_descriptors(), before + 400);  // nor were all of them open at a time
}

TEST(FdSocket, NoSender) {
  FdSocket socket = FdSocket::listen().take();
  EXPECT_EQ(socket.accept_fds(in(20ms), random_token()).status().code(), Code::timeout);
}

TEST(FdSocket, NoListener) {
  const Status status = send_fds("@tutti-no-listener-here", random_token(), 0, {});
  EXPECT_EQ(status.code(), Code::system);
}

TEST(FdSocket, TooManyDescriptors) {
  FdSocket socket = FdSocket::listen().take();
  const std::vector<int> many(FdSocket::kMaxFds + 1, 0);
  EXPECT_EQ(send_fds(socket.name(), random_token(), 0, many).code(), Code::invalid_argument);
  const std::vector<int> most(FdSocket::kMaxFds, 0);
  const Token token = random_token();
  EXPECT_TRUE(send_fds(socket.name(), token, 0, most).ok());
  EXPECT_EQ(socket.accept_fds(in(10s), token).value().fds.size(), FdSocket::kMaxFds);
}

}  // namespace
}  // namespace tutti::sockets::fd_socket_test
