#include "topology/discover.h"

#include <gmock/gmock.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "tests/support/emulated.h"
#include "tests/topology/machines.h"
#include "topology/discover_devices.h"
#include "topology/text.h"
#ifdef TUTTI_HAS_HWLOC
#include <hwloc.h>
#endif

namespace tutti::topology::discover_test {
namespace {

using ::testing::HasSubstr;

/// A folder with the files that a test puts there, as another machine's root.
class FakeMachine : public ::testing::Test {
 protected:
  FakeMachine() {
    std::string pattern = ::testing::TempDir() + "tutti_machine_XXXXXX";
    root_ = mkdtemp(pattern.data());
  }
  ~FakeMachine() override { std::filesystem::remove_all(root_); }

  void put(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
  }

  void put_cpu(int cpu, int package, const std::string& siblings) const {
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    put(folder + "physical_package_id", std::to_string(package));
    put(folder + "thread_siblings_list", siblings);
  }

  void put_cache(int cpu, int index, int level, const std::string& type, const std::string& size,
                 const std::string& shared) const {
    const std::string folder =
        "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache/index" + std::to_string(index) + "/";
    put(folder + "level", std::to_string(level));
    put(folder + "type", type);
    put(folder + "size", size);
    put(folder + "shared_cpu_list", shared);
  }

  void put_node(int node, const std::string& cpus, int kib, const std::string& distances) const {
    const std::string folder = "/sys/devices/system/node/node" + std::to_string(node) + "/";
    put(folder + "cpulist", cpus);
    put(folder + "distance", distances);
    put(folder + "meminfo", "Node " + std::to_string(node) + " MemTotal:       " + std::to_string(kib) + " kB");
  }

