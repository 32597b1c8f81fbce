#include "transport/tcp/links.h"

#include <fmt/format.h>
#include <linux/tcp.h>  // which knows more of tcp_info than <netinet/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/options.h"
#include "base/parse.h"
#include "transport/bootstrap/secret.h"
#include "transport/sockets/interfaces.h"
#include "transport/sockets/nonce.h"

namespace tutti::tcp {

namespace {

constexpr std::string_view kMagic = "tutti tcp 1\n";  // before an address
// What TCP gives, roughly (between two namespaces); to be measured by who wants to know.
constexpr double kAlphaUs = 9.0;
constexpr double kMostGbPerS = 2.5;
// The kernel gives up before, after two minutes or what net.ipv4.tcp_syn_retries says; who waits has a deadline.
constexpr int kConnectMs = 3'600'000;
// To a peer so near the kernel gets no more ahead of the peer's reading than this (which it doubles): 256 KiB on their
// way carry 2.6 GB/s over 100 us, and stay in the caches. Without it, by the kernel's own choice, an all_gather of 8
// MiB took 3.3 to 4.0 ms between two namespaces, with it 2.2 to 2.5.
constexpr std::uint32_t kNearUs = 100;
constexpr int kNearBuffer = 128 << 10;
// BBR paces each connection by what it takes for that connection's share, and links idle when all ranks send to all:
// four hosts at 1 Gbit/s took 7.2 to 9.0 ms for an alltoall of 1 MiB, by Reno 6.6 (the link's limit). What BBR is good
// for, long ways that lose, does not begin below a millisecond.
constexpr std::uint32_t kSameSiteUs = 1000;
constexpr std::string_view kInPlaceOfBbr = "reno";  // which every kernel lets every user choose
constexpr std::size_t kFew = 4;                     // links that are read without asking
constexpr unsigned kOthersEvery = 8;                // moves, for links beside the one that is waited for
constexpr unsigned kLookEvery = 64;                 // moves, for new connections beside few links
constexpr std::int64_t kHelloNs = 10'000'000'000;   // who connects says by then who it is, if others come after it
constexpr std::uint64_t kListener = ~std::uint64_t{0};
constexpr std::uint64_t kUnidentified = std::uint64_t{1} << 32;  // and its descriptor; else a rank

std::string hex(const Nonce& nonce) {
  std::string text;
  for (const unsigned char byte : nonce) text += fmt::format("{:02x}", byte);
  return text;
}

bool parse_hex(std::string_view text, Nonce& nonce) {
  if (text.size() != 2 * nonce.size()) return false;
  for (std::size_t i = 0; i < nonce.size(); ++i) {
    const char* at = text.data() + 2 * i;
    if (std::from_chars(at, at + 2, nonce[i], 16).ptr != at + 2) return false;
  }
  return true;
}

/// "tutti tcp 1\n10.0.0.7 41234 0f3c..."
std::string print_address(const sockets::Endpoint& endpoint, const Nonce& nonce) {
  return fmt::format("{}{} {} {}", kMagic, endpoint.address, endpoint.port, hex(nonce));
}

bool parse_address(std::string_view text, sockets::Endpoint& endpoint, Nonce& nonce) {
  if (!text.starts_with(kMagic)) return false;
  text.remove_prefix(kMagic.size());
  const std::size_t first = text.find(' '), last = text.rfind(' ');
  if (first == last) return false;  // none, too
  endpoint.address = text.substr(0, first);
  const char* end = text.data() + last;
  return std::from_chars(text.data() + first + 1, end, endpoint.port).ptr == end &&
         parse_hex(text.substr(last + 1), nonce);
}

/// Returns what a connection by the interface carries, roughly. A virtual one reports a speed that means nothing (a
/// pair of veth says 10 Gbit/s): it is as fast as the cores are.
double gb_per_s_of(const std::string& interface) {
  const std::string folder = "/sys/class/net/" + interface;
  double megabits = 0;
  if (::access((folder + "/device").c_str(), F_OK) == 0) std::ifstream(folder + "/speed") >> megabits;
  return megabits > 0 ? std::min(megabits / 8000, kMostGbPerS) : kMostGbPerS;
}

/// Listens at the first free port of TUTTI_TCP_PORTS, "FIRST-LAST"; empty: of all.
Result<std::unique_ptr<sockets::Listener>> listen_at(const std::string& address, const std::string& ports) {
  if (ports.empty()) return sockets::Listener::open({address, 0});  // there is always one
  std::uint16_t first = 0, last = 0;
  const char* end = ports.data() + ports.size();
  const char* behind = std::from_chars(ports.data(), end, first).ptr;
  if (behind != end && *behind == '-') {
    behind = std::from_chars(behind + 1, end, last).ptr;
  } else {
    last = first;
  }
  if (behind != end || first == 0 || last < first) {
    return invalid_argument(fmt::format("TUTTI_TCP_PORTS is {}; expected ports, such as 29500-29600", quote(ports)));
  }
  Result<std::unique_ptr<sockets::Listener>> listener = sockets::Listener::open({address, first});
  for (int port = first + 1; !listener.ok() && port <= last; ++port) {
    listener = sockets::Listener::open({address, static_cast<std::uint16_t>(port)});
  }
  if (listener.ok()) return listener;
  return Status(Code::system, fmt::format("TCP: this process cannot listen{} at any of TUTTI_TCP_PORTS={}: they are "
                                          "taken, or not allowed; expected one for each process of a host",
                                          address.empty() ? "" : " at " + address, ports));
}

/// Connections that the listener accepts have the same as it.
Status choose_congestion(int fd, std::string_view name) {
  if (name.empty() ||
      ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0) {
    return {};
  }
  const int why = errno;
  std::string allowed;
  std::getline(std::ifstream("/proc/sys/net/ipv4/tcp_allowed_congestion_control"), allowed);
  return invalid_argument(fmt::format("TUTTI_TCP_CONGESTION is {}, which the kernel refuses ({}); expected one of: {}",
                                      quote(name), std::strerror(why), allowed));
}

bool has_bbr(int fd) {
  char name[16] = {};
  socklen_t size = sizeof name;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0 && std::string_view(name).starts_with("bbr");
}

}  // namespace

// Opening, meet().

Status Links::listen() {
  TUTTI_TRY(transport::check_has_address(job_));
  const std::string interface = sockets::interface_of(job_.own_ip);
  if (interface.empty() && !job_.own_ip.empty()) {
    return invalid_argument(fmt::format("TCP: no interface of this host has the address {}", job_.own_ip));
  }
  TUTTI_ASSIGN(listener_, listen_at(job_.own_ip, options::text(Option::tcp_ports)));
  TUTTI_TRY(choose_congestion(listener_->fd(), options::text(Option::tcp_congestion)));
  TUTTI_TRY(wakeup_.open("TCP"));
  events_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!events_) return system_error("TCP: epoll", errno);
  const sockets::Endpoint& endpoint = listener_->endpoint();
  nonce_ = sockets::random_nonce();
  address_ = print_address(endpoint, nonce_);
  const std::string goes_by = interface.empty() ? sockets::interface_of(endpoint.address) : interface;
  info_ = {"tcp", goes_by, kCopied, kAlphaUs, gb_per_s_of(goes_by)};
  for (int m = 0; m < job_.size(); ++m) {
    links_.push_back(std::make_unique<Link>());
    links_.back()->rank = m;
  }
  return {};
}

