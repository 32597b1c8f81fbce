#include "transport/sockets/socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "base/parse.h"
#include "transport/sockets/interfaces.h"
#include "transport/sockets/nonce.h"

namespace tutti::sockets {
namespace {

using Clock = std::chrono::steady_clock;

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

Result<std::vector<Address>> resolve(const Endpoint& endpoint) {
  if (const std::size_t comma = endpoint.address.find(','); comma != std::string::npos) {
    TUTTI_ASSIGN(std::vector<Address> all, resolve({endpoint.address.substr(0, comma), endpoint.port}));
    TUTTI_ASSIGN(const std::vector<Address> others, resolve({endpoint.address.substr(comma + 1), endpoint.port}));
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }
  if (endpoint.is_unix()) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    if (endpoint.address.size() > sizeof name.sun_path) {
      return invalid_argument(fmt::format("socket name {} is too long", quote(endpoint.address)));
    }
    // The '@' stands for the zero byte that makes the name abstract.
    std::memcpy(name.sun_path + 1, endpoint.address.data() + 1, endpoint.address.size() - 1);
    Address address;
    std::memcpy(&address.storage, &name, sizeof name);
    address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + endpoint.address.size());
    return std::vector<Address>{address};
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const std::string port = fmt::format("{}", endpoint.port);
  if (const int error = ::getaddrinfo(endpoint.address.c_str(), port.c_str(), &hints, &list); error != 0) {
    return Status(Code::system, fmt::format("cannot resolve {}: {}", quote(endpoint.address), ::gai_strerror(error)));
  }
  std::vector<Address> addresses;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    Address& address = addresses.emplace_back();
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.size = entry->ai_addrlen;
  }
  ::freeaddrinfo(list);
  return addresses;
}

