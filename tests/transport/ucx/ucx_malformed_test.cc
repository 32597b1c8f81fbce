// What a peer may send that it should not: a sentence and a broken link, never an end of the process, nor a write
// outside of what is exposed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/transport/wire/wire_bytes.h"
#include "tests/transport/wire/wire_job.h"
#include "transport/sockets/fd.h"
#include "transport/ucx/ucx.h"

#ifdef TUTTI_HAS_UCX

#include "transport/ucx/links.h"

namespace tutti::testing::ucx_malformed_test {
namespace {

using transport::UcxWire;
using ucx::AmMessage;

WireJob job_of(int own) {
  WireJob job;
  job.rank = own;
  job.hosts = {0, 1};
  job.names = {"rank 0", "rank 1"};
  job.lanes = 2;
  job.own_ip = "127.0.0.1";
  return job;
}

/// Rank 1 of a job, without manners.
class MeanPeer {
 public:
  explicit MeanPeer(const std::string& victim) : context_(ucx::Context::open(job_of(1)).take()) {
    ucp_ep_params_t how{};
    how.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    how.address = reinterpret_cast<const ucp_address_t*>(victim.data() + ucx::kAddressAt);
    how.err_mode = UCP_ERR_HANDLING_MODE_PEER;  // another one's endpoint the victim could not answer
    EXPECT_EQ(context_->ucp().ep_create(context_->worker(), &how, &endpoint_), UCS_OK);
  }
  const std::string& address() const { return context_->address(); }
  void send(std::string_view message, const std::string& large) {
    texts_.push_back(std::string(message) + large);
    const char* text = texts_.back().data();
    ucp_request_param_t how{};
    void* request =
        context_->ucp().am_send_nbx(endpoint_, 0, text, message.size(), text + message.size(), large.size(), &how);
    ASSERT_FALSE(UCS_PTR_IS_ERR(request));
    if (request != nullptr) context_->ucp().request_free(request);
  }
  void progress() { (void)context_->ucp().worker_progress(context_->worker()); }