  std::string root_;
};

// Two packages (numbered 0 and 3, as some boards do) of two cores with two threads, NUMA nodes 0 and 2, CPU 7 offline,
// and a third NUMA node without cores.
TEST_F(FakeMachine, PackagesThreadsNodesAndCachesAreFound) {
  put("/sys/devices/system/cpu/online", "0-6");
  put("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Imaginary CPU 9000\n");
  for (int cpu = 0; cpu < 7; ++cpu) {
    const int core = cpu % 4;
    const std::string siblings = std::to_string(core) + "," + std::to_string(core + 4);
    put_cpu(cpu, core < 2 ? 0 : 3, siblings);
    put_cache(cpu, 0, 1, "Instruction", "32K", siblings);
    put_cache(cpu, 1, 1, "Data", "48K", siblings);
    put_cache(cpu, 2, 2, "Unified", "2048K", siblings);
    put_cache(cpu, 3, 3, "Unified", "60M", core < 2 ? "0-1,4-5" : "2-3,6-7");
  }
  put("/sys/devices/system/node/online", "0,2,4");
  put_node(0, "0-1,4-5", 1024, "10 20 40");
  put_node(2, "2-3,6", 2048, "20 10 40");
  put_node(4, "", 4096, "40 40 10");

  const Result<Host> found = discover_host(root_);
  ASSERT_TRUE(found.ok()) << found.status().message();
  const Host& host = found.value();
  EXPECT_EQ(host.cpu_model, "Imaginary CPU 9000");
  EXPECT_EQ(host.packages, 2);
  const std::vector<Core> cores = {{0, 0, {0, 4}}, {0, 0, {1, 5}}, {1, 1, {2, 6}}, {1, 1, {3}}};
  EXPECT_EQ(host.cores, cores);
  const std::vector<NumaNode> nodes = {{1 << 20, {10, 20, 40}}, {2 << 20, {20, 10, 40}}, {4 << 20, {40, 40, 10}}};
  EXPECT_EQ(host.numa_nodes, nodes);
  ASSERT_EQ(host.caches.size(), 10u);  // 4 of level 1, 4 of level 2, 2 of level 3
  EXPECT_EQ(host.caches[0], (Cache{1, 48 << 10, {0, 4}}));
  EXPECT_EQ(host.caches[7], (Cache{2, 2 << 20, {3}}));
  EXPECT_EQ(host.caches[8], (Cache{3, 60 << 20, {0, 1, 4, 5}}));
  EXPECT_TRUE(check({{host}, {}, {}}).ok()) << check({{host}, {}, {}}).message();
}

TEST_F(FakeMachine, WhatTheSystemDoesNotTellIsFilledInPlainly) {
  put("/sys/devices/system/cpu/online", "0-2");
  put("/proc/meminfo", "MemTotal:        8 kB");
  const Result<Host> found = discover_host(root_);
  ASSERT_TRUE(found.ok()) << found.status().message();
  const std::vector<Core> cores = {{0, 0, {0}}, {0, 0, {1}}, {0, 0, {2}}};
  EXPECT_EQ(found.value().cores, cores);
  EXPECT_EQ(found.value().packages, 1);
  ASSERT_EQ(found.value().numa_nodes.size(), 1u);
  EXPECT_EQ(found.value().numa_nodes[0].bytes, 8u << 10);
  EXPECT_TRUE(check({{found.value()}, {}, {}}).ok());
}

TEST_F(FakeMachine, NonsenseIsAnErrorOrIgnoredAndNeverATopologyThatIsWrong) {
  EXPECT_THAT(discover_host(root_).status().message(), HasSubstr("does not list the CPUs"));
  put("/sys/devices/system/cpu/online", "0-3");
  put_cpu(0, -1, "1");   // not its own sibling
  put_cpu(1, 0, "0-1");  // takes CPU 0, which has a core already
  put_cpu(2, 0, "noise");
  put_cache(0, 0, 1, "Data", "many", "0");
  put_cache(1, 0, 1, "Data", "32K", "0-1");
  put_cache(2, 0, 1, "Data", "32K", "1-2");  // CPU 1 has one already
  const Result<Host> found = discover_host(root_);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_TRUE(check({{found.value()}, {}, {}}).ok()) << check({{found.value()}, {}, {}}).message();
  EXPECT_EQ(found.value().cores.size(), 4u);
  EXPECT_EQ(found.value().caches.size(), 1u);
}

TEST_F(FakeMachine, QuotaOfTheSecondVersionOfControlGroups) {
  put("/proc/self/cgroup", "0::/outer/inner");
  EXPECT_EQ(cpu_quota(root_), 0);
  put("/sys/fs/cgroup/outer/inner/cpu.max", "max 100000");
  EXPECT_EQ(cpu_quota(root_), 0);
  put("/sys/fs/cgroup/outer/cpu.max", "150000 100000");  // the group above limits too
  EXPECT_EQ(cpu_quota(root_), 1.5);
  EXPECT_EQ(usable_cpus({}, root_), 1);
  put("/sys/fs/cgroup/cpu.max", "50000 100000");  // as inside a container
  EXPECT_EQ(cpu_quota(root_), 0.5);
  EXPECT_EQ(usable_cpus({}, root_), 1);
}

TEST_F(FakeMachine, QuotaOfTheFirstVersionOfControlGroups) {
  put("/proc/self/cgroup", "3:cpuset:/a\n2:cpu,cpuacct:/a/b\n0::/");
  put("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1");
  put("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cpu_quota(root_), 0);
  put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "300000");
  put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cpu_quota(root_), 3);
  put("/sys/fs/cgroup/cpuset/a/cpu.cfs_quota_us", "1");  // not the controller of CPU time
  put("/sys/fs/cgroup/cpuset/a/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cpu_quota(root_), 3);
}

// A file may tell of another machine: there a rank that no launcher has bound is on any core, not on this machine's
// few.
TEST(BoundCpus, WhoMayRunOnAllCpusIsBoundToNone) {
  cpu_set_t mine;
  ASSERT_EQ(sched_getaffinity(0, sizeof(mine), &mine), 0);
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  EXPECT_EQ(bound_cpus().empty(), CPU_COUNT(&mine) >= online);
  if (online == 1) GTEST_SKIP() << "one CPU: no process is bound to a part";
  int first = 0;
  while (!CPU_ISSET(first, &mine)) ++first;
  CpuList bound;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    EXPECT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    bound = bound_cpus();
  }).join();
  EXPECT_EQ(bound, CpuList{first});
}

