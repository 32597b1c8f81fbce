#ifdef TUTTI_HAS_VERBS
#include "transport/verbs/rail.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <utility>

#include "base/parse.h"
#include "transport/verbs/flow.h"

namespace tutti::transport::verbs {

namespace {

constexpr int kMostGids = 256;

std::set<std::string> interfaces_up() {
  std::set<std::string> names;
  ifaddrs* entries = nullptr;
  if (::getifaddrs(&entries) != 0) return names;
  for (const ifaddrs* entry = entries; entry != nullptr; entry = entry->ifa_next) {
    if ((entry->ifa_flags & IFF_UP) != 0) names.insert(entry->ifa_name);
  }
  ::freeifaddrs(entries);
  return names;
}

/// Bytes per second of one lane of the port, by the code that the port gives (InfiniBand specification, PortInfo).
double lane_gb_per_s(int speed) {
  switch (speed) {
    case 1: return 0.25;  // SDR: 2.5 Gbit/s, 8 of 10 bits
    case 2: return 0.5;   // DDR
    case 4:               // QDR
    case 8: return 1;     // FDR10
    case 16: return 1.7;  // FDR
    case 32: return 3;    // EDR
    case 64: return 6;    // HDR
    case 128: return 12;  // NDR
    default: return 0.25;
  }
}

int lanes_of(int width) {
  switch (width) {
    case 2: return 4;
    case 4: return 8;
    case 8: return 12;
    case 16: return 2;
    default: return 1;
  }
}

std::vector<Gid> gids_of(const Library& verbs, ibv_context* context, int port, const std::set<std::string>& up) {
  std::vector<ibv_gid_entry> entries(kMostGids);
  const ssize_t count = verbs._ibv_query_gid_table_(context, entries.data(), entries.size(), 0, sizeof entries[0]);
  std::vector<Gid> gids;
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = entries[static_cast<std::size_t>(i)];
    if (entry.port_num != static_cast<std::uint32_t>(port)) continue;
    Gid gid;
    gid.index = static_cast<int>(entry.gid_index);
    gid.type = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? GidType::roce_v2
               : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? GidType::roce_v1
                                                        : GidType::infiniband;
    std::memcpy(gid.bytes.data(), entry.gid.raw, gid.bytes.size());
    char name[IF_NAMESIZE] = {};
    if (entry.ndev_ifindex != 0 && ::if_indextoname(entry.ndev_ifindex, name) != nullptr) gid.interface = name;
    gid.up = up.count(gid.interface) != 0;
    gids.push_back(std::move(gid));
  }
  return gids;
}

void add_ports(const Library& verbs, ibv_device* device, const std::set<std::string>& up, std::vector<Port>& ports) {
  errno = 0;
  ibv_context* context = verbs.ibv_open_device_(device);
  if (context == nullptr) {  // a container sees the devices of its host in sysfs, whether it has their files or not
    Port port;
    port.device = verbs.ibv_get_device_name_(device);
    port.unopened = std::strerror(errno != 0 ? errno : ENODEV);
    ports.push_back(std::move(port));
    return;
  }
  ibv_device_attr attributes{};
  if (verbs.ibv_query_device_(context, &attributes) == 0) {
    for (int number = 1; number <= attributes.phys_port_cnt; ++number) {
      ibv_port_attr found{};
      if (verbs.query_port(context, static_cast<std::uint8_t>(number), found) != 0) continue;
      Port port;
      port.device = verbs.ibv_get_device_name_(device);
      port.number = number;
      port.infiniband = found.link_layer != IBV_LINK_LAYER_ETHERNET;
      port.active = found.state == IBV_PORT_ACTIVE;
      port.mtu = 128 << found.active_mtu;
      port.lid = found.lid;
      port.gb_per_s = lane_gb_per_s(found.active_speed) * lanes_of(found.active_width);
      port.gids = gids_of(verbs, context, number, up);
      ports.push_back(std::move(port));
    }
  }
  verbs.ibv_close_device_(context);
}

}  // namespace

Result<std::vector<Port>> list_ports(const Library& verbs) {
  int count = 0;
  ibv_device** devices = verbs.ibv_get_device_list_(&count);
  if (devices == nullptr) {
    if (errno == ENOSYS) return std::vector<Port>();  // the kernel has no RDMA
    return system_error("verbs: cannot list the RDMA devices", errno);
  }
  const std::set<std::string> up = interfaces_up();
  std::vector<Port> ports;
  for (int i = 0; i < count; ++i) add_ports(verbs, devices[i], up, ports);
  verbs.ibv_free_device_list_(devices);
  return ports;
}

Status Rail::error(const std::string& call, int number) const {
  return system_error(fmt::format("verbs: {} failed on {}", call, port_.name()), number);
}

Result<std::unique_ptr<Rail>> Rail::open(const Library& verbs, const Port& port, int gid, int links) {
  std::unique_ptr<Rail> rail(new Rail(verbs, port, gid));
  TUTTI_TRY(rail->start(links));
  return rail;
}

RailEnd Rail::end() const {
  RailEnd end;
  end.infiniband = port_.infiniband ? 1 : 0;
  end.lid = port_.lid;
  end.mtu = port_.mtu;
  end.first_packet = first_packet_;
  if (gid_ >= 0) {
    const Gid& gid = port_.gids[static_cast<std::size_t>(gid_)];
    end.gid_type = gid.type;
    end.gid = gid.bytes;
  }
  return end;
}

