#include "transport/bootstrap/bootstrap.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/start_thread.h"
#include "transport/bootstrap/guest.h"
#include "transport/bootstrap/hub.h"
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

Result<std::array<char, 128>> encode_meeting(const Meeting& meeting) {
  const std::string& address = meeting.hub.address;
  if (address.size() > kMaxAddress) {
    return invalid_argument(
        fmt::format("an address of {} bytes does not fit a unique id; at most {} do", address.size(), kMaxAddress));
  }
  std::array<char, 128> bytes{};
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  bytes[kPortAt] = static_cast<char>(meeting.hub.port & 0xff);
  bytes[kPortAt + 1] = static_cast<char>(meeting.hub.port >> 8);
  bytes[kLengthAt] = static_cast<char>(address.size());
  std::memcpy(bytes.data() + kAddressAt, address.data(), address.size());
  std::memcpy(bytes.data() + kSecretAt, meeting.secret.bytes.data(), meeting.secret.bytes.size());
  return bytes;
}

Result<Meeting> decode_meeting(std::span<const char, 128> bytes) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned>(static_cast<unsigned char>(bytes[at])); };
  const std::size_t length = byte(kLengthAt);
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0 || length == 0 || length > kMaxAddress) {
    return invalid_argument("these 128 bytes are not a unique id; expected what make_unique_id() of this version gave");
  }
  Meeting meeting;
  meeting.hub.port = static_cast<std::uint16_t>(byte(kPortAt) | byte(kPortAt + 1) << 8);
  meeting.hub.address.assign(bytes.data() + kAddressAt, length);
  std::memcpy(meeting.secret.bytes.data(), bytes.data() + kSecretAt, meeting.secret.bytes.size());
  return meeting;
}

Bootstrap::Bootstrap(int rank, int size, std::chrono::milliseconds deadline)
    : deadline_(deadline),
      process_(::getpid()),
      local_(std::make_unique<LocalRank>(rank, size, Identity{sockets::host_name(), ::getpid()})) {}

Bootstrap::~Bootstrap() {
  if (::getpid() != process_) {
    // In a fork's child the threads do not exist, neither ours nor those that waited: what they used is given up.
    (void)new std::thread(std::move(thread_));
    (void)local_.release();
    return;
  }
  if (!thread_.joinable()) return;
  local_->ask_to_stop();
  thread_.join();
}

Result<std::unique_ptr<Bootstrap>> Bootstrap::connect(Config config) {
  if (config.size < 1 || config.size > kMaxRanks || config.rank < 0 || config.rank >= config.size) {
    return invalid_argument(
        fmt::format("rank {} of {} ranks: expected 0 <= rank < size <= {}", config.rank, config.size, kMaxRanks));
  }
  std::unique_ptr<Bootstrap> bootstrap(new Bootstrap(config.rank, config.size, config.deadline));
  if (config.size == 1) {
    bootstrap->roster_ = {bootstrap->local_->own()};
    return bootstrap;
  }
  TUTTI_TRY(bootstrap->meet(std::move(config)));
  return bootstrap;
}

Status Bootstrap::meet(Config config) {
  const auto deadline = LocalRank::Clock::now() + deadline_;
  const sockets::Endpoint& hub = config.listener != nullptr ? config.listener->endpoint() : config.hub;
  if (!hub.is_unix() && !sockets::is_loopback(hub.address))
    TUTTI_TRY(sockets::own_address({}).status());  // a wrong TUTTI_INTERFACE
  if (config.rank == 0) {
    if (config.listener == nullptr) {
      Result<std::unique_ptr<sockets::Listener>> opened = sockets::Listener::open(config.hub);
      if (!opened.ok()) return Status(opened.status().code(), "rank 0 " + opened.status().message());
      config.listener = opened.take();
    }
    TUTTI_TRY(serve(std::move(config.listener), config.secret));
  } else {
    TUTTI_TRY(join(config, deadline));
  }
  const Result<std::vector<std::string>> met = local_->await(0, deadline, deadline_);
  if (!met.ok()) {
    // The others are told the same by the hub; a goodbye keeps this departure from being another failure to them.
    (void)leave().ok();
    return met.status();
  }
  roster_ = local_->roster();
  return {};
}