// What mpirun does with --bind-to core: each rank may use one CPU, and together they have two.
TEST(UsableCpus, ProcessesThatAreBoundApartHaveTheirCpusBetweenThem) {
  cpu_set_t mine;
  ASSERT_EQ(sched_getaffinity(0, sizeof(mine), &mine), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mine)) cpus.push_back(cpu);
  }
  if (cpus.size() < 2 || (cpu_quota() > 0 && cpu_quota() < 2)) GTEST_SKIP() << "needs two CPUs";
  int bound[2];  // a byte from each child that has bound itself
  int release[2];
  ASSERT_EQ(pipe(bound), 0);
  ASSERT_EQ(pipe(release), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < 2; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      close(release[1]);
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(static_cast<std::size_t>(cpus[static_cast<std::size_t>(i)]), &one);
      char byte = sched_setaffinity(0, sizeof(one), &one) == 0 ? 'y' : 'n';
      if (write(bound[1], &byte, 1) != 1) _exit(1);
      (void)!read(release[0], &byte, 1);  // until the parent closes its end
      _exit(0);
    }
    children.push_back(child);
  }
  for (int i = 0; i < 2; ++i) {
    char byte = 0;
    EXPECT_EQ(read(bound[0], &byte, 1), 1);
    EXPECT_EQ(byte, 'y');
  }
  EXPECT_EQ(usable_cpus(std::span(children).first(1)), 1);
  EXPECT_EQ(usable_cpus(children), 2);
  EXPECT_EQ(usable_cpus(std::vector<pid_t>{children[0], children[0]}), 1);
  for (const int fd : {bound[0], bound[1], release[0], release[1]}) close(fd);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
}

TEST(Discover, ThisMachineMakesSense) {
  const Result<Host> found = discover_host();
  ASSERT_TRUE(found.ok()) << found.status().message();
  const Topology topology{{found.value()}, {}, {}, {}};
  EXPECT_TRUE(check(topology).ok()) << check(topology).message();
  EXPECT_LE(1, usable_cpus({}));
  EXPECT_LE(usable_cpus({}), cpus_of(found.value()));
  const Result<Topology> again = parse(print(topology));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again.value(), topology);
}

#ifdef TUTTI_HAS_HWLOC
TEST_F(FakeMachine, HasTheDevicesThatHwlocFinds) {
  put("/sys/devices/system/cpu/online", "0-1");
  put("/sys/devices/system/node/online", "0-1");
  put_node(0, "0", 1 << 20, "10 20");
  put_node(1, "1", 1 << 20, "20 10");
  put("/sys/class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)");
  put("/sys/class/net/ib0/speed", "-1");
  setenv("HWLOC_XMLFILE", (std::string(TUTTI_TEST_MACHINES) + "/gpus_behind_a_switch.hwloc.xml").c_str(), 1);
  const Result<Topology> found = discover(root_);
  unsetenv("HWLOC_XMLFILE");
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_TRUE(check(found.value()).ok()) << check(found.value()).message();
  const std::vector<Device>& devices = found.value().hosts[0].devices;
  // The ports before and behind the switch are part of the way; what only draws on a screen is left out.
  ASSERT_EQ(devices.size(), 4u) << print(found.value());
  const auto near = [](double speed) { return ::testing::DoubleNear(speed, 0.01); };
  EXPECT_EQ(devices[0].kind, DeviceKind::pci_switch);
  EXPECT_EQ(devices[0].pci, "0000:10:00.0");
  EXPECT_THAT(devices[0].up_gb_per_s, near(31.51));
  EXPECT_EQ(devices[1].kind, DeviceKind::gpu);
  EXPECT_EQ(devices[1].pci, "0000:12:00.0");
  EXPECT_EQ(devices[1].parent, 0);
  EXPECT_EQ(devices[2].kind, DeviceKind::nic);
  EXPECT_EQ(devices[2].name, "ib0");
  EXPECT_EQ(devices[2].rdma, "mlx5_0");
  EXPECT_EQ(devices[2].parent, 0);
  EXPECT_EQ(devices[2].gb_per_s, 25);
  EXPECT_THAT(devices[2].up_gb_per_s, near(15.75));
  EXPECT_EQ(devices[3].kind, DeviceKind::gpu);
  EXPECT_EQ(devices[3].numa_node, 1);
  EXPECT_EQ(devices[3].parent, -1);
}

