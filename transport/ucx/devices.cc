#include "transport/ucx/devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "transport/sockets/interfaces.h"

namespace tutti::ucx {

namespace {

// UCX's transports over RDMA, and the words that stand for each of them in UCX_TLS (UCX 1.13, ucp_tl_aliases). That a
// word brings along another transport for connecting ("ud_verbs:aux") is no way for data.
constexpr std::string_view kRdmaTransports[][4] = {{"rc_verbs", "rc_v", "rc", "ib"},
                                                   {"rc_mlx5", "rc_x", "rc", "ib"},
                                                   {"dc_mlx5", "dc_x", "dc", "ib"},
                                                   {"ud_verbs", "ud_v", "ud", "ib"},
                                                   {"ud_mlx5", "ud_x", "ud", "ib"}};

std::vector<std::string_view> items_of(std::string_view list) {
  std::vector<std::string_view> items;
  for (;;) {
    const std::size_t end = list.find(',');
    items.push_back(list.substr(0, end));
    if (end == std::string_view::npos) return items;
    list.remove_prefix(end + 1);
  }
}

bool has(const std::vector<std::string_view>& items, std::string_view item) {
  return std::find(items.begin(), items.end(), item) != items.end();
}

bool rdma_among(std::string_view transports) {
  const bool all_but = transports.starts_with('^');
  if (all_but) transports.remove_prefix(1);
  std::vector<std::string_view> items = items_of(transports);
  for (std::string_view& item : items) {
    if (item.starts_with('\\')) item.remove_prefix(1);  // "this one exactly, with nothing brought along"
  }
  if (has(items, "all")) return !all_but;
  return std::any_of(std::begin(kRdmaTransports), std::end(kRdmaTransports), [&](const auto& names) {
    const auto named = [&](std::string_view name) { return has(items, name); };
    return std::any_of(std::begin(names), std::end(names), named) != all_but;
  });
}

}  // namespace

std::vector<std::string> rdma_ports(const std::string& folder) {
  std::vector<std::string> ports;
  std::error_code error;
  for (const auto& device : std::filesystem::directory_iterator(folder, error)) {
    for (const auto& port : std::filesystem::directory_iterator(device.path() / "ports", error)) {
      std::string state;
      std::getline(std::ifstream(port.path() / "state"), state);
      if (state.find("ACTIVE") == std::string::npos) continue;
      ports.push_back(device.path().filename().string() + ":" + port.path().filename().string());
    }
  }
  std::sort(ports.begin(), ports.end());
  return ports;
}

Result<std::string> devices_for(const std::string& ip, bool that_alone, const std::string& root) {
  // Without a label: UCX takes what has a colon for an RDMA device.
  const std::string interface = sockets::interface_of(ip);
  if (interface.empty()) {
    return invalid_argument(fmt::format("UCX: no interface of this host has the address {}", ip));
  }
  const std::string folder = that_alone ? "/sys/class/net/" + interface + "/device/infiniband" : kRdmaFolder;
  std::string devices = interface;
  for (const std::string& port : rdma_ports(root + folder)) devices += "," + port;
  return devices;
}

bool may_go_by_rdma(std::string_view devices, std::string_view transports, const std::vector<std::string>& ports) {
  if (!rdma_among(transports)) return false;
  const std::vector<std::string_view> items = items_of(devices);
  if (has(items, "all")) return !ports.empty();
  // An RDMA port has its number behind a colon, a name of an interface has none.
  return std::any_of(items.begin(), items.end(), [](std::string_view item) { return item.find(':') != item.npos; });
}

}  // namespace tutti::ucx
