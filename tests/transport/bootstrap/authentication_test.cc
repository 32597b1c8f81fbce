// Unauthenticated peers of the bootstrap server are refused with one line each. The job neither fails nor waits for
// them.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/transport/bootstrap/bootstrap_support.h"
#include "tests/transport/sockets/connect_to.h"
#include "transport/bootstrap/client.h"
#include "transport/bootstrap/connection.h"
#include "transport/sockets/nonce.h"

namespace tutti::bootstrap::authentication_test {
namespace {

/// A server for two ranks that still waits for rank 1, and what it writes to standard error.
class Authentication : public ::testing::Test {
 protected:
  void SetUp() override {
    ::testing::internal::CaptureStderr();
    std::unique_ptr<sockets::Listener> listener = sockets::Listener::open({"127.0.0.1", 0}).take();
    server_ = listener->endpoint();
    Config config = config_of(0, 2, server_);
    config.listener = std::move(listener);
    rank0_ = std::thread([this, config = std::move(config)]() mutable {
      auto met = Bootstrap::connect(std::move(config));
      ASSERT_TRUE(met.ok()) << met.status().message();
      EXPECT_TRUE(met.value()->barrier().ok());
      EXPECT_TRUE(met.value()->leave().ok());
    });
  }

  /// Rank 1 comes, and the job runs as if nothing had been. The limit is far below the time that a silent connection is
  /// given, so that a job which waits for unauthenticated peers fails.
  void job_runs() {
    auto met = Bootstrap::connect(config_of(1, 2, server_, 3s));
    ASSERT_TRUE(met.ok()) << met.status().message();
    EXPECT_TRUE(met.value()->barrier().ok());
    EXPECT_TRUE(met.value()->leave().ok());
  }

  void TearDown() override {
    if (rank0_.joinable()) rank0_.join();
    if (!told_) ::testing::internal::GetCapturedStderr();
  }

  /// Returns the lines about refused clients, after the job.
  std::vector<std::string> told() {
    rank0_.join();
    told_ = true;
    std::vector<std::string> lines;
    std::string text = ::testing::internal::GetCapturedStderr();
    for (std::size_t end; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
      lines.push_back(text.substr(0, end));
    }
    return lines;
  }

  void expect_told(const std::string& why, std::size_t lines = 1) {
    const std::vector<std::string> all = told();
    ASSERT_EQ(all.size(), lines);
    for (const std::string& line : all) EXPECT_NE(line.find("refused 127.0.0.1:"), std::string::npos) << line;
    EXPECT_NE(all[0].find(why), std::string::npos) << all[0];
  }

  Connection connect() { return Connection(testing::connect_to(server_, 1000).take()); }

  /// Sends bytes and waits until the server has hung up.
  void send_and_be_refused(const std::string& bytes) {
    Connection connection = connect();
    connection.send(bytes);
    wait_for_end(connection);
  }

  /// Connects, says nothing, and waits until the server has hung up.
  void come_and_go() {
    Connection connection = connect();
    connection.finish_sending();
    wait_for_end(connection);
  }

  static void wait_for_end(Connection& connection) {
    const auto deadline = std::chrono::steady_clock::now() + 10s;
    while (connection.open()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the server has not hung up";
      pollfd item = connection.poll_item();
      ::poll(&item, 1, 100);
      connection.flush();
      connection.receive();
    }
  }