TEST_F(FakeMachine, NicsWithoutAPlaceInThePciTreeAreFound) {
  const auto port = [&](const std::string& name, const std::string& state, const std::string& speed) {
    put("/sys/class/net/" + name + "/type", name == "lo" ? "772" : "1");
    put("/sys/class/net/" + name + "/operstate", state);
    put("/sys/class/net/" + name + "/speed", speed);
  };
  port("lo", "unknown", "-1");
  port("bond0", "up", "20000");
  port("eth0", "up", "10000");
  put("/sys/class/net/eth0/master", "");  // in the bond
  port("docker0", "up", "-1");
  put("/sys/class/net/docker0/bridge/bridge_id", "");
  port("veth7", "up", "10000");
  port("ifb0", "down", "-1");
  put("/sys/class/infiniband/rxe0/parent", "veth7");
  put("/sys/class/infiniband/rxe1/parent", "eth9");
  put("/sys/class/infiniband/rxe1/ports/1/rate", "2.5 Gb/sec (1X SDR)");
  Host host;
  add_virtual_nics(host, root_);
  add_virtual_nics(host, root_);  // what is there already is not added again
  ASSERT_EQ(host.devices.size(), 3u);
  EXPECT_EQ(host.devices[0].name, "bond0");
  EXPECT_EQ(host.devices[0].gb_per_s, 2.5);
  EXPECT_EQ(host.devices[1].name, "veth7");
  EXPECT_EQ(host.devices[1].rdma, "rxe0");
  EXPECT_EQ(host.devices[2].name, "rxe1");
  EXPECT_EQ(host.devices[2].gb_per_s, 0.3125);
}

TEST_F(FakeMachine, AnEthernetPortsSpeedIsInMbitPerSecond) {
  put("/sys/class/net/eth0/speed", "25000");
  EXPECT_EQ(port_gb_per_s(root_, "eth0", ""), 3.125);
  EXPECT_EQ(port_gb_per_s(root_, "eth1", "mlx5_9"), 0);
}

TEST(Discover, AgreesWithHwloc) {
  hwloc_topology_t theirs = nullptr;
  ASSERT_EQ(hwloc_topology_init(&theirs), 0);
  hwloc_topology_set_flags(theirs, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  ASSERT_EQ(hwloc_topology_load(theirs), 0);
  const Result<Host> ours = discover_host();
  ASSERT_TRUE(ours.ok()) << ours.status().message();
  const Host& host = ours.value();
  const auto count = [&](hwloc_obj_type_t type) { return hwloc_get_nbobjs_by_type(theirs, type); };
  EXPECT_EQ(host.packages, count(HWLOC_OBJ_PACKAGE));
  EXPECT_EQ(static_cast<int>(host.numa_nodes.size()), count(HWLOC_OBJ_NUMANODE));
  EXPECT_EQ(static_cast<int>(host.cores.size()), count(HWLOC_OBJ_CORE));
  EXPECT_EQ(cpus_of(host), count(HWLOC_OBJ_PU));
  const hwloc_obj_type_t levels[] = {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE};
  for (int level = 1; level <= 3; ++level) {
    const auto is_of_level = [&](const Cache& cache) { return cache.level == level; };
    EXPECT_EQ(std::count_if(host.caches.begin(), host.caches.end(), is_of_level), count(levels[level - 1])) << level;
    if (const hwloc_obj_t first = hwloc_get_obj_by_type(theirs, levels[level - 1], 0)) {
      EXPECT_EQ(smallest_cache(host, level), first->attr->cache.size) << level;
    }
  }
  hwloc_topology_destroy(theirs);
}
#endif

TEST(TopologyOption, AFileReplacesWhatIsFound) {
  NOT_EMULATED("a death test cannot start this program");
  // The options are read once in a process, so each case has its own.
  const auto in_a_child = [](const std::string& path, const auto& body) {
    EXPECT_EXIT(
        {
          setenv("TUTTI_TOPOLOGY", path.c_str(), 1);
          body(topology_of_process());
          _exit(0);
        },
        ::testing::ExitedWithCode(0), "");
  };
  const auto must = [](bool condition, const std::string& text) {
    if (condition) return;
    fprintf(stderr, "%s\n", text.c_str());
    _exit(1);
  };
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  in_a_child(machine_path("two_small_hosts"), [&](const Result<Topology>& t) {
    must(t.ok(), t.status().message());
    must(t.value().hosts.size() == 2 && host_of_rank(t.value()) == std::vector<int>{0, 0, 1, 1}, "not the file");
  });
  in_a_child("/nonexistent/machine.json", [&](const Result<Topology>& t) {
    must(!t.ok() && t.status().message().find("'/nonexistent/machine.json'") != std::string::npos, "no error");
  });
  in_a_child(machine_path("../discover_test").substr(0, machine_path("../discover_test").size() - 5) + ".cc",
             [&](const Result<Topology>& t) {
               must(!t.ok() && t.status().message().find("not JSON from byte") != std::string::npos, "no error");
             });
  in_a_child("/dev/zero", [&](const Result<Topology>& t) { must(!t.ok(), "read a device"); });
}

}  // namespace
}  // namespace tutti::topology::discover_test
