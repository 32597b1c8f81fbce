#include "transport/bootstrap/bootstrap.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/start_thread.h"
#include "transport/bootstrap/client.h"
#include "transport/bootstrap/server.h"
#include "transport/sockets/interfaces.h"

namespace tutti::bootstrap {
namespace {

// The layout of a unique id: magic, port, length of the address, the address, the secret.
constexpr std::string_view kMagic = "TUTTIID1";
constexpr std::size_t kPortAt = 8;
constexpr std::size_t kLengthAt = 10;
constexpr std::size_t kAddressAt = 12;
constexpr std::size_t kSecretAt = 96;
constexpr std::size_t kMaxAddress = kSecretAt - kAddressAt - 4;

}  // namespace

Result<std::array<char, 128>> encode_join_info(const JoinInfo& info) {
  const std::string& address = info.server.address;
  if (address.size() > kMaxAddress) {
    return invalid_argument(
        fmt::format("an address of {} bytes does not fit a unique id; at most {} do", address.size(), kMaxAddress));
  }
  std::array<char, 128> bytes{};
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  bytes[kPortAt] = static_cast<char>(info.server.port & 0xff);
  bytes[kPortAt + 1] = static_cast<char>(info.server.port >> 8);
  bytes[kLengthAt] = static_cast<char>(address.size());
  std::memcpy(bytes.data() + kAddressAt, address.data(), address.size());
  std::memcpy(bytes.data() + kSecretAt, info.secret.bytes.data(), info.secret.bytes.size());
  return bytes;
}

Result<JoinInfo> decode_join_info(std::span<const char, 128> bytes) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned>(static_cast<unsigned char>(bytes[at])); };
  const std::size_t length = byte(kLengthAt);
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0 || length == 0 || length > kMaxAddress) {
    return invalid_argument("these 128 bytes are not a unique id; expected what make_unique_id() of this version gave");
  }
  JoinInfo info;
  info.server.port = static_cast<std::uint16_t>(byte(kPortAt) | byte(kPortAt + 1) << 8);
  info.server.address.assign(bytes.data() + kAddressAt, length);
  std::memcpy(info.secret.bytes.data(), bytes.data() + kSecretAt, info.secret.bytes.size());
  return info;
}

Bootstrap::Bootstrap(int rank, int size, std::chrono::milliseconds deadline)
    : deadline_(deadline),
      process_(::getpid()),
      endpoint_(std::make_unique<BootstrapEndpoint>(rank, size, Identity{sockets::host_name(), ::getpid()})) {}

Bootstrap::~Bootstrap() {
  if (::getpid() != process_) {
    // In a fork's child the threads do not exist, neither ours nor those that waited: what they used is given up.
    (void)new std::thread(std::move(thread_));
    (void)endpoint_.release();
    return;
  }
  if (!thread_.joinable()) return;
  endpoint_->ask_to_stop();
  thread_.join();
}

Result<std::unique_ptr<Bootstrap>> Bootstrap::connect(Config config) {
  if (config.size < 1 || config.size > kMaxRanks || config.rank < 0 || config.rank >= config.size) {
    return invalid_argument(
        fmt::format("rank {} of {} ranks: expected 0 <= rank < size <= {}", config.rank, config.size, kMaxRanks));
  }
  std::unique_ptr<Bootstrap> bootstrap(new Bootstrap(config.rank, config.size, config.deadline));
  if (config.size == 1) {
    bootstrap->roster_ = {bootstrap->endpoint_->own()};
    return bootstrap;
  }
  TUTTI_TRY(bootstrap->start(std::move(config)));
  return bootstrap;
}

Status Bootstrap::start(Config config) {
  const auto deadline = BootstrapEndpoint::Clock::now() + deadline_;
  const sockets::Endpoint& server = config.listener != nullptr ? config.listener->endpoint() : config.server;
  if (!server.is_unix() && !sockets::is_loopback(server.address))
    TUTTI_TRY(sockets::own_address({}).status());  // a wrong TUTTI_INTERFACE
  if (config.rank == 0) {
    if (config.listener == nullptr) {
      Result<std::unique_ptr<sockets::Listener>> opened = sockets::Listener::open(config.server);
      if (!opened.ok()) return Status(opened.status().code(), "rank 0 " + opened.status().message());
      config.listener = opened.take();
    }
    TUTTI_TRY(start_server(std::move(config.listener), config.secret));
  } else {
    TUTTI_TRY(start_client(config, deadline));
  }
  const Status joined = endpoint_->await(0, deadline, deadline_).blobs.status();
  if (!joined.ok()) {
    // The server sends the others the same. With a goodbye they do not take this rank's end for another failure.
    (void)leave().ok();
    return joined;
  }
  roster_ = endpoint_->roster();
  return {};
}