  sockets::Endpoint server_;
  std::thread rank0_;
  bool told_ = false;
};

TEST_F(Authentication, WrongSecret) {
  Config config = config_of(1, 2, server_, 3s);
  config.secret = Secret::from_text("guessed");
  const auto met = Bootstrap::connect(std::move(config));
  ASSERT_FALSE(met.ok());
  EXPECT_EQ(met.status().code(), Code::invalid_argument);
  EXPECT_EQ(met.status().message(), "rank 1 cannot join at " + server_.text() + ": its secret is not this job's");
  job_runs();
  expect_told("its secret is not this job's");
}

TEST_F(Authentication, WrongSizeAndWrongRankAreToldWhy) {
  auto met = Bootstrap::connect(config_of(1, 3, server_, 3s));
  ASSERT_FALSE(met.ok());
  EXPECT_NE(met.status().message().find("it expects 3 ranks where rank 0 expects 2"), std::string::npos);
  job_runs();
  expect_told("it expects 3 ranks where rank 0 expects 2");
}

// L1: ranks that expect another size do not find each other; both are told so.
TEST(Refused, AreNamedWhereARankIsMissing) {
  ::testing::internal::CaptureStderr();
  std::unique_ptr<sockets::Listener> listener = sockets::Listener::open({"127.0.0.1", 0}).take();
  const sockets::Endpoint server = listener->endpoint();
  Config config = config_of(0, 2, server, 1s);
  config.listener = std::move(listener);
  std::string told;
  std::thread rank0([&] { told = Bootstrap::connect(std::move(config)).status().message(); });
  EXPECT_FALSE(Bootstrap::connect(config_of(1, 3, server, 3s)).ok());
  rank0.join();
  ::testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("rank 1 of 2 has not come within 1 s"), std::string::npos) << told;
  EXPECT_NE(told.find("was refused: it expects 3 ranks where rank 0 expects 2"), std::string::npos) << told;
}

TEST_F(Authentication, RankZeroASecondTime) {
  const BootstrapEndpoint second(0, 2, {"beta", 5});
  const auto joined = join(second, server_, test_secret(), BootstrapEndpoint::Clock::now() + 3s, 3s);
  ASSERT_FALSE(joined.ok());
  EXPECT_NE(joined.status().message().find("rank 0 (host "), std::string::npos) << joined.status().message();
  EXPECT_NE(joined.status().message().find("is here already"), std::string::npos) << joined.status().message();
  job_runs();
  expect_told("is here already");
}

TEST_F(Authentication, Garbage) {
  send_and_be_refused("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  job_runs();
  expect_told("it sent a message of ");
}

TEST_F(Authentication, AnotherMessageInsteadOfAJoinRequest) {
  send_and_be_refused(frame_of(Gather{1, "early"}));
  job_runs();
  expect_told("something else than a join request");
}

TEST_F(Authentication, AnOversizedMessageIsRefusedFromItsHeader) {
  send_and_be_refused(encode_frame(MessageType::join_request, std::string(kMaxUnprovenPayload + 1, 'x')).substr(0, 5));
  job_runs();
  expect_told("a message of 513 bytes where at most 512 are allowed");
}

TEST_F(Authentication, ATruncatedJoinRequest) {
  {
    Connection connection = connect();
    const std::string whole = frame_of(JoinRequest{});
    connection.send(whole.substr(0, whole.size() - 1));
    connection.finish_sending();
    wait_for_end(connection);
  }
  job_runs();
  expect_told("it closed before it had proven");
}

TEST_F(Authentication, AReplayedJoinRequest) {
  // A true join request, but for another connection's challenge.
  JoinRequest request;
  request.rank = 1;
  request.size = 2;
  request.proof = prove(test_secret(), {sockets::random_nonce(), request.nonce}, request);
  send_and_be_refused(frame_of(request));
  job_runs();
  expect_told("its secret is not this job's");
}

TEST_F(Authentication, APortScan) {
  for (int i = 0; i < 10; ++i) come_and_go();
  job_runs();
  expect_told("it closed before it had proven", 10);
}

TEST_F(Authentication, AFloodIsToldInAFewLines) {
  for (int i = 0; i < 200; ++i) come_and_go();
  job_runs();
  const std::vector<std::string> lines = told();
  ASSERT_EQ(lines.size(), 16u);
  EXPECT_NE(lines[15].find("further refusals are told with TUTTI_LOG=info"), std::string::npos);
}

TEST_F(Authentication, HalfOpenConnectionsDelayNoRank) {
  // More than the server keeps: the oldest go.
  std::vector<Connection> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(connect());
  wait_for_end(silent[0]);
  job_runs();
  EXPECT_FALSE(told().empty());
}

TEST_F(Authentication, RandomBytes) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::string join_request = frame_of(JoinRequest{});
  for (int i = 0; i < 100; ++i) {
    std::string bytes = random() % 2 ? join_request : std::string(1 + random() % 2000, '\0');
    const std::size_t changes = 1 + random() % bytes.size();
    for (std::size_t c = 0; c < changes; ++c) bytes[random() % bytes.size()] = static_cast<char>(random());
    Connection connection = connect();
    connection.send(bytes);
    connection.finish_sending();
    wait_for_end(connection);
  }
  job_runs();
}

#if !defined(__SANITIZE_ADDRESS__)  // UBSan, built in with it, needs a descriptor to look at objects
TEST_F(Authentication, NoDescriptorsLeft) {
  // A process that has none left cannot accept; it must not give up for that.
  come_and_go();  // the server has opened what it needs itself
  std::vector<sockets::Fd> waiting;
  for (int i = 0; i < 8; ++i) waiting.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = static_cast<rlim_t>(waiting.back().get() + 1);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server_.port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (const sockets::Fd& fd : waiting) {
    EXPECT_TRUE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
                errno == EINPROGRESS);
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  job_runs();
}
#endif

TEST(Duplicate, ASecondRankOfTheSameNumberIsRefusedAndTheFirstStays) {
  ::testing::internal::CaptureStderr();
  const sockets::Endpoint server = unused_local_endpoint();
  on_threads({0, 1}, [&](int rank) {
    if (rank == 0) {
      auto met = Bootstrap::connect(config_of(0, 3, server));
      ASSERT_TRUE(met.ok()) << met.status().message();
      EXPECT_TRUE(met.value()->barrier().ok());
      EXPECT_TRUE(met.value()->leave().ok());
      return;
    }
    const BootstrapEndpoint local(1, 3, {"alpha", 77});
    auto first = join(local, server, test_secret(), BootstrapEndpoint::Clock::now() + 30s, 30s);
    ASSERT_TRUE(first.ok()) << first.status().message();
    const auto second = Bootstrap::connect(config_of(1, 3, server, 3s));
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.status().message(),
              "rank 1 cannot join at " + server.text() + ": rank 1 (host alpha, pid 77) is here already");
    // The first goes on as if nothing had been.
    std::thread rank2([&] {
      auto met = Bootstrap::connect(config_of(2, 3, server));
      ASSERT_TRUE(met.ok()) << met.status().message();
      EXPECT_TRUE(met.value()->barrier().ok());
      EXPECT_TRUE(met.value()->leave().ok());
    });
    BootstrapEndpoint same(1, 3, {"alpha", 77});
    std::thread serving([&] { run_client(same, first.take()); });
    EXPECT_TRUE(same.await(0, BootstrapEndpoint::Clock::now() + 30s, 30s).blobs.ok());
    EXPECT_TRUE(same.post(Gather{1, ""}).ok());
    EXPECT_TRUE(same.await(1, BootstrapEndpoint::Clock::now() + 30s, 30s).blobs.ok());
    same.ask_to_leave();
    serving.join();
    rank2.join();
  });
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("is here already"), std::string::npos) << text;
}

}  // namespace
}  // namespace tutti::bootstrap::authentication_test
