// The devices that UCX is told to go by, and what that means: whether there is RDMA among them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tutti::ucx {

/// "mlx5_0:1" for each active port of the RDMA devices in a folder, such as kRdmaFolder.
std::vector<std::string> rdma_ports(const std::string& folder);
inline constexpr const char* kRdmaFolder = "/sys/class/infiniband";

/// The network devices to name to UCX ("eth0,mlx5_0:1"), for the interface that has `ip`. `root`: "" or a test's own.
/// Errors: invalid_argument, no interface has it.
Result<std::string> devices_for(const std::string& ip, bool that_alone, const std::string& root = "");

/// Returns true if UCX may go by RDMA, with these values of UCX_NET_DEVICES and UCX_TLS, on a host that has these RDMA
/// ports.
bool may_go_by_rdma(std::string_view devices, std::string_view transports, const std::vector<std::string>& ports);

}  // namespace tutti::ucx
