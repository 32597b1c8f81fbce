// Which ports become rails, and the addresses that peers are told: on descriptions of machines.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "transport/verbs/address.h"
#include "transport/verbs/devices.h"

namespace tutti::transport::verbs::verbs_devices_test {
namespace {

using ::testing::HasSubstr;

Gid gid(int index, const std::string& address, const std::string& interface, GidType type = GidType::roce_v2,
        bool up = true) {
  Gid made;
  made.index = index;
  made.type = type;
  const bool four = address.find(':') == std::string::npos;
  if (four) made.bytes[10] = made.bytes[11] = 0xFF;
  EXPECT_EQ(::inet_pton(four ? AF_INET : AF_INET6, address.c_str(), made.bytes.data() + (four ? 12 : 0)), 1);
  made.interface = interface;
  made.up = up;
  return made;
}

Port roce(const std::string& device, std::vector<Gid> gids, double gb_per_s = 12) {
  Port port;
  port.device = device;
  port.active = true;
  port.gb_per_s = gb_per_s;
  port.gids = std::move(gids);
  return port;
}

Port infiniband(const std::string& device, std::uint16_t lid, bool active = true) {
  Port port;
  port.device = device;
  port.infiniband = true;
  port.active = active;
  port.lid = lid;
  port.gb_per_s = 25;
  port.gids = {gid(0, "fe80::1", "", GidType::infiniband, false)};
  return port;
}

/// The rails in words, or the error.
std::string chosen(const std::vector<Port>& ports, const std::string& wanted, const std::string& own_ip) {
  const Result<std::vector<RailChoice>> rails = choose_rails(ports, wanted, own_ip);
  if (!rails.ok()) return rails.status().message();
  std::string text;
  for (const RailChoice& rail : rails.value())
    text += (text.empty() ? "" : ", ") + describe(ports[rail.port], rail.gid);
  return text;
}

const std::vector<Port> kTwoRoce = {roce("rxe1", {gid(0, "fe80::2", "d1"), gid(1, "10.9.1.1", "d1")}),
                                    roce("rxe0", {gid(0, "fe80::1", "d0"), gid(1, "10.9.0.1", "d0")})};

TEST(VerbsDevices, AreNamedWhereTheyCannotBeOpened) {
  Port closed;
  closed.device = "mlx5_0";
  closed.unopened = "Permission denied";
  EXPECT_EQ(chosen({closed}, "", ""),
            "verbs: no RDMA port can be used; there are: mlx5_0:1 (cannot be opened: Permission denied)");
  EXPECT_EQ(chosen({closed}, "mlx5_0", ""),
            "TUTTI_VERBS_DEVICES: 'mlx5_0' cannot be used: mlx5_0:1 cannot be opened: Permission denied");
  EXPECT_EQ(chosen({closed, kTwoRoce[1]}, "", ""), "rxe0:1 gid 1 (10.9.0.1)");
}

TEST(VerbsDevices, RailsAreInTheOrderOfTheDevicesNames) {
  EXPECT_EQ(chosen(kTwoRoce, "", ""), "rxe0:1 gid 1 (10.9.0.1), rxe1:1 gid 1 (10.9.1.1)");
  EXPECT_EQ(chosen(kTwoRoce, "", "10.9.1.1"), "rxe0:1 gid 1 (10.9.0.1), rxe1:1 gid 1 (10.9.1.1)");
}

TEST(VerbsDevices, NumbersInNamesCount) {
  std::vector<Port> ports;
  for (const char* name : {"mlx5_10", "mlx5_2", "ibp154s0", "mlx5_0", "mlx4_11", "ibp24s0", "mlx5_09"}) {
    ports.push_back(infiniband(name, 3));
  }
  EXPECT_EQ(chosen(ports, "", ""),
            "ibp24s0:1 lid 3, ibp154s0:1 lid 3, mlx4_11:1 lid 3, mlx5_0:1 lid 3, mlx5_2:1 lid 3, mlx5_09:1 lid 3, "
            "mlx5_10:1 lid 3");
}

TEST(VerbsDevices, TheOptionNamesRailsInItsOrder) {
  EXPECT_EQ(chosen(kTwoRoce, "rxe1,rxe0:1", ""), "rxe1:1 gid 1 (10.9.1.1), rxe0:1 gid 1 (10.9.0.1)");
  EXPECT_EQ(chosen(kTwoRoce, "rxe0", "10.9.1.1"), "rxe0:1 gid 1 (10.9.0.1)");
  EXPECT_EQ(chosen(kTwoRoce, "mlx5_0", ""),
            "TUTTI_VERBS_DEVICES: 'mlx5_0' cannot be used: no port has that name; there are: rxe1:1 (RoCE, active, "
            "10.9.1.1), rxe0:1 (RoCE, active, 10.9.0.1)");
  EXPECT_THAT(chosen(kTwoRoce, "rxe0,", ""), HasSubstr("rxe0:1"));
  EXPECT_THAT(chosen({infiniband("mlx5_0", 4, false)}, "mlx5_0", ""), HasSubstr("mlx5_0:1 is not active"));
}

TEST(VerbsDevices, MoreNamesThanAKeyHasRoomForAreRefused) {
  std::string names = "rxe1";
  for (std::size_t i = 1; i < kMostRails; ++i) names += ",rxe0";
  EXPECT_THAT(chosen(kTwoRoce, names, ""), ::testing::StartsWith("rxe1:1"));
  EXPECT_THAT(chosen(kTwoRoce, names + ",rxe0", ""), HasSubstr("names 33 ports; expected 32 at most"));
}

TEST(VerbsDevices, VersionTwoAndOwnAddressComeFirst) {
  const std::vector<Port> ports = {
      roce("mlx5_0",
           {gid(0, "fe80::1", "eth0", GidType::roce_v1), gid(1, "fe80::1", "eth0"),
            gid(2, "10.0.0.5", "eth0", GidType::roce_v1), gid(3, "10.0.0.5", "eth0"), gid(4, "2001:db8::5", "eth0"),
            gid(5, "10.1.0.5", "eth0.7"), gid(6, "10.2.0.5", "eth0.8", GidType::roce_v2, false)})};
  EXPECT_EQ(chosen(ports, "", ""), "mlx5_0:1 gid 3 (10.0.0.5)");
  EXPECT_EQ(chosen(ports, "", "10.0.0.5"), "mlx5_0:1 gid 3 (10.0.0.5)");
  EXPECT_EQ(chosen(ports, "", "10.1.0.5"), "mlx5_0:1 gid 5 (10.1.0.5)");
  EXPECT_EQ(chosen(ports, "", "2001:db8::5"), "mlx5_0:1 gid 4 (2001:db8::5)");
  EXPECT_EQ(chosen(ports, "", "10.2.0.5"), "mlx5_0:1 gid 3 (10.0.0.5)") << "its interface is down";
}

TEST(VerbsDevices, TheOptionNamesAnAddress) {
  const std::vector<Port> ports = {
      roce("mlx5_0", {gid(0, "10.0.0.5", "eth0", GidType::roce_v1), gid(1, "10.0.0.5", "eth0"),
                      gid(2, "10.1.0.5", "eth0.7"), gid(3, "10.2.0.5", "eth0.8", GidType::roce_v2, false)}),
      infiniband("mlx5_1", 4)};
  EXPECT_EQ(chosen(ports, "mlx5_0@10.1.0.5", "10.0.0.5"), "mlx5_0:1 gid 2 (10.1.0.5)");
  EXPECT_EQ(chosen(ports, "mlx5_0:1@10.0.0.5,mlx5_0@10.1.0.5", ""),
            "mlx5_0:1 gid 1 (10.0.0.5), mlx5_0:1 gid 2 (10.1.0.5)");
  EXPECT_EQ(chosen(ports, "mlx5_0@10.2.0.5", ""),
            "TUTTI_VERBS_DEVICES: 'mlx5_0@10.2.0.5' cannot be used: mlx5_0:1 has no GID of that address; expected one "
            "of: 10.0.0.5 (RoCE v1), 10.0.0.5 (RoCE v2), 10.1.0.5 (RoCE v2)");
  EXPECT_THAT(chosen(ports, "mlx5_0@", ""), HasSubstr("has no GID of that address"));
  EXPECT_EQ(chosen(ports, "mlx5_1@10.1.0.5", ""),
            "TUTTI_VERBS_DEVICES: 'mlx5_1@10.1.0.5' cannot be used: mlx5_1:1 is InfiniBand, which goes by its LID and "
            "not by an address");
}

TEST(VerbsDevices, WithoutBetterALinkLocalOrVersionOneServes) {
  EXPECT_EQ(chosen({roce("a", {gid(0, "fe80::1", "eth0", GidType::roce_v1), gid(1, "fe80::1", "eth0")})}, "", ""),
            "a:1 gid 1 (fe80::1)");
  EXPECT_EQ(chosen({roce("a", {gid(0, "10.0.0.1", "eth0", GidType::roce_v1)})}, "", ""), "a:1 gid 0 (10.0.0.1)");
}

TEST(VerbsDevices, OnlyPortsLikeTheOneWithTheOwnAddressGoAlong) {
  std::vector<Port> ports = kTwoRoce;
  ports.push_back(roce("slow", {gid(0, "10.3.0.1", "eth9")}, 1));
  ports.push_back(infiniband("mlx5_0", 7));
  EXPECT_EQ(chosen(ports, "", "10.9.0.1"), "rxe0:1 gid 1 (10.9.0.1), rxe1:1 gid 1 (10.9.1.1)");
  EXPECT_EQ(chosen(ports, "", "10.3.0.1"), "slow:1 gid 0 (10.3.0.1)");
  EXPECT_EQ(chosen(ports, "", "192.168.0.1"), "mlx5_0:1 lid 7") << "no port has it: InfiniBand before RoCE";
  ports.back().gb_per_s = 12;
  ports.push_back(infiniband("mlx5_1", 8));
  ports.push_back(infiniband("mlx5_2", 9));
  EXPECT_EQ(chosen(ports, "", ""), "mlx5_1:1 lid 8, mlx5_2:1 lid 9") << "the fast ones";
}

TEST(VerbsDevices, WhatCannotBeUsedIsNot) {
  std::vector<Port> ports = {infiniband("mlx5_0", 7, false), infiniband("mlx5_1", 0), infiniband("mlx5_2", 9),
                             roce("rxe0", {gid(0, "10.9.0.1", "d0", GidType::roce_v2, false)})};
  EXPECT_EQ(chosen(ports, "", ""), "mlx5_2:1 lid 9");
  ports.erase(ports.begin() + 2);
  EXPECT_EQ(
      chosen(ports, "", ""),
      "verbs: no RDMA port can be used; there are: mlx5_0:1 (InfiniBand, down, lid 7), mlx5_1:1 (InfiniBand, active, "
      "lid 0), rxe0:1 (RoCE, active, no address of an interface that is up)");
  EXPECT_EQ(chosen({}, "", ""), "verbs: no RDMA port can be used; there are: none");
}

TEST(VerbsAddress, GoesThereAndBack) {
  Address address;
  address.rails.resize(2);
  address.rails[0].gid = kTwoRoce[0].gids[1].bytes;
  address.rails[1] = {{}, 0xABCDEF, 4096, 12, 1, GidType::infiniband};
  address.lanes = 3;
  address.pairs = {0, 0, 0, 17, 18, 0, 19, 20, 21};
  const Result<Address> read = address_of(text_of(address), 3, 3, "rank 1");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read.value().rails[0].gid, address.rails[0].gid);
  EXPECT_EQ(read.value().rails[1].first_packet, 0xABCDEFu);
  EXPECT_EQ(read.value().rails[1].mtu, 4096);
  EXPECT_EQ(read.value().rails[1].lid, 12);
  EXPECT_EQ(read.value().pair(1, 0), 17u);
  EXPECT_EQ(read.value().pair(2, 2), 21u);
}

TEST(VerbsAddress, RefusesWhatIsNone) {
  Address address;
  address.rails.resize(1);
  address.pairs = {1, 2};
  const std::string text = text_of(address);
  EXPECT_THAT(address_of("", 2, 1, "rank 1").status().message(), HasSubstr("rank 1"));
  EXPECT_FALSE(address_of("garbage that is long enough", 2, 1, "rank 1").ok());
  for (std::size_t cut = 0; cut < text.size(); ++cut) {
    EXPECT_FALSE(address_of(text.substr(0, cut), 2, 1, "rank 1").ok());
  }
  EXPECT_FALSE(address_of(text + "x", 2, 1, "rank 1").ok());
  EXPECT_THAT(address_of(text, 3, 1, "rank 1").status().message(), HasSubstr("is for 2 ranks, 1 lanes"));
  EXPECT_FALSE(address_of(text, 1, 2, "rank 1").ok());
  EXPECT_TRUE(address_of(text, 2, 1, "rank 1").ok());
  // Of a rail's last two bytes each has few values.
  const std::size_t end = text.size() - 2 * sizeof(std::uint32_t);
  for (std::size_t at = end - 2; at < end; ++at) {
    std::string malformed = text;
    malformed[at] = 7;
    EXPECT_THAT(address_of(malformed, 2, 1, "rank 1").status().message(),
                HasSubstr("rank 1 has a rail of an unknown kind"));
  }
}

}  // namespace
}  // namespace tutti::transport::verbs::verbs_devices_test