 private:
  std::unique_ptr<ucx::Context> context_;
  ucp_ep_h endpoint_ = nullptr;
  std::deque<std::string> texts_;  // until they have left
};

struct Malformed {
  std::string what;                      // of the sentence
  std::function<void(AmMessage&)> fill;  // what follows a good message
  std::uint64_t number = 1;              // of it
  std::size_t cut = 0;                   // bytes off its end
  std::string large = {};                // data behind it
};

const Malformed kMalformed[] = {
    {"message 0 of lane 0 twice", [](AmMessage& p) { p.signal(0, 0, 7, 7); }, 0},
    {"a signal for place 8, which is no multiple of 16", [](AmMessage& p) { p.signal(0, 8, 7, 7); }},
    {"16 bytes for memory that this process has not exposed", [](AmMessage& p) { p.signal(0, 4096, 7, 7); }},
    {"16 bytes for memory that this process has not exposed", [](AmMessage& p) { p.signal(0, UINT64_MAX - 15, 7, 7); }},
    {"9 bytes for memory that this process has not exposed", [](AmMessage& p) { p.put(0, 4088, "some more", 9); }},
    {"9 bytes for memory that this process has not exposed", [](AmMessage& p) { p.put(1, 0, "some more", 9); }},
    {"0 bytes where 100 were due", [](AmMessage& p) { p.large_put(0, 0, 100); }},
    {"4 bytes without a destination", [](AmMessage& p) { p.signal(0, 0, 7, 7); }, 1, 0, "more"},
    {"cut off 24 bytes before its end", [](AmMessage& p) { p.signal(0, 0, 7, 7); }, 1, 8},
};

/// Empty, or what is not as it should be.
std::string outcome_of(const Malformed& malformed) {
  constexpr std::size_t kBytes = 4096;
  alignas(64) static std::byte memory[3 * kBytes];
  std::memset(memory, 0x55, sizeof memory);
  std::unique_ptr<Wire> wire = UcxWire::open(job_of(0)).take();
  MeanPeer peer(wire->address());
  if (Status met = wire->meet({"", peer.address()}); !met.ok()) return met.message();
  if (const auto key = wire->expose(memory + kBytes, kBytes); !key.ok()) return key.status().message();
  for (const bool good : {true, false}) {
    AmMessage message(4096);
    good ? message.signal(0, 16, 41, 42) : malformed.fill(message);
    message.set_head(1, 0, good ? 0 : malformed.number, ucx::pass_between(peer.address(), wire->address()));
    peer.send(message.bytes().substr(0, message.bytes().size() - (good ? 0 : malformed.cut)),
              good ? "" : malformed.large);
  }
  const auto end = std::chrono::steady_clock::now() + kTestTimeout / 4;
  while (wire->broken(1).ok()) {
    peer.progress();
    (void)wire->progress();
    if (std::chrono::steady_clock::now() > end) return "the link has not broken";
  }
  std::uint64_t count = 0;
  std::memcpy(&count, memory + kBytes + 16, sizeof count);
  if (count != 41) return "the good message has not come";
  const auto is_free = [](std::byte b) { return b == std::byte{0x55}; };
  if (!std::all_of(memory, memory + kBytes, is_free) || !std::all_of(memory + 2 * kBytes, std::end(memory), is_free)) {
    return "what was not exposed has been written";
  }
  const std::string said = wire->broken(1).message();
  return said.starts_with("rank 1 has sent by UCX ") && said.ends_with(malformed.what) ? "" : said;
}

TEST(UcxMalformed, WhatMakesNoSenseBreaksTheLink) {
  if (!UcxWire::missing().empty()) GTEST_SKIP() << "tutti-test: not run: " << UcxWire::missing();
  for (const Malformed& malformed : kMalformed) {
    const Outcome outcome = in_child([&] { return outcome_of(malformed); }, {{"UCX_TLS", "tcp"}});
    EXPECT_EQ(outcome.error + outcome.said, "") << malformed.what;
  }
}

/// A client without the nonces that the ranks exchanged may claim a rank, but is ignored.
TEST(UcxMalformed, UnauthenticatedClientsAreIgnored) {
  if (!UcxWire::missing().empty()) GTEST_SKIP() << "tutti-test: not run: " << UcxWire::missing();
  const auto body = []() -> std::string {
    alignas(64) static std::byte memory[4096];
    std::unique_ptr<Wire> wire = UcxWire::open(job_of(0)).take();
    MeanPeer peer(wire->address());
    if (const auto key = wire->expose(memory, sizeof memory); !key.ok()) return key.status().message();
    const auto count_at = [](std::size_t at) {
      std::uint64_t count = 0;
      std::memcpy(&count, memory + at, sizeof count);
      return count;
    };
    if (const Status met = wire->meet({"", peer.address()}); !met.ok()) return met.message();
    const std::uint64_t pass = ucx::pass_between(peer.address(), wire->address());
    for (const bool rank : {false, true}) {
      AmMessage message(4096);
      message.signal(0, rank ? 16 : 32, 41, 42);
      message.set_head(1, 0, 0, rank ? pass : pass ^ 1);
      peer.send(message.bytes(), "");
    }
    const auto end = std::chrono::steady_clock::now() + kTestTimeout / 4;
    while (count_at(16) == 0 && wire->broken(1).ok() && std::chrono::steady_clock::now() < end) {
      peer.progress();
      (void)wire->progress();
    }
    if (count_at(32) != 0) return "an unauthenticated peer has been heard";
    return count_at(16) == 41 ? "" : "the rank has not been heard: " + wire->broken(1).message();
  };
  const Outcome outcome = in_child(body, {{"UCX_TLS", "tcp"}});
  EXPECT_EQ(outcome.error + outcome.said, "");
}

/// The kernel takes the connection for a peer that never moves, but UCX's own words are not answered.
TEST(UcxMalformed, WhoDoesNotAnswerIsToldOfUntilItDoes) {
  if (!UcxWire::missing().empty()) GTEST_SKIP() << "tutti-test: not run: " << UcxWire::missing();
  const auto body = []() -> std::string {
    std::unique_ptr<Wire> wire = UcxWire::open(job_of(0)).take();
    const std::unique_ptr<ucx::Context> peer = ucx::Context::open(job_of(1)).take();
    if (const Status met = wire->meet({"", peer->address()}); !met.ok()) return met.message();
    const Region there = wire->attach(1, "0 4096", 4096).take();
    if (!wire->obstacle(1).empty()) return "before it is sent anything: " + wire->obstacle(1);
    if (const Status sent = wire->signal(1, 0, there, 0, 1, 0, Flush::now); !sent.ok()) return sent.message();
    for (int i = 0; i < 1000; ++i) (void)wire->progress();
    std::string said = wire->obstacle(1);
    const auto end = std::chrono::steady_clock::now() + kTestTimeout / 4;
    while (!wire->obstacle(1).empty() && wire->broken(1).ok() && std::chrono::steady_clock::now() < end) {
      (void)peer->ucp().worker_progress(peer->worker());
      (void)wire->progress();
    }
    return said + "; then: " + wire->obstacle(1) + wire->broken(1).message();
  };
  const Outcome outcome = in_child(body, {{"UCX_TLS", "tcp"}});
  EXPECT_EQ(outcome.error, "");
  EXPECT_THAT(outcome.said,
              ::testing::MatchesRegex("nothing that was sent to it by UCX over lo has left within .* s; then: "));
}

/// The peer's address has no listener any more, and there is no connection yet.
TEST(UcxMalformed, WhoHasGoneBeforeItWasReachedBreaksTheLink) {
  if (!UcxWire::missing().empty()) GTEST_SKIP() << "tutti-test: not run: " << UcxWire::missing();
  const auto body = []() -> std::string {
    std::unique_ptr<Wire> wire = UcxWire::open(job_of(0)).take();
    const std::string address = ucx::Context::open(job_of(1)).take()->address();
    if (const Status met = wire->meet({"", address}); !met.ok()) return met.message();
    const Region there = wire->attach(1, "0 4096", 4096).take();
    (void)wire->signal(1, 0, there, 0, 1, 0, Flush::now);
    const auto end = std::chrono::steady_clock::now() + kTestTimeout / 4;
    while (wire->broken(1).ok() && std::chrono::steady_clock::now() < end) (void)wire->progress();
    return wire->broken(1).message() + "; " + wire->obstacle(1);
  };
  const Outcome outcome = in_child(body, {{"UCX_TLS", "tcp"}});
  EXPECT_EQ(outcome.error, "");
  EXPECT_THAT(outcome.said, ::testing::MatchesRegex("the link to rank 1 by UCX over lo has broken: .*; "));
}

#if !defined(__SANITIZE_ADDRESS__)  // UBSan, built in with it, needs a descriptor to look at objects
/// UCX itself would end the process.
TEST(UcxMalformed, NoDescriptorLeftForAnEndpointBreaksTheLink) {
  if (!UcxWire::missing().empty()) GTEST_SKIP() << "tutti-test: not run: " << UcxWire::missing();
  const auto body = []() -> std::string {
    std::unique_ptr<Wire> wire = UcxWire::open(job_of(0)).take();
    const std::unique_ptr<ucx::Context> peer = ucx::Context::open(job_of(1)).take();
    if (const Status met = wire->meet({"", peer->address()}); !met.ok()) return met.message();
    const Region there = wire->attach(1, "0 4096", 4096).take();
    std::vector<sockets::Fd> all;
    const rlimit few{256, 256};
    if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return "no limit";
    do {
      all.emplace_back(::dup(STDERR_FILENO));
    } while (all.back());
    const Status sent = wire->signal(1, 0, there, 0, 1, 0, Flush::now);
    return sent.message() + "; " + wire->broken(1).message();
  };
  const Outcome outcome = in_child(body, {{"UCX_TLS", "tcp"}});
  EXPECT_EQ(outcome.error, "");
  const std::string why = "UCX: no endpoint can be made: Too many open files (open files of a process; ulimit -n)";
  EXPECT_EQ(outcome.said, why + "; " + why);
}
#endif

/// Both live: the two only have no network in common.
TEST(UcxMalformed, WhoCannotBeReachedByAnyDeviceIsNotTakenForDead) {
  if (!UcxWire::missing().empty()) GTEST_SKIP() << "tutti-test: not run: " << UcxWire::missing();
  const auto body = []() -> std::string {
    std::unique_ptr<Wire> wire = UcxWire::open(job_of(0)).take();
    ::setenv("UCX_TLS", "posix,self", 1);
    const std::unique_ptr<ucx::Context> peer = ucx::Context::open(job_of(1)).take();
    if (const Status met = wire->meet({"", peer->address()}); !met.ok()) return met.message();
    const Region there = wire->attach(1, "0 4096", 4096).take();
    (void)wire->signal(1, 0, there, 0, 1, 0, Flush::now);
    const Status broken = wire->broken(1);
    return (broken.code() == Code::unsupported ? "unsupported: " : "another code: ") + broken.message();
  };
  const Outcome outcome = in_child(body, {{"UCX_TLS", "tcp"}});
  EXPECT_EQ(outcome.error, "");
  EXPECT_THAT(
      outcome.said,
      ::testing::MatchesRegex("unsupported: the link to rank 1 by UCX over lo has broken: Destination is unreachable"));
}

/// An endpoint that is half made when its worker ends lets UCX abort the process.
TEST(UcxMalformed, WhoIsHeardWhileTheWireEndsIsNotConnected) {
  if (!UcxWire::missing().empty()) GTEST_SKIP() << "tutti-test: not run: " << UcxWire::missing();
  const auto body = []() -> std::string {
    alignas(64) static std::byte memory[4096];
    std::unique_ptr<Wire> wire = UcxWire::open(job_of(0)).take();
    MeanPeer peer(wire->address());
    if (const auto key = wire->expose(memory, sizeof memory); !key.ok()) return key.status().message();
    if (const Status met = wire->meet({"", peer.address()}); !met.ok()) return met.message();
    const auto signal = [&](std::uint64_t number) {
      AmMessage message(4096);
      message.signal(0, 16, number + 1, 0);
      message.set_head(1, 0, number, ucx::pass_between(peer.address(), wire->address()));
      peer.send(message.bytes(), "");
    };
    const auto count = [] {
      std::uint64_t count = 0;
      std::memcpy(&count, memory + 16, sizeof count);
      return count;
    };
    ::testing::internal::CaptureStderr();
    signal(0);
    const auto end = std::chrono::steady_clock::now() + kTestTimeout / 4;
    while (count() == 0 && std::chrono::steady_clock::now() < end) {
      peer.progress();
      (void)wire->progress();
    }
    signal(1);  // it has a connection, and so lies in the wire's socket from here on
    wire.reset();
    return fmt::format("{} signals came; {}", count(), ::testing::internal::GetCapturedStderr());
  };
  const Outcome outcome = in_child(body, {{"UCX_TLS", "tcp"}, {"TUTTI_LOG", "debug"}});
  EXPECT_EQ(outcome.error, "");
  EXPECT_THAT(outcome.said, ::testing::StartsWith("2 signals came; "));
  const std::string made = "UCX: an endpoint to rank 1 is made";
  const std::size_t first = outcome.said.find(made);
  EXPECT_NE(first, std::string::npos) << outcome.said;  // when it was heard first
  EXPECT_EQ(outcome.said.find(made, first + 1), std::string::npos) << outcome.said;
}

TEST(UcxMalformed, KeysThatMakeNoSenseAreRefused) {
  if (!UcxWire::missing().empty()) GTEST_SKIP() << "tutti-test: not run: " << UcxWire::missing();
  const auto body = []() -> std::string {
    std::unique_ptr<Wire> wire = UcxWire::open(job_of(0)).take();
    std::string said;
    for (const char* key : {"", "x", "7", "7 ", "-1 4096", "7 4096 ", "99999999999 4096", "7 4095"}) {
      said += wire->attach(1, key, 4096).ok() ? std::string(key) + " is taken; " : "";
    }
    return said + wire->attach(1, "7 4095", 4096).status().message() + "; " +
           wire->attach(1, "", 4096).status().message();
  };
  const Outcome outcome = in_child(body, {{"UCX_TLS", "tcp"}});
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(
      outcome.said,
      "UCX: rank 1 exposes 4095 bytes; 4096 were expected; UCX: what rank 1 has sent is no key of exposed memory");
}

TEST(UcxMalformed, PlacesOfUnexposedMemoryAreUsedAgain) {
  if (!UcxWire::missing().empty()) GTEST_SKIP() << "tutti-test: not run: " << UcxWire::missing();
  const auto body = []() -> std::string {
    std::unique_ptr<Wire> wire = UcxWire::open(job_of(0)).take();
    alignas(64) static std::byte memory[2 * 4096];
    (void)wire->expose(memory, 4096);
    std::string last;
    for (int i = 0; i < 100; ++i) {
      last = wire->expose(memory + 4096, 4096).take();
      wire->unexpose(memory + 4096);
    }
    return last;
  };
  const Outcome outcome = in_child(body, {{"UCX_TLS", "tcp"}});
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(outcome.said, fmt::format("{} 4096", 1 + 99 * 65536));  // the second place, by another number each time
}

}  // namespace
}  // namespace tutti::testing::ucx_malformed_test

#else

TEST(UcxMalformed, WhatMakesNoSenseBreaksTheLink) {
  GTEST_SKIP() << "tutti-test: not run: " << tutti::transport::UcxWire::missing();
}

#endif
