// What a rank says of a rank 0 that it has tried to reach again and again.
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "tests/transport/bootstrap/bootstrap_support.h"
#include "tests/transport/sockets/full_listener.h"

namespace {

/// Who connects to the port `from` gets there once, and later to the port `to`.
struct Detour {
  in_port_t from = 0;
  in_port_t to = 0;
  int attempts = 0;
} detour;

constexpr std::chrono::milliseconds kShortDeadline{100};
constexpr const char* kSlowName = "far.example";
int slow_resolutions = 0;

}  // namespace

/// In place of the C library's.
extern "C" int connect(int fd, const sockaddr* to, socklen_t size) {
  sockaddr_in at{};
  if (to->sa_family == AF_INET) at = *reinterpret_cast<const sockaddr_in*>(to);
  if (at.sin_port == 0 || at.sin_port != detour.from || detour.attempts++ == 0) {
    return static_cast<int>(syscall(SYS_connect, fd, to, size));
  }
  at.sin_port = detour.to;
  return static_cast<int>(syscall(SYS_connect, fd, &at, sizeof at));
}

/// Stands in for libc's. The name servers are dead, and the resolver tries them for longer than the ranks' deadline.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** list) {
  static const auto of_libc = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (std::strcmp(node, kSlowName) != 0) return of_libc(node, service, hints, list);
  ++slow_resolutions;
  std::this_thread::sleep_for(2 * kShortDeadline);
  return EAI_AGAIN;
}

namespace tutti::bootstrap::absent_server_test {
namespace {

/// Returns the error of a client whose rank 0 refuses at first and then is silent.
std::string said_within(std::chrono::milliseconds deadline) {
  const tutti::testing::FullListener silent;
  const sockets::Endpoint server = sockets::Listener::open({"127.0.0.1", 0}).value()->endpoint();  // closed at once
  detour = {htons(server.port), htons(silent.endpoint().port), 0};
  const auto met = Bootstrap::connect(config_of(1, 2, server, deadline));
  EXPECT_GE(detour.attempts, 2);
  return met.status().message();
}

TEST(AbsentServer, AnAttemptThatTheDeadlineCutsShortTellsNothing) {
  EXPECT_NE(said_within(300ms).find(": Connection refused; only host"), std::string::npos);
}

TEST(AbsentServer, TheLastAttemptTellsWhenItHadTime) {
  EXPECT_NE(said_within(2500ms).find(": Connection timed out (the host is down"), std::string::npos);
}

TEST(AbsentServer, AfterTheDeadlineNoNameIsResolvedAgain) {
  const auto met = Bootstrap::connect(config_of(1, 2, {kSlowName, 1}, kShortDeadline));
  EXPECT_NE(met.status().message().find("cannot resolve 'far.example'"), std::string::npos) << met.status().message();
  EXPECT_NE(met.status().message().find("; asked from host "), std::string::npos) << met.status().message();
  EXPECT_EQ(slow_resolutions, 1);
}

}  // namespace
}  // namespace tutti::bootstrap::absent_server_test