Status Links::meet(const std::vector<std::string>& addresses) {
  peers_.resize(addresses.size());
  for (int m = 0; m < job_.size(); ++m) {
    if (!job_.linked(m)) continue;
    const std::string_view address = addresses[static_cast<std::size_t>(m)];
    Peer& peer = peers_[static_cast<std::size_t>(m)];
    if (!parse_address(address, peer.endpoint, peer.nonce)) {
      return unsupported(fmt::format("{} cannot be reached by TCP: it has given no address of this version",
                                     job_.names[static_cast<std::size_t>(m)]));
    }
  }
  watch(listener_->fd(), kListener, EPOLLIN);
  return {};
}

Links::~Links() {
  // A socket that is closed while something in it has not been read tells its peer of a break, which may overtake what
  // was sent last.
  for (Link* link : open_) {
    (void)::shutdown(link->fd.get(), SHUT_WR);
    (void)link->inbox.receive(link->fd.get(), exposed_, redirects_);
  }
}

// Connections.

Status Links::connect(Link& link) {
  if (link.broken) return link.why;
  if (link.state != State::none) return {};
  Result<Connecting> begun =
      Connecting::begin(peers_[static_cast<std::size_t>(link.rank)].endpoint, kConnectMs, kConnectMs);
  if (!begun.ok()) {
    fail(link, begun.status().message());
    return link.why;
  }
  link.connecting.emplace(begun.take());
  link.since_ns = now_ns();
  link.state = State::connecting;
  ++unfinished_;
  (void)continue_connecting(link);
  return link.broken ? link.why : Status();
}

