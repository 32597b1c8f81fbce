// The choice of devices, on interfaces made for it, and what of it is RDMA.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/collectives/processes.h"
#include "transport/ucx/devices.h"

namespace tutti::testing::ucx_devices_test {
namespace {

/// UCX knows interfaces, and not the labels that their addresses may have.
TEST(UcxDevices, ALabelledAddressIsItsInterfaces) {
  const Outcome outcome = in_child([]() -> std::string {
    if (::unshare(CLONE_NEWNET) != 0) return "not run: no network namespace can be made";
    ifreq wanted{};
    std::strcpy(wanted.ifr_name, "lo:1");
    auto& address = reinterpret_cast<sockaddr_in&>(wanted.ifr_addr);
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, "10.77.0.1", &address.sin_addr);
    const int socket = ::socket(AF_INET, SOCK_DGRAM, 0);
    if (::ioctl(socket, SIOCSIFADDR, &wanted) != 0) return "not run: no label can be made";
    const auto devices = ucx::devices_for("10.77.0.1", false, "/nonexistent");
    return devices.ok() ? devices.value() : devices.status().message();
  });
  if (outcome.said.starts_with("not run")) GTEST_SKIP() << "tutti-test: " << outcome.said;
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(outcome.said, "lo");
}

/// TCP goes in pieces, RDMA does not: a wrong answer costs a half of the bandwidth.
TEST(UcxDevices, RdmaIsWhatDevicesAndTransportsBothAllow) {
  using Ports = std::vector<std::string>;
  struct Case {
    const char* devices;
    const char* transports;
    Ports ports;
    bool rdma;
  };
  const Ports nic{"mlx5_0:1"};
  const Case cases[] = {
      {"eth0", "^shm", nic, false},
      {"eth0,mlx5_0:1", "^shm", nic, true},
      {"mlx5_0:1", "^shm", nic, true},
      {"mlx5_0:1", "^shm", {}, true},  // named, though /sys is not to be seen (a container)
      {"all", "^shm", nic, true},
      {"eth0,all", "^shm", nic, true},
      {"all", "^shm", {}, false},
      {"", "^shm", nic, false},
      {"eth0,mlx5_0:1", "tcp", nic, false},
      {"all", "tcp", nic, false},
      {"all", "posix,sysv,cma,self", nic, false},
      {"all", "all", nic, true},
      {"eth0,mlx5_0:1", "rc_verbs,tcp", nic, true},
      {"eth0,mlx5_0:1", "tcp,\\rc_mlx5", nic, true},
      {"all", "rc", nic, true},
      {"all", "dc_x", nic, true},
      {"all", "ud_v", nic, true},
      {"all", "ib", nic, true},
      {"all", "tcp,ud_verbs:aux", nic, false},
      {"all", "^ib", nic, false},
      {"all", "^ib,shm", nic, false},
      {"all", "^rc,ud,dc", nic, false},
      {"all", "^rc,ud", nic, true},
      {"all", "^rc_verbs,tcp", nic, true},
      {"all", "", nic, false},
  };
  for (const auto& [devices, transports, ports, rdma] : cases) {
    EXPECT_EQ(ucx::may_go_by_rdma(devices, transports, ports), rdma)
        << "UCX_NET_DEVICES=" << devices << " UCX_TLS=" << transports << ", " << ports.size() << " ports";
  }
}

}  // namespace
}  // namespace tutti::testing::ucx_devices_test
