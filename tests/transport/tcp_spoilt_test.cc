// What may come in by a connection that should not: strangers are shut out, a member that sends nonsense gets a
// sentence and a broken link, and nothing is written outside of what is exposed. And who may connect when.
#include <fmt/format.h>
#include <sys/socket.h>

#include "tests/transport/wire_suite.h"
#include "transport/bootstrap/secret.h"
#include "transport/bootstrap/socket.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/tcp.h"

namespace tutti::testing {
namespace {

using bootstrap::Fd;
using tcp::Answer;
using tcp::Frame;
using tcp::Hello;
using tcp::Kind;
using transport::TcpWire;

WireJob job_of(int own) {
  WireJob job;
  job.own = own;
  job.hosts = {0, 1};
  job.names = {"member 0", "member 1"};
  job.own_ip = "127.0.0.1";
  return job;
}

/// A wire, and the other member of its job made of bare sockets.
class Scene {
 public:
  static constexpr std::size_t kBytes = 4096;

  explicit Scene(int own) : own_(own), wire_(TcpWire::open(job_of(own)).take()) {
    std::memset(memory, 0x55, sizeof memory);
    listener_ = bootstrap::Listener::open({"127.0.0.1", 0}).take();
    nonce_.fill(7);
    const std::string address = fmt::format("tutti tcp 1\n127.0.0.1 {} {}", listener_->endpoint().port, hex(nonce_));
    std::vector<std::string> addresses(2, wire_->address());
    addresses[static_cast<std::size_t>(1 - own)] = address;
    EXPECT_TRUE(wire_->meet(addresses).ok());
    EXPECT_EQ(wire_->expose(memory + kBytes, kBytes).take(), "0 4096");
    region_ = wire_->attach(1 - own, "0 4096", kBytes).take();
  }

  Wire& wire() { return *wire_; }
  std::byte* exposed() { return memory + kBytes; }
  /// The other member's own connection, welcome.
  Fd join() {
    Fd fd = connect();
    const Hello first = hello();
    send(fd, &first, sizeof first);
    EXPECT_EQ(answer(fd), static_cast<char>(Answer::welcome));
    return fd;
  }
  Status signal(std::uint64_t count) { return wire_->signal(1 - own_, 0, region_, 0, count, 0, Push::now); }

  Hello hello() const {
    const std::string& address = wire_->address();
    Hello hello;
    hello.from = static_cast<std::uint32_t>(1 - own_);
    hello.to = static_cast<std::uint32_t>(own_);
    hello.of_sender = nonce_;
    const std::string text = address.substr(address.rfind(' ') + 1);
    for (std::size_t i = 0; i < hello.of_receiver.size(); ++i) {
      hello.of_receiver[i] = static_cast<unsigned char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
    }
    return hello;
  }
  Fd connect() {
    const std::string& address = wire_->address();
    const std::size_t space = address.find(' ', address.find('\n'));
    return bootstrap::connect_to({"127.0.0.1", static_cast<std::uint16_t>(std::stoi(address.substr(space)))}, 5000)
        .take();
  }
  /// The wire's own connection, and what it says first.
  Fd accept(Hello& hello) {
    Fd fd;
    until("the wire's connection", [&] {
      int error = 0;
      fd = listener_->accept(error);
      return static_cast<bool>(fd);
    });
    read(fd, &hello, sizeof hello);
    return fd;
  }
  void send(const Fd& fd, const void* from, std::size_t bytes) {
    EXPECT_EQ(::send(fd.get(), from, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  }
  /// False: the connection has ended before.
  bool read(const Fd& fd, void* to, std::size_t bytes) {
    bool ended = false;
    until("what is sent", [&] {
      const ssize_t came = ::recv(fd.get(), to, bytes, MSG_DONTWAIT);
      if (came > 0) {
        to = static_cast<char*>(to) + came;
        bytes -= static_cast<std::size_t>(came);
      }
      ended = came == 0 || (came < 0 && errno == ECONNRESET);
      return ended || bytes == 0;
    });
    return !ended;
  }
  char answer(const Fd& fd) {
    char byte = 0;
    return read(fd, &byte, 1) ? byte : '-';
  }
  void until(const std::string& what, const std::function<bool()>& come) {
    const auto end = std::chrono::steady_clock::now() + kPatience / 2;
    while (!come()) {
      (void)wire_->progress();
      if (std::chrono::steady_clock::now() > end) FAIL() << "waits in vain for " << what;
    }
  }
  std::uint64_t count_at(std::size_t at) const {
    std::uint64_t count = 0;
    std::memcpy(&count, memory + kBytes + at, sizeof count);
    return count;
  }
  bool untouched_around() const {
    const auto is_free = [](std::byte b) { return b == std::byte{0x55}; };
    return std::all_of(memory, memory + kBytes, is_free) && std::all_of(memory + 2 * kBytes, std::end(memory), is_free);
  }

 private:
  static std::string hex(const bootstrap::Nonce& nonce) {
    std::string text;
    for (const unsigned char byte : nonce) text += fmt::format("{:02x}", byte);
    return text;
  }

  const int own_;
  std::unique_ptr<Wire> wire_;
  std::unique_ptr<bootstrap::Listener> listener_;
  bootstrap::Nonce nonce_{};
  Region region_ = 0;
  alignas(64) std::byte memory[3 * kBytes];
};

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

/// A member that is dead for the meeting place may have sent more than has been read: a put whose first bytes have come,
/// and another. Whoever conceals the memory frees it.
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
    ASSERT_TRUE(scene.signal(5).ok());
    EXPECT_FALSE(scene.wire().idle());
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
    EXPECT_TRUE(scene.wire().idle());
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
  EXPECT_TRUE(scene.wire().idle());
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
}  // namespace tutti::testing