/// Returns true if anything has come of it.
bool Links::continue_connecting(Link& link) {
  Result<Fd> fd = link.connecting->finish();
  if (!fd.ok()) {
    fail(link, fd.status().message(), link.connecting->refused_here() ? Code::system : Code::peer_died);
    return true;
  }
  if (!fd.value()) {
    watch(link.connecting->fd(), static_cast<std::uint64_t>(link.rank), EPOLLOUT);
    return false;
  }
  link.connecting.reset();
  link.fd = sockets::ParentOnlyFd(fd.take());
  greet(link);
  return true;
}

void Links::greet(Link& link) {
  Hello hello;
  hello.from = static_cast<std::uint32_t>(job_.rank);
  hello.to = static_cast<std::uint32_t>(link.rank);
  hello.of_sender = nonce_;
  hello.of_receiver = peers_[static_cast<std::size_t>(link.rank)].nonce;
  if (::send(link.fd.get(), &hello, sizeof hello, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof hello)) {
    return fail_by(link, errno);
  }
  link.state = State::greeting;
  watch(link.fd.get(), static_cast<std::uint64_t>(link.rank), EPOLLIN);
}

bool Links::read_answer(Link& link) {
  Answer answer{};
  const ssize_t came = ::recv(link.fd.get(), &answer, sizeof answer, MSG_DONTWAIT);
  if (came < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (came == sizeof answer && answer == Answer::welcome) {
    establish(link);
  } else if (came == sizeof answer && answer == Answer::other) {
    link.fd.reset();
    link.state = State::expected;
  } else {
    came < 0 ? fail_by(link, errno) : fail(link, "the peer has closed it");
  }
  return true;
}

/// The connection stands: the kernel may have what waits for it.
void Links::establish(Link& link) {
  unfinished_ -= link.state == State::none ? 0 : 1;
  link.state = State::open;
  // That a peer takes nothing for a minute, since it computes, is no failure.
  const int never = 0;
  (void)::setsockopt(link.fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &never, sizeof never);
  tcp_info found{};
  socklen_t size = sizeof found;
  const bool known = ::getsockopt(link.fd.get(), IPPROTO_TCP, TCP_INFO, &found, &size) == 0 && found.tcpi_min_rtt > 0;
  std::string congestion = options::text(Option::tcp_congestion);
  const bool at_same_site = known && found.tcpi_min_rtt < kSameSiteUs;
  if (congestion.empty() && at_same_site && has_bbr(link.fd.get())) congestion = kInPlaceOfBbr;
  (void)choose_congestion(link.fd.get(), congestion);  // the kernel has taken it for the listener, or lets all
  if (known && found.tcpi_min_rtt < kNearUs) {
    (void)::setsockopt(link.fd.get(), SOL_SOCKET, SO_SNDBUF, &kNearBuffer, sizeof kNearBuffer);
  }
  link.watched = EPOLLIN;  // for what was said until now
  open_.push_back(&link);
  if (link.to_send) (void)send(link);
}

bool Links::accept_connections() {
  bool any = false;
  const std::int64_t now = now_ns();
  std::erase_if(unidentified_,
                [now](const UnidentifiedConnection& connection) { return now - connection.since_ns > kHelloNs; });
  for (int error = 0;; any = true) {
    Fd fd = listener_->accept(error);
    if (!fd) note_refusal("accept", error);
    if (!fd) return any;
    watch(fd.get(), kUnidentified | static_cast<std::uint64_t>(fd.get()), EPOLLIN);
    unidentified_.push_back({sockets::ParentOnlyFd(std::move(fd)), {}, 0, now});
  }
}

bool Links::read_hello(int fd) {
  const auto connection =
      std::find_if(unidentified_.begin(), unidentified_.end(), [fd](const auto& v) { return v.fd.get() == fd; });
  if (connection == unidentified_.end()) return false;
  auto* bytes = reinterpret_cast<char*>(&connection->hello);
  const ssize_t came = ::recv(fd, bytes + connection->come, sizeof(Hello) - connection->come, MSG_DONTWAIT);
  if (came < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (came > 0) {
    connection->come += static_cast<std::size_t>(came);
    if (connection->come < sizeof(Hello)) return true;
    admit(*connection);
  }
  unidentified_.erase(connection);
  return true;
}

void Links::admit(UnidentifiedConnection& connection) {
  const int sender = sender_of(connection.hello, job_.rank, nonce_, job_.size(), [this](int rank) {
    return job_.linked(rank) ? &peers_[static_cast<std::size_t>(rank)].nonce : nullptr;
  });
  if (sender < 0) {
    log::info("TCP: a connection from {}, which is not of this job, is closed",
              sockets::describe_peer(connection.fd.get()));
    return;
  }
  Link& link = link_of(sender);
  // Of an own one that is still being made the other knows nothing: the one that is there is taken.
  const bool own_stays = link.state == State::greeting && job_.rank < link.rank;
  if (link.broken || link.state == State::open) return;
  const Answer answer = own_stays ? Answer::other : Answer::welcome;
  (void)::send(connection.fd.get(), &answer, sizeof answer, MSG_NOSIGNAL);
  if (own_stays) return;
  link.connecting.reset();
  link.fd = std::move(connection.fd);
  watch(link.fd.get(), static_cast<std::uint64_t>(link.rank), EPOLLIN);
  establish(link);
}

void Links::note_refusal(const char* call, int error_number) {
  if (sockets::is_refused_here(error_number) && refused_.ok()) refused_ = system_error(call, error_number);
}

void Links::fail_by(Link& link, int error_number) {
  fail(link, std::strerror(error_number), sockets::is_refused_here(error_number) ? Code::system : Code::peer_died);
}

void Links::fail_all_refused() {
  for (const auto& link : links_) {
    if (job_.linked(link->rank)) fail(*link, refused_.message(), Code::system);
  }
}

void Links::fail(Link& link, const std::string& why, Code code) {
  if (link.broken) return;
  link.why = Status(code, fmt::format("the link to {} by TCP over {} has broken: {}",
                                      job_.names[static_cast<std::size_t>(link.rank)], info_.devices, why));
  log::debug("{}", link.why.message());
  link.broken = true;
  if (link.state == State::open) std::erase(open_, &link);
  if (link.state != State::none && link.state != State::open) --unfinished_;
  link.state = State::none;
  link.connecting.reset();
  link.fd.reset();
  link.outbox.clear(completed_);
  link.to_send = false;
  complete();
}

std::string Links::obstacle(int rank) {
  const Link& link = link_of(rank);
  if (link.state != State::connecting) return "";
  return fmt::format("no connection to {} by TCP over {} within {:.1f} s",
                     peers_[static_cast<std::size_t>(rank)].endpoint.text(), info_.devices,
                     static_cast<double>(now_ns() - link.since_ns) * 1e-9);
}

// Sending.

void Links::flush(Link& link) {
  link.to_send = !link.outbox.empty();
  if (link.to_send && link.state == State::open) (void)send(link);
}

/// Returns true if the kernel has taken something, or the link has broken.
bool Links::send(Link& link) {
  const std::ptrdiff_t taken = link.outbox.send(link.fd.get(), completed_);
  if (taken < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (taken < 0) fail_by(link, errno);
  if (link.outbox.empty()) link.to_send = false;
  complete();
  return true;
}

void Links::complete() {
  for (Source* source : completed_) sources_.complete(*source);
  completed_.clear();
}

void Links::release(const Source& source) {
  Link& link = link_of(source.rank);
  if (!link.outbox.copy(source, completed_)) {
    fail(link, "a call has failed here, and there is no memory for what it had not sent yet");
  }
  complete();
}

// Moving.

/// Lets epoll tell of these events, and of no others of that descriptor.
void Links::watch(int fd, std::uint64_t whose, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = whose;
  if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return;
  if (errno != EEXIST) return note_refusal("epoll_ctl", errno);
  (void)::epoll_ctl(events_.get(), EPOLL_CTL_MOD, fd, &event);
}

/// About links that are open: many, or who sleeps. Few are read without asking, and then every message costs its
/// sender, on whose core it is delivered, 0.2 us less. (Room in a socket that is full ends a sleep.)
void Links::ask_epoll() {
  const bool has_sleepers = wakeup_.has_sleepers();
  for (Link* link : open_) {
    std::uint32_t events = 0;
    if (has_sleepers || open_.size() > kFew) events = EPOLLIN;
    if (has_sleepers && link->to_send) events |= EPOLLOUT;
    if (events == link->watched) continue;
    link->watched = events;
    if (events != 0) {
      watch(link->fd.get(), static_cast<std::uint64_t>(link->rank), events);
    } else {
      (void)::epoll_ctl(events_.get(), EPOLL_CTL_DEL, link->fd.get(), nullptr);
    }
  }
}

bool Links::receive(Link& link) {
  const Result<bool> come = link.inbox.receive(link.fd.get(), exposed_, redirects_);
  if (!come.ok()) fail(link, come.status().message(), come.status().code());
  return !come.ok() || come.value();
}

/// Moves the connections that have something, as the kernel reports.
bool Links::look() {
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(events_.get(), events.data(), static_cast<int>(events.size()), 0);
  if (count < 0) note_refusal("epoll_wait", errno);
  bool moved = false;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t whose = events[static_cast<std::size_t>(i)].data.u64;
    if (whose == kListener) {
      moved |= accept_connections();
    } else if ((whose & kUnidentified) != 0) {
      moved |= read_hello(static_cast<int>(whose & ~kUnidentified));
    } else {
      Link& link = link_of(static_cast<int>(whose));
      if (link.state == State::connecting) {
        moved |= continue_connecting(link);
      } else if (link.state == State::greeting) {
        moved |= read_answer(link);
      }
      if (link.state == State::open) moved |= receive(link);
    }
  }
  return moved;
}

bool Links::move(Link* awaited, bool thorough) {
  bool moved = false;
  // From behind, since one that breaks leaves the list.
  for (std::size_t i = open_.size(); i-- > 0;) {
    if (open_[i]->to_send) moved |= send(*open_[i]);
  }
  ask_epoll();
  if (awaited != nullptr && awaited->state != State::open) awaited = nullptr;
  if (awaited != nullptr) moved |= receive(*awaited);
  ++moves_;
  const bool all = thorough || awaited == nullptr || moves_ % kOthersEvery == 0;
  const bool few = open_.size() <= kFew;
  for (std::size_t i = open_.size(); all && few && i-- > 0;) {
    if (open_[i] != awaited) moved |= receive(*open_[i]);
  }
  if (thorough || (all && !few) || unfinished_ > 0 || moves_ % kLookEvery == 0) moved |= look();
  if (!refused_.ok()) fail_all_refused();
  wakeup_.moved(moved);
  return moved;
}

bool Links::prepare_to_sleep() {
  if (wakeup_.missed() || move(nullptr, true)) return false;
  wakeup_.prepare_to_sleep();
  ask_epoll();
  return true;
}

}  // namespace tutti::tcp