Status Bootstrap::start_server(std::unique_ptr<sockets::Listener> listener, const Secret& secret) {
  // Shared: of a thread that cannot start it is left here.
  const auto kept = std::make_shared<std::unique_ptr<sockets::Listener>>(std::move(listener));
  Status status = endpoint_->made();
  if (status.ok()) {
    Result<std::thread> thread = start_thread(
        "the bootstrap thread", [this, kept, secret] { run_server(*endpoint_, std::move(*kept), secret); });
    status = thread.status();
    if (thread.ok()) thread_ = thread.take();
  }
  if (!status.ok()) {
    refuse_all(*endpoint_, std::move(*kept), secret,
               Status(status.code(), gave_up(0, endpoint_->own(), status.message())));
  }
  return status;
}

Status Bootstrap::start_client(const Config& config, std::chrono::steady_clock::time_point deadline) {
  constexpr std::chrono::milliseconds kToReport{1500};
  Status status = endpoint_->made();
  if (!status.ok()) deadline = std::min(deadline, BootstrapEndpoint::Clock::now() + kToReport);
  Result<Joined> joined = join(*endpoint_, config.server, config.secret, deadline, deadline_);
  if (!joined.ok()) return status.ok() ? joined.status() : status;
  const auto kept = std::make_shared<Joined>(joined.take());
  if (status.ok()) {
    Result<std::thread> thread =
        start_thread("the bootstrap thread", [this, kept] { run_client(*endpoint_, std::move(*kept)); });
    status = thread.status();
    if (thread.ok()) thread_ = thread.take();
  }
  if (!status.ok()) report_and_leave(*endpoint_, *kept, status);
  return status;
}

void Bootstrap::give_up(const Status& why) {
  const Code code = why.code();
  const bool own = code != Code::peer_died && code != Code::aborted && code != Code::timeout;
  if (own) (void)announce(kMakingComm, code, gave_up(rank(), endpoint_->own(), why.message()));
  (void)leave();
}

Result<std::vector<std::string>> Bootstrap::all_gather(std::string_view mine) {
  if (mine.size() > kMaxPayload / 2) {
    return invalid_argument(fmt::format("rank {} gives {} bytes to an exchange; at most {} are allowed", rank(),
                                        mine.size(), kMaxPayload / 2));
  }
  if (size() == 1) return std::vector<std::string>{std::string(mine)};
  Gather gather;
  gather.sequence = ++exchanges_;
  gather.blob = mine;
  TUTTI_TRY(endpoint_->post(gather));
  return endpoint_->await(gather.sequence, BootstrapEndpoint::Clock::now() + deadline_, deadline_).blobs;
}

Bootstrap::Survivors Bootstrap::exchange_with_survivors(std::uint64_t name,
                                                        const std::function<std::vector<bool>()>& among,
                                                        std::string_view mine, std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds kLookAgain{1};
  TUTTI_CHECK(!mine.empty());
  SurvivorExchange exchange;
  exchange.sequence = name | SurvivorExchange::kName;
  exchange.blob = mine;
  for (const auto deadline = BootstrapEndpoint::Clock::now() + limit;;) {
    const std::vector<bool> now = among();
    if (std::string bytes(now.begin(), now.end()); bytes != exchange.among) {
      exchange.among = std::move(bytes);
      if (Status posted = endpoint_->post(exchange); !posted.ok()) return {std::move(posted)};
    }
    std::optional<BootstrapEndpoint::Outcome> outcome = endpoint_->await_briefly(exchange.sequence, kLookAgain);
    if (!outcome && BootstrapEndpoint::Clock::now() >= deadline) {
      outcome = endpoint_->await(exchange.sequence, deadline, limit);
    }
    if (outcome) return {std::move(outcome->blobs), outcome->late_rank};
  }
}

Status Bootstrap::barrier() { return all_gather({}).status(); }

void Bootstrap::watch(std::function<void(const Failure&)> on_failure,
                      std::function<void(const ProgressReport&)> on_progress_report,
                      std::function<void(const LeaveNotice&)> on_leave_notice) {
  endpoint_->watch(std::move(on_failure), std::move(on_progress_report), std::move(on_leave_notice));
}

Status Bootstrap::query_progress(std::uint64_t comm_id) {
  return endpoint_->post(ProgressReport{rank(), -1, comm_id, 0});
}

Status Bootstrap::report_progress(const ProgressReport& query, std::uint64_t word) {
  return endpoint_->post(ProgressReport{query.asker, rank(), query.comm_id, word});
}

Status Bootstrap::send_leave_notice(std::uint64_t comm_id, bool came, std::vector<std::int32_t> to) {
  to.push_back(rank());
  return endpoint_->post(LeaveNotice{comm_id, static_cast<std::uint8_t>(came), std::move(to)});
}

Status Bootstrap::announce(std::uint64_t comm_id, Code code, std::string message) {
  TUTTI_CHECK(code != Code::ok);
  if (size() == 1) return {};
  FailureNote note;
  note.rank = rank();
  note.comm_id = comm_id;
  note.code = code;
  note.text = std::move(message);
  return endpoint_->post(note);
}

Status Bootstrap::leave() {
  if (!thread_.joinable()) return {};
  endpoint_->ask_to_leave();
  thread_.join();
  endpoint_->break_off(Status(Code::aborted, fmt::format("rank {} has left the bootstrap", rank())));
  return {};
}

}  // namespace tutti::bootstrap