Status Rail::start(int links) {
  first_packet_ = std::random_device{}() & 0xFFFFFF;  // sequence numbers have 24 bits
  int count = 0;
  errno = ENODEV;  // unless a call says otherwise: it has gone since it was listed
  ibv_device** devices = verbs_.ibv_get_device_list_(&count);
  for (int i = 0; devices != nullptr && i < count && context_ == nullptr; ++i) {
    if (port_.device == verbs_.ibv_get_device_name_(devices[i])) context_ = verbs_.ibv_open_device_(devices[i]);
  }
  const int open_error = errno;
  if (devices != nullptr) verbs_.ibv_free_device_list_(devices);
  if (context_ == nullptr) return error("ibv_open_device", open_error);

  ibv_device_attr attributes{};
  if (const int number = verbs_.ibv_query_device_(context_, &attributes); number != 0) {
    return error("ibv_query_device", number);
  }
  depth_ = send_queue_depth(links, attributes.max_qp_wr, attributes.max_cqe);
  if (depth_ == 0 || links > attributes.max_qp) {
    return unsupported(fmt::format(
        "verbs: {} serves {} connections, {} requests in each and {} completions at a time; {} peers need more",
        port_.name(), attributes.max_qp, attributes.max_qp_wr, attributes.max_cqe, links));
  }
  if ((domain_ = verbs_.ibv_alloc_pd_(context_)) == nullptr) return error("ibv_alloc_pd", errno);
  if ((channel_ = verbs_.ibv_create_comp_channel_(context_)) == nullptr) return error("ibv_create_comp_channel", errno);
  if (::fcntl(channel_->fd, F_SETFL, O_NONBLOCK) != 0) return error("fcntl", errno);
  const int entries = std::max(links, 1) * static_cast<int>(depth_);
  completions_ = verbs_.ibv_create_cq_(context_, entries, nullptr, channel_, 0);
  if (completions_ == nullptr) return error("ibv_create_cq", errno);
  return {};
}

Rail::~Rail() {
  if (completions_ != nullptr) verbs_.ibv_destroy_cq_(completions_);
  if (channel_ != nullptr) verbs_.ibv_destroy_comp_channel_(channel_);
  if (domain_ != nullptr) verbs_.ibv_dealloc_pd_(domain_);
  if (context_ != nullptr) verbs_.ibv_close_device_(context_);
}

std::size_t Rail::lockable_bytes() {
  rlimit limit{};
  const bool is_limited = ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return is_limited ? static_cast<std::size_t>(limit.rlim_cur) : SIZE_MAX;
}

Result<ibv_mr*> Rail::register_memory(std::byte* base, std::size_t bytes, bool for_peers) {
  const int access = IBV_ACCESS_LOCAL_WRITE | (for_peers ? IBV_ACCESS_REMOTE_WRITE : 0);
  // In brackets: the header has a macro of that name, which would want the library linked.
  if (ibv_mr* memory = (verbs_.ibv_reg_mr_)(domain_, base, bytes, access)) return memory;
  const int number = errno;
  const bool is_short = (number == ENOMEM || number == EPERM || number == EAGAIN) && lockable_bytes() != SIZE_MAX;
  if (!is_short) return error(fmt::format("ibv_reg_mr of {}", print_bytes(bytes)), number);
  return Status(
      Code::memory_limit,
      fmt::format("verbs: {} of memory cannot be registered with {}: this process may lock {} in all; raise that "
                  "(ulimit -l unlimited; LimitMEMLOCK=infinity of a service; --ulimit memlock=-1 of a container)",
                  print_bytes(bytes), port_.name(), print_bytes(lockable_bytes())));
}

Result<ibv_mr*> Rail::register_device(std::byte* base, std::size_t bytes, const Dmabuf& memory) {
  if (verbs_.ibv_reg_dmabuf_mr_ == nullptr) {
    return unsupported("verbs: this machine's libibverbs has no ibv_reg_dmabuf_mr; rdma-core 34 or newer is needed");
  }
  ibv_mr* const made = verbs_.ibv_reg_dmabuf_mr_(domain_, memory.offset, bytes, reinterpret_cast<std::uintptr_t>(base),
                                                 memory.descriptor, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (made != nullptr) return made;
  if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EPROTONOSUPPORT) return error("ibv_reg_dmabuf_mr", errno);
  return unsupported(fmt::format("verbs: {} or its kernel's driver does not register a device's memory", port_.name()));
}

void Rail::deregister(ibv_mr* memory) { verbs_.ibv_dereg_mr_(memory); }

int Rail::poll(const std::function<void(const ibv_wc&)>& take) {
  constexpr int kBatch = 16;
  int all = 0;
  for (;;) {
    ibv_wc found[kBatch];
    const int count = ibv_poll_cq(completions_, kBatch, found);
    for (int i = 0; i < count; ++i) take(found[i]);
    if (count < 0) return count;
    all += count;
    if (count < kBatch) return all;
  }
}

void Rail::arm() { (void)ibv_req_notify_cq(completions_, 0); }

void Rail::drain_events() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  unsigned events = 0;
  while (verbs_.ibv_get_cq_event_(channel_, &queue, &context) == 0) ++events;
  if (events > 0) verbs_.ibv_ack_cq_events_(completions_, events);
}

}  // namespace tutti::transport::verbs
#endif