Status Bootstrap::serve(std::unique_ptr<sockets::Listener> listener, const Secret& secret) {
  // Shared: of a thread that cannot start it is left here.
  const auto kept = std::make_shared<std::unique_ptr<sockets::Listener>>(std::move(listener));
  Status status = local_->made();
  if (status.ok()) {
    Result<std::thread> thread = start_thread("the thread of the meeting",
                                              [this, kept, secret] { serve_hub(*local_, std::move(*kept), secret); });
    status = thread.status();
    if (thread.ok()) thread_ = thread.take();
  }
  if (!status.ok()) {
    turn_away(*local_, std::move(*kept), secret, Status(status.code(), gave_up(0, local_->own(), status.message())));
  }
  return status;
}

Status Bootstrap::join(const Config& config, std::chrono::steady_clock::time_point deadline) {
  constexpr std::chrono::milliseconds kToExcuse{1500};
  Status status = local_->made();
  if (!status.ok()) deadline = std::min(deadline, LocalRank::Clock::now() + kToExcuse);
  Result<Entered> entered = enter(*local_, config.hub, config.secret, deadline, deadline_);
  if (!entered.ok()) return status.ok() ? entered.status() : status;
  const auto kept = std::make_shared<Entered>(entered.take());
  if (status.ok()) {
    Result<std::thread> thread =
        start_thread("the thread of the meeting", [this, kept] { serve_guest(*local_, std::move(*kept)); });
    status = thread.status();
    if (thread.ok()) thread_ = thread.take();
  }
  if (!status.ok()) excuse_guest(*local_, *kept, status);
  return status;
}

void Bootstrap::give_up(const Status& why) {
  const Code code = why.code();
  const bool own = code != Code::peer_died && code != Code::aborted && code != Code::timeout;
  if (own) (void)announce(kMakingScope, code, gave_up(rank(), local_->own(), why.message()));
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
  TUTTI_TRY(local_->post(gather));
  return local_->await(gather.sequence, LocalRank::Clock::now() + deadline_, deadline_);
}

Result<std::vector<std::string>> Bootstrap::regroup(std::uint64_t name, const std::function<std::vector<bool>()>& among,
                                                    std::string_view mine, std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds kLookAgain{1};
  TUTTI_CHECK(!mine.empty());
  Regroup regroup;
  regroup.sequence = name | Regroup::kName;
  regroup.blob = mine;
  for (const auto deadline = LocalRank::Clock::now() + limit;;) {
    const std::vector<bool> now = among();
    if (std::string bytes(now.begin(), now.end()); bytes != regroup.among) {
      regroup.among = std::move(bytes);
      TUTTI_TRY(local_->post(regroup));
    }
    if (auto outcome = local_->await_briefly(regroup.sequence, kLookAgain)) return std::move(*outcome);
    if (LocalRank::Clock::now() >= deadline) return local_->await(regroup.sequence, deadline, limit);
  }
}

Status Bootstrap::barrier() { return all_gather({}).status(); }

void Bootstrap::watch(std::function<void(const Failure&)> on_failure, std::function<void(const Standing&)> on_standing,
                      std::function<void(const Farewells&)> on_farewells) {
  local_->watch(std::move(on_failure), std::move(on_standing), std::move(on_farewells));
}

Status Bootstrap::ask(std::uint64_t scope) { return local_->post(Standing{rank(), -1, scope, 0}); }

Status Bootstrap::answer(const Standing& question, std::uint64_t word) {
  return local_->post(Standing{question.asker, rank(), question.scope, word});
}

Status Bootstrap::say_farewell(std::uint64_t scope, bool came, std::vector<std::int32_t> to) {
  to.push_back(rank());
  return local_->post(Farewells{scope, static_cast<std::uint8_t>(came), std::move(to)});
}

Status Bootstrap::announce(std::uint64_t scope, Code code, std::string message) {
  TUTTI_CHECK(code != Code::ok);
  if (size() == 1) return {};
  FailureNote note;
  note.rank = rank();
  note.scope = scope;
  note.code = code;
  note.text = std::move(message);
  return local_->post(note);
}

Status Bootstrap::leave() {
  if (!thread_.joinable()) return {};
  local_->ask_to_leave();
  thread_.join();
  local_->break_off(Status(Code::aborted, fmt::format("rank {} has left the meeting", rank())));
  return {};
}

}  // namespace tutti::bootstrap