std::string numeric(const Address& address) {
  char host[NI_MAXHOST] = {};
  const int error = ::getnameinfo(address.get(), address.size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  // As an IPv4 address where a socket for both kinds has it.
  constexpr std::string_view kMapped = "::ffff:";
  const std::string text = error == 0 ? host : "?";
  const bool mapped = text.rfind(kMapped, 0) == 0 && text.find('.') != std::string::npos;
  return mapped ? text.substr(kMapped.size()) : text;
}

int port_of(const Address& address) {
  if (address.storage.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
}

void set_option(int fd, int level, int name, int value) { (void)::setsockopt(fd, level, name, &value, sizeof value); }

/// Small messages go at once, and a host that vanishes without a word is noticed within about 15 s.
void tune(int fd, bool is_unix) {
  if (is_unix) return;
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 3);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 14'000);  // the same for what was sent and is not acknowledged
}

int family_of(int fd) {
  Address address;
  address.size = sizeof address.storage;
  return ::getsockname(fd, address.get(), &address.size) == 0 ? address.storage.ss_family : AF_UNSPEC;
}

/// On all interfaces, for IPv4 and IPv6 where the kernel has both.
std::vector<Address> everywhere(std::uint16_t port) {
  std::vector<Address> addresses(2);
  auto* six = reinterpret_cast<sockaddr_in6*>(&addresses[0].storage);
  six->sin6_family = AF_INET6;
  six->sin6_port = htons(port);
  addresses[0].size = sizeof(sockaddr_in6);
  auto* four = reinterpret_cast<sockaddr_in*>(&addresses[1].storage);
  four->sin_family = AF_INET;
  four->sin_port = htons(port);
  addresses[1].size = sizeof(sockaddr_in);
  return addresses;
}

/// Returns true if text is an address rather than a name, or several.
bool is_numeric(const std::string& text) {
  std::array<unsigned char, 16> bytes{};
  return ::inet_pton(AF_INET, text.c_str(), bytes.data()) == 1 ||
         ::inet_pton(AF_INET6, text.substr(0, text.find('%')).c_str(), bytes.data()) == 1;
}

/// Returns what rank 0 binds to at an endpoint. Errors: system, where none of the addresses is of this host.
Result<std::vector<Address>> addresses_to_bind(const Endpoint& endpoint) {
  TUTTI_ASSIGN(std::vector<Address> addresses, resolve(endpoint));
  const bool several = endpoint.address.find(',') != std::string::npos;
  if (endpoint.is_unix() || (is_loopback(endpoint.address) && !several)) return addresses;
  TUTTI_ASSIGN(const std::vector<InterfaceAddress> own, list_addresses());
  const bool is_own = std::any_of(addresses.begin(), addresses.end(), [&](const Address& address) {
    const std::string text = numeric(address);
    return is_loopback(text) || std::any_of(own.begin(), own.end(), [&](const auto& one) {
             return text.substr(0, text.find('%')) == one.address;
           });
  });
  if (!is_own) {
    return Status(Code::system, fmt::format("cannot listen at {}: that is not an address of its host {}, which has "
                                            "{}; expected TUTTI_MASTER_ADDR to be the host of rank 0",
                                            endpoint.text(), host_name(), describe_addresses(own)));
  }
  return is_numeric(endpoint.address) ? addresses : everywhere(endpoint.port);
}

/// Why an attempt to connect has failed, for people.
std::string words_of(int error) {
  if (error == EMFILE || error == ENFILE) return system_error("no socket", error).message();
  const std::string text = std::strerror(error);
  if (error == ETIMEDOUT)
    return text + " (the host is down, the address is another's, or a firewall drops what is sent)";
  if (error == EHOSTUNREACH) return text + " (no such host on that network, or a firewall rejects what is sent)";
  return text;
}

/// Returns what getsockname or getpeername (`ask`) says of a TCP connection, without a scope; empty for a Unix socket.
std::string address_by(int (*ask)(int, sockaddr*, socklen_t*), int fd) {
  Address address;
  address.size = sizeof address.storage;
  const bool known = ask(fd, address.get(), &address.size) == 0 && address.storage.ss_family != AF_UNIX;
  const std::string text = known ? numeric(address) : "";
  return text.substr(0, text.find('%'));
}

/// Returns the errno of connect(); 0 when connected, EINPROGRESS while it is not decided.
int outcome_of(int fd) {
  pollfd item{fd, POLLOUT, 0};
  const int ready = ::poll(&item, 1, 0);
  if (ready == 0 || (ready < 0 && errno == EINTR)) return EINPROGRESS;
  int error = 0;
  socklen_t size = sizeof error;
  return ready > 0 && ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

}  // namespace

std::string Endpoint::text() const {
  if (is_unix()) return address;
  return address.find(':') == std::string::npos ? fmt::format("{}:{}", address, port)
                                                : fmt::format("[{}]:{}", address, port);
}

bool is_refused_here(int error_number) {
  constexpr std::array kOwn = {EPERM,  EACCES,       ENOSYS,          EMFILE,    ENFILE,
                               ENOMEM, EAFNOSUPPORT, EPROTONOSUPPORT, EOPNOTSUPP};
  return std::find(kOwn.begin(), kOwn.end(), error_number) != kOwn.end();
}

Result<std::unique_ptr<Listener>> Listener::open(const Endpoint& at) {
  Endpoint endpoint = at;
  if (endpoint.address.empty()) {
    TUTTI_ASSIGN(const OwnAddress own, own_address_at({}));
    endpoint.address = own.address.empty() ? "127.0.0.1" : own.address;
  }
  TUTTI_ASSIGN(const std::vector<Address> addresses, addresses_to_bind(endpoint));
  int error = EADDRNOTAVAIL;
  for (const Address& address : addresses) {
    Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) {
      error = errno;
      continue;
    }
    if (!endpoint.is_unix()) set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (address.storage.ss_family == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (::bind(fd.get(), address.get(), address.size) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
      error = errno;
      continue;
    }
    Address bound;
    bound.size = sizeof bound.storage;
    if (!endpoint.is_unix() && ::getsockname(fd.get(), bound.get(), &bound.size) == 0) {
      endpoint.port = static_cast<std::uint16_t>(port_of(bound));
    }
    return std::unique_ptr<Listener>(new Listener(std::move(fd), std::move(endpoint)));
  }
  return system_error(fmt::format("cannot listen at {}", endpoint.text()), error);
}

Result<std::unique_ptr<Listener>> Listener::open_local() {
  const Nonce nonce = random_nonce();
  std::string name = "@tutti-";
  for (std::size_t i = 0; i < 16; ++i) name += fmt::format("{:02x}", nonce[i]);
  return open({name, 0});
}

Fd Listener::accept(int& error_number) {
  Fd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  error_number = fd ? 0 : errno;
  if (fd) tune(fd.get(), endpoint_.is_unix());
  return fd;
}

struct Connecting::State {
  Endpoint to;
  std::vector<Address> addresses;
  std::size_t turn = 0;   // of addresses
  Clock::time_point end;  // of all
  std::chrono::milliseconds for_one_address{};
  Clock::time_point turn_end;
  ParentOnlyFd fd;
  std::string why;
  bool refused = true;
  bool refused_here = true;

  int begin_turn() {
    if (turn_end == Clock::time_point()) turn_end = std::min(end, Clock::now() + for_one_address);
    Fd made(::socket(addresses[turn].storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!made) return errno;
    const bool connected = ::connect(made.get(), addresses[turn].get(), addresses[turn].size) == 0;
    const int error = connected ? 0 : errno;
    fd = ParentOnlyFd(std::move(made));
    return error;
  }
  /// A local listener whose queue is full asks to try again, and not to wait at this socket.
  bool is_full(int error) const { return error == EAGAIN && to.is_unix() && fd; }
};

Connecting::Connecting(std::unique_ptr<State> state) : state_(std::move(state)) {}
Connecting::Connecting(Connecting&&) noexcept = default;
Connecting::~Connecting() = default;

Result<Connecting> Connecting::begin(const Endpoint& to, int timeout_ms, int for_one_address_ms) {
  auto state = std::make_unique<State>();
  TUTTI_ASSIGN(state->addresses, resolve(to));
  state->to = to;
  state->end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  state->for_one_address = std::chrono::milliseconds(for_one_address_ms);
  return Connecting(std::move(state));
}

Result<Fd> Connecting::finish() {
  State& s = *state_;
  for (; s.turn < s.addresses.size(); ++s.turn) {
    int error = s.fd ? outcome_of(s.fd.get()) : s.begin_turn();
    if (s.is_full(error) && Clock::now() < s.turn_end) {
      s.fd.reset();
      return Fd();
    }
    if (error == EINPROGRESS && Clock::now() < s.turn_end) return Fd();
    if (error == EINPROGRESS) error = ETIMEDOUT;
    s.turn_end = {};
    Fd fd = s.fd.release();
    if (error == 0) {
      tune(fd.get(), s.to.is_unix());
      return fd;
    }
    s.refused = s.refused && error == ECONNREFUSED;
    s.refused_here = s.refused_here && is_refused_here(error);
    if (!s.why.empty()) s.why += "; ";
    if (!s.to.is_unix() && !is_numeric(s.to.address)) s.why += numeric(s.addresses[s.turn]) + ": ";
    s.why += words_of(error);
  }
  return Status(Code::system, fmt::format("{} {}: {}", s.refused_here ? "cannot connect to" : "no process answers at",
                                          s.to.text(), s.why));
}

int Connecting::fd() const { return state_->fd.get(); }

int Connecting::milliseconds_left() const {
  constexpr int kTryAgainMs = 1;
  if (state_->fd.get() < 0 && state_->turn_end != Clock::time_point()) return kTryAgainMs;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(state_->turn_end - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(left, 0));
}

bool Connecting::refused() const { return state_->refused; }
bool Connecting::refused_here() const { return state_->refused_here; }

Result<Fd> Connecting::wait() {
  for (;;) {
    Result<Fd> fd = finish();
    if (!fd.ok() || fd.value()) return fd;
    pollfd item{state_->fd.get(), POLLOUT, 0};
    (void)::poll(&item, 1, milliseconds_left());
  }
}

std::string Connecting::addresses() const {
  std::string all;
  for (const Address& address : state_->addresses) all += (all.empty() ? "" : ",") + numeric(address);
  return all;
}

std::vector<std::string> addresses_of(const std::string& hosts) {
  const Endpoint endpoint{hosts};
  if (hosts.empty() || endpoint.is_unix()) return {};
  const Result<std::vector<Address>> resolved = resolve(endpoint);
  std::vector<std::string> all;
  if (resolved.ok()) std::transform(resolved.value().begin(), resolved.value().end(), std::back_inserter(all), numeric);
  return all;
}

std::string local_address_of(int fd) { return address_by(::getsockname, fd); }
std::string remote_address_of(int fd) { return address_by(::getpeername, fd); }

Status check_same_user(int fd) {
  if (family_of(fd) != AF_UNIX) return {};
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return system_error("cannot tell whose process is at the other end", errno);
  }
  if (peer.uid == ::geteuid() || peer.uid == 0) return {};
  return invalid_argument(fmt::format("it belongs to user {}, not to user {}", peer.uid, ::geteuid()));
}

std::string describe_peer(int fd) {
  if (family_of(fd) == AF_UNIX) {
    ucred peer{};
    socklen_t size = sizeof peer;
    const bool known = ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
    return known ? fmt::format("a local process (pid {})", peer.pid) : "a local process";
  }
  Address address;
  address.size = sizeof address.storage;
  if (::getpeername(fd, address.get(), &address.size) != 0) return "an unknown address";
  return Endpoint{numeric(address), static_cast<std::uint16_t>(port_of(address))}.text();
}

std::string host_name() {
  char buffer[256] = {};
  return ::gethostname(buffer, sizeof buffer - 1) == 0 ? buffer : "unknown host";
}

}  // namespace tutti::sockets
