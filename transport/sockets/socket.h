// Stream sockets: TCP, and Unix sockets with abstract names (which leave nothing in the file system). All are
// non-blocking and closed on exec.
// Errors: system, with the kernel's words and the address; invalid_argument, when there is no such address.
// Threads: any; a Listener or a Connecting by one at a time.
// Limits: a connection is tried at each address for Connecting::kForOneAddressMs (3 s) at most, unless its caller says
//   else.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "transport/sockets/fd.h"

namespace tutti::sockets {

/// The place where a process listens: a host name or address (or several of the same host, with commas between them: a
/// client tries each) and a TCP port, or "@name" for an abstract Unix socket (port 0).
struct Endpoint {
  std::string address;
  std::uint16_t port = 0;
  bool is_unix() const { return !address.empty() && address[0] == '@'; }
  std::string text() const;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

/// A listening socket. Rank 0 opens it first; from then on the others may connect, and wait until it serves them.
/// Closed on destruction.
class Listener {
 public:
  /// Port 0 takes a free one. An empty address takes the one that interfaces.h chooses, loopback where this host has no
  /// other. At a name, and at several addresses, it listens on all interfaces: on its own host a name often means
  /// loopback alone. Errors: system (names what this host has when the address is another's), invalid_argument.
  static Result<std::unique_ptr<Listener>> open(const Endpoint& at);
  /// An abstract Unix socket with a random name.
  static Result<std::unique_ptr<Listener>> open_local();

  /// Returns where the others reach it.
  const Endpoint& endpoint() const { return endpoint_; }
  int fd() const { return fd_.get(); }
  /// A new connection, or none. Errors: system, with errno in `error_number`.
  Fd accept(int& error_number);

 private:
  Listener(Fd fd, Endpoint endpoint) : fd_(std::move(fd)), endpoint_(std::move(endpoint)) {}
  Fd fd_;
  Endpoint endpoint_;
};

/// Returns true if an error number says that the system refuses such calls, or that this process has reached a limit:
/// nothing that waiting or another peer would change.
bool is_refused_here(int error_number);

/// One attempt at each address, which does not wait. Not thread-safe.
///
///   TUTTI_ASSIGN(Connecting connecting, Connecting::begin(to, timeout_ms));
///   TUTTI_ASSIGN(Fd fd, connecting.finish());   // again and again: when connecting.fd() is writable, and now and then
class Connecting {
 public:
  /// An address in so many milliseconds or not at all: the next one, or another attempt, may do better.
  static constexpr int kForOneAddressMs = 3000;

  /// Name resolution may block beyond `timeout_ms`, which is for all addresses together. Errors: system,
  /// invalid_argument (there is no such address).
  static Result<Connecting> begin(const Endpoint& to, int timeout_ms, int for_one_address_ms = kForOneAddressMs);
  Connecting(Connecting&&) noexcept;
  ~Connecting();

  /// The connection; none: not yet. Errors: system, there is no answer; then it is over.
  Result<Fd> finish();
  /// Waits for finish() to be over. A signal does not end it.
  Result<Fd> wait();
  /// Returns what it connects to: numeric, and with commas between several.
  std::string addresses() const;
  /// Another one as soon as the next address has its turn; -1 while a local listener's queue is full.
  int fd() const;
  /// So long finish() need not be called, unless fd() is writable.
  int milliseconds_left() const;
  /// Returns true if every address refused it: the host is there, and no process listens.
  bool refused() const;
  /// Returns true if this process is at fault at every address (is_refused_here): another attempt would fare no better.
  bool refused_here() const;

 private:
  struct State;
  explicit Connecting(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// The numeric addresses of an Endpoint's `address`, in order; none of a Unix socket, or where a name means nothing.
/// May wait for the resolution of names.
std::vector<std::string> addresses_of(const std::string& hosts);

/// This process's end of a TCP connection, numeric; empty for a Unix socket.
std::string local_address_of(int fd);
/// Returns the address of the other end.
std::string remote_address_of(int fd);

/// A Unix socket's other end belongs to this process's user (or to root); other sockets pass. Errors: invalid_argument.
Status check_same_user(int fd);

/// "10.0.0.7:41234" or "a local process (pid 77)".
std::string describe_peer(int fd);

std::string host_name();

}  // namespace tutti::sockets
