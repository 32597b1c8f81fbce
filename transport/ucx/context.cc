#include "transport/ucx/context.h"

#ifdef TUTTI_HAS_UCX

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>

#include "base/options.h"
#include "transport/ucx/am_message.h"
#include "transport/ucx/devices.h"
#include "transport/wire/wire.h"

namespace tutti::ucx {

namespace {

// A peer that says nothing is asked after so long (UCX), and a connection without traffic is tried as often (TCP).
constexpr const char* kKeepalive = "5s";

constexpr const char* kTransports = "^shm";

// UCX's own are 8 KiB and 64 KiB. With these a put of 64 KiB takes 42 us instead of 65, and a sixth less of both sides'
// cores; one of 1 MiB 320 us instead of 380 (loopback, perf/wire_bench --sleep, best of three).
constexpr const char* kTcpSend = "64k";
constexpr const char* kTcpReceive = "256k";

// A note and its heads, so that it is copied. (RoCE with frames of 1500 bytes leaves 927.)
constexpr std::size_t kLeastMessage = sizeof(Head) + 2 * sizeof(Entry) + transport::Wire::kMostInlineBytes;
constexpr std::size_t kTcpPiece = std::size_t{60} << 10;  // with its message it fits into what is sent

/// Sets what the user's environment does not.
void set(const Ucp& ucp, ucp_config_t* config, const char* name, const std::string& value, const char* prefix = "") {
  if (std::getenv(fmt::format("UCX_{}{}", prefix, name).c_str()) != nullptr) return;
  (void)ucp.config_modify(config, name, value.c_str());
}

}  // namespace

std::uint64_t pass_between(std::string_view one_address, std::string_view other_address) {
  const auto word_of = [](std::string_view address) {
    std::uint64_t word = 0;
    std::memcpy(&word, address.data() + kMagic.size(), sizeof word);
    return word;
  };
  return word_of(one_address) ^ word_of(other_address);
}

Result<std::unique_ptr<Context>> Context::open(const transport::WireJob& job) {
  TUTTI_ASSIGN(const Ucp* table, ucx::ucp());
  std::unique_ptr<Context> context(new Context(*table));
  TUTTI_TRY(context->start(job));
  return context;
}

Status Context::start(const transport::WireJob& job) {
  ucp_config_t* config = nullptr;
  TUTTI_TRY(check(ucp_.config_read(nullptr, nullptr, &config), "ucp_config_read"));
  const std::unique_ptr<ucp_config_t, decltype(ucp_.config_release)> kept(config, ucp_.config_release);
  std::string devices = "all";
  devices_ = "any device";
  if (const char* chosen = std::getenv("UCX_NET_DEVICES"); chosen != nullptr) {
    devices = chosen;
    devices_ = fmt::format("{} (UCX_NET_DEVICES)", chosen);
  } else if (!job.own_ip.empty()) {
    TUTTI_ASSIGN(devices, devices_for(job.own_ip, !options::text(Option::interface).empty()));
    devices_ = devices;
    set(ucp_, config, "NET_DEVICES", devices);
    if (job.own_ip.find(':') != std::string::npos) set(ucp_, config, "AF_PRIO", "inet6,inet", "TCP_");
  }
  set(ucp_, config, "TLS", kTransports);
  set(ucp_, config, "KEEPALIVE_INTERVAL", kKeepalive);
  set(ucp_, config, "KEEPIDLE", kKeepalive, "TCP_");
  set(ucp_, config, "CONN_NB", "y", "TCP_");  // else a put() stays in connect(), for minutes where a firewall drops
  set(ucp_, config, "TX_SEG_SIZE", kTcpSend, "TCP_");
  set(ucp_, config, "RX_SEG_SIZE", kTcpReceive, "TCP_");

  const char* transports = std::getenv("UCX_TLS");
  rdma_ = may_go_by_rdma(devices, transports != nullptr ? transports : kTransports, rdma_ports(kRdmaFolder));
  if (!rdma_) TUTTI_TRY(transport::check_has_address(job));
  if (!rdma_ && std::getenv("UCX_RNDV_THRESH") == nullptr) piece_bytes_ = kTcpPiece;

  ucp_params_t wanted{};
  wanted.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  wanted.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  wanted.name = "tutti";
  const ucs_status_t made = ucp_.init_version(UCP_API_MAJOR, UCP_API_MINOR, &wanted, config, &context_);
  if (made != UCS_OK) {
    return unsupported(fmt::format("UCX finds nothing to go by: {} with devices {} and transports {}", words_of(made),
                                   devices_, transports != nullptr ? transports : "all but shared memory"));
  }
  return start_worker();
}

Status Context::start_worker() {
  ucp_worker_params_t how{};
  how.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  how.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  TUTTI_TRY(check(ucp_.worker_create(context_, &how, &worker_), "ucp_worker_create"));

  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  TUTTI_TRY(check(ucp_.worker_query(worker_, &attributes), "ucp_worker_query"));
  message_bytes_ = std::min(kMostMessage, attributes.max_am_header);
  if (message_bytes_ < kLeastMessage) {
    return unsupported(fmt::format("UCX: {} takes headers of {} bytes; expected at least {}", devices_, message_bytes_,
                                   kLeastMessage));
  }

  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  TUTTI_TRY(check(ucp_.worker_get_address(worker_, &address, &bytes), "ucp_worker_get_address"));
  std::random_device random;
  const std::uint32_t words[] = {random(), random()};
  address_ = std::string(kMagic) + std::string(reinterpret_cast<const char*>(words), sizeof words) +
             std::string(reinterpret_cast<const char*>(address), bytes);
  ucp_.worker_release_address(worker_, address);
  if (address_.size() > transport::Wire::kMostAddressBytes) {
    return unsupported(fmt::format(
        "UCX: the address of this process takes {} bytes; name fewer devices (UCX_NET_DEVICES)", address_.size()));
  }
  return check(ucp_.worker_get_efd(worker_, &event_), "ucp_worker_get_efd");
}

Context::~Context() {
  if (worker_ != nullptr) ucp_.worker_destroy(worker_);
  if (context_ != nullptr) ucp_.cleanup(context_);
}

}  // namespace tutti::ucx

#endif
