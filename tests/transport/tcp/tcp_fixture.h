// A wire over TCP, and the other rank of its job made of bare sockets.
#pragma once

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/sockets/connect_to.h"
#include "tests/transport/wire/wire_bytes.h"
#include "tests/transport/wire/wire_job.h"
#include "transport/bootstrap/secret.h"
#include "transport/sockets/socket.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/tcp.h"

namespace tutti::testing {

using sockets::Fd;
using tcp::Answer;
using tcp::Frame;
using tcp::Hello;
using tcp::Kind;
using transport::TcpWire;

inline WireJob job_of(int own, int ranks = 2) {
  WireJob job;
  job.rank = own;
  for (int m = 0; m < ranks; ++m) {
    job.hosts.push_back(m);
    job.names.push_back("rank " + std::to_string(m));
  }
  job.own_ip = "127.0.0.1";
  return job;
}

inline std::string address_text(const sockets::Endpoint& at, const sockets::Nonce& nonce) {
  std::string text = fmt::format("tutti tcp 1\n{} {} ", at.address, at.port);
  for (const unsigned char byte : nonce) text += fmt::format("{:02x}", byte);
  return text;
}

/// The wire is rank `own` of two.
class TcpFixture {
 public:
  static constexpr std::size_t kBytes = 4096;

  explicit TcpFixture(int own) : TcpFixture(own, sockets::Listener::open({"127.0.0.1", 0}).take()) {}
  /// The other rank listens elsewhere.
  TcpFixture(int own, const sockets::Endpoint& there) : TcpFixture(own, nullptr, there) {}

  Wire& wire() { return *wire_; }
  /// Memory of the other's.
  Region attach(std::size_t bytes) { return wire_->attach(1 - own_, fmt::format("1 {}", bytes), bytes).take(); }
  std::byte* exposed() { return memory + kBytes; }
  /// The other rank's own connection, welcome.
  Fd join() {
    Fd fd = connect();
    const Hello first = hello();
    send(fd, &first, sizeof first);
    EXPECT_EQ(answer(fd), static_cast<char>(Answer::welcome));
    return fd;
  }
  Status signal(std::uint64_t count) { return wire_->signal(1 - own_, 0, region_, 0, count, 0, Flush::now); }

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
    return connect_to({"127.0.0.1", static_cast<std::uint16_t>(std::stoi(address.substr(space)))}, 5000).take();
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
    const auto end = std::chrono::steady_clock::now() + kTestTimeout / 2;
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
  TcpFixture(int own, std::unique_ptr<sockets::Listener> listener)
      : TcpFixture(own, std::move(listener), sockets::Endpoint()) {}
  TcpFixture(int own, std::unique_ptr<sockets::Listener> listener, const sockets::Endpoint& there)
      : own_(own), wire_(TcpWire::open(job_of(own)).take()), listener_(std::move(listener)) {
    std::memset(memory, 0x55, sizeof memory);
    nonce_.fill(7);
    std::vector<std::string> addresses(2, wire_->address());
    addresses[static_cast<std::size_t>(1 - own)] =
        address_text(listener_ != nullptr ? listener_->endpoint() : there, nonce_);
    EXPECT_TRUE(wire_->meet(addresses).ok());
    EXPECT_EQ(wire_->expose(memory + kBytes, kBytes).take(), "0 4096");
    region_ = wire_->attach(1 - own, "0 4096", kBytes).take();
  }

  const int own_;
  std::unique_ptr<Wire> wire_;
  std::unique_ptr<sockets::Listener> listener_;  // of the other rank; null: it listens elsewhere
  sockets::Nonce nonce_{};
  Region region_ = 0;
  alignas(64) std::byte memory[3 * kBytes];
};

}  // namespace tutti::testing
