// GPUs and what lies between them, with a fake driver and a fake NVML.
#include "topology/gpus.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "topology/discover.h"
#include "topology/nvml_testing.h"
#if TUTTI_HAS_CUDA
#include "tests/support/fake_cuda/driver.h"
#endif

namespace tutti::topology::gpus_test {
namespace {

TEST(Gpus, NumaNodeOfAPciDevice) {
  const std::string root = std::filesystem::temp_directory_path() / ("tutti_gpus_" + std::to_string(getpid()));
  const std::string folder = root + "/sys/bus/pci/devices/0000:1b:00.0";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/numa_node") << "1\n";
  EXPECT_EQ(numa_node_of_pci("0000:1B:00.0", root), 1);
  EXPECT_EQ(numa_node_of_pci("0000:1C:00.0", root), -1);
  std::filesystem::remove_all(root);
}

#if TUTTI_HAS_CUDA

using testing::FakeDriver;

// Four GPUs: 0 and 1 have two NVLinks to each other, 2 and 3 hang at switches; 0 has a link that is down.
std::intptr_t number_of(NvmlDevice device) { return reinterpret_cast<std::intptr_t>(device) - 1; }

int by_pci(const char* bus_id, NvmlDevice* device) {
  const int number = static_cast<int>(std::strtol(bus_id + 5, nullptr, 16)) - 0x10;
  *device = reinterpret_cast<NvmlDevice>(static_cast<std::intptr_t>(number + 1));
  return kNvmlSuccess;
}

int link_state(NvmlDevice device, unsigned link, unsigned* active) {
  if (link >= 3) return kNvmlNotSupported;
  *active = number_of(device) == 0 && link == 2 ? 0 : 1;
  return kNvmlSuccess;
}

int link_remote_type(NvmlDevice device, unsigned link, NvmlRemote* type) {
  if (number_of(device) >= 2) {
    *type = NvmlRemote::nvswitch;
  } else {
    *type = link < 2 ? NvmlRemote::gpu : NvmlRemote::unknown;
  }
  return kNvmlSuccess;
}

int link_remote(NvmlDevice device, unsigned link, NvmlPci* remote) {
  if (link >= 2) return kNvmlNotSupported;
  std::snprintf(remote->bus_id, sizeof(remote->bus_id), "00000000:%02x:00.0",
                0x10U + static_cast<unsigned>(1 - number_of(device)));
  return kNvmlSuccess;
}

int ancestor(NvmlDevice a, NvmlDevice b, NvmlAncestor* level) {
  *level = number_of(a) / 2 == number_of(b) / 2 ? NvmlAncestor::one_switch : NvmlAncestor::system;
  return kNvmlSuccess;
}

int memory_affinity(NvmlDevice device, unsigned /*words*/, unsigned long* nodes, unsigned scope) {
  if (scope != 0) return kNvmlNotSupported;
  *nodes = number_of(device) < 2 ? 1 : 2;
  return kNvmlSuccess;
}

const Nvml kNvml{.init = [] { return kNvmlSuccess; },
                 .device_by_pci = by_pci,
                 .link_state = link_state,
                 .link_remote = link_remote,
                 .link_remote_type = link_remote_type,
                 .ancestor = ancestor,
                 .memory_affinity = memory_affinity};

struct WithNvml {
  WithNvml() { set_nvml_for_tests(&kNvml); }
  ~WithNvml() { set_nvml_for_tests(nullptr); }
};

TEST(Gpus, DriverAndNvml) {
  const FakeDriver cuda({.devices = 4});
  const WithNvml with;
  const Result<Gpus> found = discover_gpus();
  ASSERT_TRUE(found.ok()) << found.status().message();
  const std::vector<Gpu>& gpus = found.value().gpus;
  ASSERT_EQ(gpus.size(), 4U);
  EXPECT_EQ(gpus[0].name, "Fake GPU");
  EXPECT_EQ(gpus[1].pci, "0000:11:00.0");
  EXPECT_EQ(gpus[0].capability, 90);
  EXPECT_EQ(gpus[0].multiprocessors, 8);
  EXPECT_EQ(gpus[0].bytes, std::uint64_t{1} << 30);
  EXPECT_EQ(gpus[3].uuid.substr(30), "03");
  EXPECT_EQ(gpus[0].nvlinks, 2);
  EXPECT_EQ(gpus[1].nvlinks, 3);
  EXPECT_EQ(gpus[2].links_to_switches, 3);
  EXPECT_EQ(gpus[1].numa_node, 0);
  EXPECT_EQ(gpus[2].numa_node, 1);
  const std::vector<GpuPair>& pairs = found.value().pairs;
  ASSERT_EQ(pairs.size(), 6U);
  EXPECT_EQ(pairs[0].nvlinks, 2);  // 0 and 1
  EXPECT_EQ(pairs[0].path, PciPath::one_switch);
  EXPECT_FALSE(pairs[0].nvswitch);
  EXPECT_TRUE(pairs[0].peer_access);
  EXPECT_EQ(pairs[1].nvlinks, 0);  // 0 and 2
  EXPECT_EQ(pairs[1].path, PciPath::system);
  EXPECT_FALSE(pairs[1].nvswitch);
  EXPECT_TRUE(pairs[5].nvswitch);  // 2 and 3
  EXPECT_EQ(found.value().without_nvml, "");
}

TEST(Gpus, BecomeDevicesAndLinksOfTheHost) {
  const FakeDriver cuda({.devices = 4});
  const WithNvml with;
  const Result<Gpus> found = discover_gpus();
  ASSERT_TRUE(found.ok());
  Topology topology;
  Host host;
  host.numa_nodes.resize(2);
  host.cores.push_back({.cpus = {0}});
  host.devices.push_back({.kind = DeviceKind::pci_switch, .numa_node = 0});
  host.devices.push_back({.kind = DeviceKind::gpu, .name = "3D controller", .pci = "0000:11:00.0", .parent = 0});
  topology.hosts.push_back(host);
  for (int twice = 0; twice < 2; ++twice) add_gpus(found.value(), 0, topology);
  EXPECT_TRUE(check(topology).ok()) << check(topology).message();
  const std::vector<Device>& devices = topology.hosts[0].devices;
  ASSERT_EQ(devices.size(), 6U);           // the switch, four GPUs, and what stands for all NVSwitches
  EXPECT_EQ(devices[1].name, "Fake GPU");  // the one that was there, GPU 1
  EXPECT_EQ(devices[1].parent, 0);
  EXPECT_EQ(devices[2].pci, "0000:10:00.0");
  EXPECT_EQ(devices[2].bytes, std::uint64_t{1} << 30);
  EXPECT_DOUBLE_EQ(devices[2].gb_per_s, 1000);
  EXPECT_EQ(devices[4].numa_node, 1);
  EXPECT_EQ(devices[5].kind, DeviceKind::nvswitch);
  ASSERT_EQ(topology.links.size(), 3U);
  EXPECT_EQ(topology.links[0].b.index, 5);  // GPU 2 to the switches, by three links
  EXPECT_DOUBLE_EQ(topology.links[0].gb_per_s, 75);
  EXPECT_EQ(topology.links[2].a.index, 2);  // GPU 0 to GPU 1, by two
  EXPECT_EQ(topology.links[2].b.index, 1);
  EXPECT_DOUBLE_EQ(topology.links[2].gb_per_s, 50);
}

TEST(Gpus, DriverAlone) {
  if (nvml().ok()) GTEST_SKIP() << "this machine has NVML";
  const FakeDriver cuda({.devices = 2, .peer_access = false});
  const Result<Gpus> found = discover_gpus();
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found.value().without_nvml, "this machine has no NVML (libnvidia-ml.so.1 cannot be loaded)");
  ASSERT_EQ(found.value().pairs.size(), 1U);
  EXPECT_FALSE(found.value().pairs[0].peer_access);
  EXPECT_EQ(found.value().pairs[0].path, PciPath::unknown);
}

#endif

TEST(Gpus, NoneIsOneSentence) {
  const Result<Gpus> found = discover_gpus();
  if (found.ok()) GTEST_SKIP() << "this machine has GPUs";
  EXPECT_EQ(found.status().code(), Code::unsupported);
  EXPECT_EQ(found.status().message().rfind("device memory: ", 0), 0U);
}

}  // namespace
}  // namespace tutti::topology::gpus_test
