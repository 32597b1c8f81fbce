#include "topology/text.h"

#include <gmock/gmock.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "tests/topology/machines.h"
#include "topology/cpu_list.h"
#include "topology/machines.h"

namespace tutti::topology::text_test {
namespace {

using ::testing::HasSubstr;

Topology machine(const std::string& name) {
  Result<Topology> topology = parse(machine_text(name));
  EXPECT_TRUE(topology.ok()) << name << ": " << topology.status().message();
  return topology.ok() ? topology.take() : Topology{};
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

std::string error_of(const std::string& text) { return parse(text).status().message(); }

TEST(CpuList, PrintsAndParses) {
  EXPECT_EQ(print_cpus({}), "");
  EXPECT_EQ(print_cpus({3}), "3");
  EXPECT_EQ(print_cpus({0, 1, 2, 8, 10, 11}), "0-2,8,10-11");
  EXPECT_EQ(parse_cpus("0-2,8,10-11\n").value(), (CpuList{0, 1, 2, 8, 10, 11}));
  EXPECT_EQ(parse_cpus("").value(), CpuList{});
}

TEST(CpuList, RefusesWhatIsNoList) {
  for (const char* text :
       {"a", "-1", "3-1", "1,1", "2,1", "0-2,2", "1,", ",1", "1 2", "1--2", "0-65536", "99999999999"}) {
    EXPECT_FALSE(parse_cpus(text).ok()) << text;
  }
}

TEST(TopologyText, ReadsASmallVirtualMachine) {
  const Topology t = machine("two_core_vm");
  ASSERT_EQ(t.hosts.size(), 1u);
  EXPECT_EQ(t.hosts[0].name, "small");
  EXPECT_EQ(t.hosts[0].packages, 1);
  EXPECT_EQ(t.hosts[0].cores.size(), 2u);
  EXPECT_EQ(cpus_of(t.hosts[0]), 2);
  EXPECT_EQ(smallest_cache(t.hosts[0], 2), 1u << 20);
  EXPECT_EQ(smallest_cache(t.hosts[0], 4), 0u);
  const std::uint64_t last = smallest_cache(t.hosts[0], 3);
  EXPECT_GT(last, 0u);
  EXPECT_EQ(cache_share(t.hosts[0], 1), last);
  EXPECT_EQ(cache_share(t.hosts[0], 2), last / 2);
}

TEST(TopologyText, ReadsAServerOfTwoPackages) {
  const Topology t = machine("two_socket_64_cores");
  ASSERT_EQ(t.hosts.size(), 1u);
  const Host& host = t.hosts[0];
  EXPECT_EQ(host.packages, 2);
  EXPECT_EQ(host.cores.size(), 64u);
  EXPECT_EQ(cpus_of(host), 128);
  EXPECT_EQ(host.cores[40].package, 1);
  EXPECT_EQ(host.cores[40].cpus, (CpuList{40, 104}));
  EXPECT_EQ(host.numa_nodes[1].distances, (std::vector<int>{21, 10}));
  ASSERT_EQ(t.links.size(), 1u);
  EXPECT_EQ(t.links[0].b.kind, PlaceKind::numa_node);
  EXPECT_EQ(t.links[0].b.index, 1);
  EXPECT_EQ(t.links[0].gb_per_s, 62.5);
}

TEST(TopologyText, WhatIsPrintedParsesAsTheSame) {
  for (const char* name : {"two_core_vm", "two_socket_64_cores", "two_small_hosts"}) {
    const Topology t = machine(name);
    const Result<Topology> again = parse(print(t));
    ASSERT_TRUE(again.ok()) << name << ": " << again.status().message();
    EXPECT_EQ(again.value(), t) << name;
  }
}

TEST(TopologyText, KnownMachinesSurviveTheRoundTrip) {
  for (const std::string& name : machine_names()) {
    for (const int hosts : {1, 2, 64}) {
      const bool has_gpus = name == "nvswitch" || name == "pcie";
      const Topology t = topology::machine(name, {.hosts = hosts, .rails = has_gpus ? 8 : 1}).take();
      const Result<Topology> again = parse(print(t));
      ASSERT_TRUE(again.ok()) << name << ": " << again.status().message();
      EXPECT_EQ(again.value(), t) << name << " x " << hosts;
    }
  }
}

TEST(TopologyText, RandomTopologiesSurviveTheRoundTrip) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int i = 0; i < 200; ++i) {
    Topology t;
    for (int h = 1 + below(3); h > 0; --h) {
      Host host;
      host.name = "h\"\\\n" + std::to_string(below(1000));
      host.packages = 1 + below(3);
      const std::size_t nodes = 1 + static_cast<std::size_t>(below(3));
      for (std::size_t n = 0; n < nodes; ++n) {
        host.numa_nodes.push_back({random() * std::uint64_t{4096}, {}});
        if (below(2) == 0) host.numa_nodes.back().distances.assign(nodes, 10 + below(30));
      }
      int cpu = 0;
      for (int c = 1 + below(8); c > 0; --c) {
        Core core{below(host.packages), below(static_cast<int>(nodes)), {}};
        for (int threads = 1 + below(4); threads > 0; --threads) core.cpus.push_back(cpu += 1 + below(3));
        if (below(2) == 0) host.caches.push_back({1 + below(3), random(), core.cpus});
        host.cores.push_back(std::move(core));
      }
      if (below(2) == 0) host.core_gb_per_s = below(100) / 7.0;
      for (int d = below(6); d > 0; --d) {
        Device device{static_cast<DeviceKind>(below(4)), "d" + std::to_string(d), below(2) == 0 ? "0000:01:00.0" : ""};
        if (device.kind == DeviceKind::nic && below(2) == 0) device.rdma = "mlx5_0";
        device.numa_node = below(static_cast<int>(nodes));
        for (std::size_t p = 0; p < host.devices.size(); ++p) {
          const bool fits = host.devices[p].numa_node == device.numa_node;
          if (fits && host.devices[p].kind == DeviceKind::pci_switch) device.parent = static_cast<int>(p);
        }
        device.up_gb_per_s = below(100) / 3.0;
        device.up_latency_us = below(10) / 3.0;
        device.gb_per_s = below(2);
        device.bytes = random();
        host.devices.push_back(device);
      }
      t.hosts.push_back(std::move(host));
    }
    const int hosts = static_cast<int>(t.hosts.size());
    for (int l = below(3); l > 0 && hosts > 1; --l) {
      const int a = below(hosts);
      t.links.push_back({{a}, {(a + 1) % hosts, PlaceKind::package, 0}, 1.0 / (1 + below(100)), below(100) / 7.0});
    }
    for (int s = below(3); s > 0; --s) {
      t.switches.push_back({"s" + std::to_string(s)});
      t.links.push_back({{below(hosts)}, {0, PlaceKind::network, 0}, 12.5, 1});
    }
    for (int r = below(5); r > 0; --r) {
      const int h = below(hosts);
      const std::vector<Device>& devices = t.hosts[static_cast<std::size_t>(h)].devices;
      t.ranks.push_back({h});
      for (std::size_t d = 0; d < devices.size(); ++d) {
        if (devices[d].kind == DeviceKind::gpu) t.ranks.back() = {h, PlaceKind::device, static_cast<int>(d)};
      }
    }
    ASSERT_TRUE(check(t).ok()) << check(t).message();
    const Result<Topology> again = parse(print(t));
    ASSERT_TRUE(again.ok()) << again.status().message() << "\n" << print(t);
    ASSERT_EQ(again.value(), t) << print(t);
  }
}

TEST(TopologyText, NamesWhatIsWrongAndWhere) {
  const std::string good = machine_text("two_small_hosts");
  ASSERT_TRUE(parse(good).ok());
  struct Mistake {
    const char* from;
    const char* to;
    const char* expected;
  };
  const Mistake mistakes[] = {
      {"\"tutti_topology\": 1", "\"tutti_topology\": 2", "tutti_topology is 2; this build reads 1"},
      {"\"packages\"", "\"package\"", "topology.hosts[0]: unknown key 'package'"},
      {"\"packages\": 1", "\"packages\": -1", "topology.hosts[0].packages: expected a whole number"},
      {"\"packages\": 1", "\"packages\": 5000000000", "topology.hosts[0].packages: expected a whole number"},
      {"\"packages\": 1", "\"packages\": 0", "hosts[0]: has 0 packages"},
      {"\"name\": \"small\"", "\"name\": 7", "topology.hosts[0].name: expected a text"},
      {"\"package\":0", "\"package\":1", "hosts[0].cores[0]: package is 1; the host has 1"},
      {"\"cpus\":\"0\"", "\"cpus\":\"1\"", "hosts[0].cores[1]: CPU 1 is in another one already"},
      {"\"cpus\":\"0\"", "\"cpus\":\"\"", "hosts[0].cores[0]: has no CPUs"},
      {"\"cpus\":\"0\"", "\"cpus\":\"x\"", "topology.hosts[0].cores[0]: cpus: 'x' is not a list of CPUs"},
      {"\"cpus\":\"0-1\"", "\"cpus\":\"0-2\"", "hosts[0].caches[4]: CPU 2 is in no core"},
      {"\"level\":3", "\"level\":9", "hosts[0].caches[4]: level is 9"},
      {"\"distances\":[10]", "\"distances\":[10,20]", "hosts[0].numa_nodes[0]: has 2 distances; the host has 1"},
      {"\"gb_per_s\":1.25", "\"gb_per_s\":0", "links[0]: gb_per_s is 0"},
      {"\"gb_per_s\":1.25", "\"gb_per_s\":1e999", "not JSON"},
      {"\"latency_us\":25.0", "\"latency_us\":-1", "links[0]: latency_us is -1"},
      {"\"a\":{\"host\":0}", "\"a\":{\"host\":1}", "links[0]: both ends are the same place"},
      {"\"a\":{\"host\":0}", "\"a\":{\"host\":2}", "links[0].a: host is 2; the topology has 2"},
      {"\"a\":{\"host\":0}", "\"a\":{\"host\":0,\"package\":0,\"numa_node\":0}", "names a package and a numa_node"},
      {"{\"host\":1}\n", "{\"host\":2}\n", "ranks[3]: host is 2; the topology has 2"},
      {"{\"host\":1}\n", "{\"switch\":0}\n", "ranks[3]: switch is 0; the topology has 0"},
      {"{\"host\":1}\n", "{\"host\":1,\"core\":2}\n", "ranks[3]: core is 2; the host has 2"},
      {"{\"host\":1}\n", "7\n", "topology.ranks[3]: is number; expected an object"},
      {"\"packages\": 1", "\"packages\": 1, \"devices\": [{\"kind\":\"tpu\"}]",
       "hosts[0].devices[0]: kind is 'tpu'; expected pci_switch, nic, gpu or nvswitch"},
      {"\"packages\": 1", "\"packages\": 1, \"devices\": [{\"kind\":\"gpu\",\"parent\":0}]",
       "hosts[0].devices[0]: parent is 0; what comes before it has 0"},
      {"\"packages\": 1", "\"packages\": 1, \"devices\": {}", "topology.hosts[0].devices: is object; expected a list"},
      {"\"hosts\": [", "\"hosts\": [,", "not JSON from byte"},
  };
  for (const Mistake& mistake : mistakes) {
    EXPECT_THAT(error_of(replaced(good, mistake.from, mistake.to)), HasSubstr(mistake.expected)) << mistake.to;
  }
  EXPECT_THAT(error_of(""), HasSubstr("not JSON"));
  EXPECT_THAT(error_of("[]"), HasSubstr("topology: is array; expected an object"));
  EXPECT_THAT(error_of("{\"tutti_topology\": 1}"), HasSubstr("topology: has no \"hosts\""));
  EXPECT_THAT(error_of("{\"tutti_topology\": 1, \"hosts\": []}"), HasSubstr("hosts: there are none"));
}

TEST(TopologyText, TheFirstDifferenceIsNamedWithBothValues) {
  const Topology one = machine("two_small_hosts");
  EXPECT_EQ(first_difference(one, one), "");
  const auto differs = [&](const std::function<void(Topology&)>& change) {
    Topology other = one;
    change(other);
    return first_difference(one, other);
  };
  EXPECT_EQ(differs([](Topology& t) { t.hosts[1].caches[2].bytes = 5; }),
            "hosts[1] (other).caches[2].bytes: 1048576 and 5");
  EXPECT_EQ(differs([](Topology& t) { t.hosts[0].core_gb_per_s = 7; }),
            "hosts[0] (small).core_gb_per_s: nothing and 7.0");
  EXPECT_EQ(differs([](Topology& t) { t.links[0].latency_us = 4; }),
            "links[0] (host 0 to host 1).latency_us: 25.0 and 4.0");
  EXPECT_EQ(differs([](Topology& t) { t.ranks.pop_back(); }), "ranks[3]: {\"host\":1} and nothing");
  EXPECT_EQ(differs([](Topology& t) { t.switches.push_back({"leaf"}); }),
            "switches[0]: nothing and {\"name\":\"leaf\"}");
}

TEST(TopologyText, AShortTextCannotAskForMuchMemory) {
  EXPECT_THAT(error_of(std::string(kMostTextBytes + 1, ' ')), HasSubstr("bytes; a topology may have"));
  std::string text =
      R"({"tutti_topology":1,"hosts":[{"name":"","cpu_model":"","packages":1,"numa_nodes":[{"bytes":0}],"cores":[)";
  for (int i = 0; i < 100; ++i) {
    text += std::string(i == 0 ? "" : ",") + R"({"package":0,"numa_node":0,"cpus":"0-65535"})";
  }
  EXPECT_THAT(error_of(text + "]}]}"), HasSubstr("CPUs are listed by now"));
  EXPECT_FALSE(parse(std::string(kMostTextBytes, '[')).ok());
}

}  // namespace
}  // namespace tutti::topology::text_test
