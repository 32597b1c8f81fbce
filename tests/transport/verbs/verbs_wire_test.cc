// The suite of wires over verbs: on all devices of this machine, from each to itself; and over a cable between two
// devices (TUTTI_TEST_CABLE="rxe2,rxe3"), where packets travel and may be lost, by two rails: ranks on even hosts
// have them in this order and the others in the other one, so each rail begins at another end. ./dev rdma-vm runs it.
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/cable.h"
#include "tests/support/verbs_card.h"
#include "tests/transport/wire/wire_suite_redirect.h"
#include "transport/shm/arena.h"
#include "transport/verbs/verbs.h"

namespace tutti::testing {
namespace {

using transport::VerbsWire;

std::string no_device() {
  const Result<std::string> devices = VerbsWire::devices();
  return devices.ok() ? "" : devices.status().message();
}

const WireMaker kVerbs{"Verbs", [](const WireJob& job) { return VerbsWire::open(job); }, no_device};

const WireMaker kCable{
    "Cable",
    [](const WireJob& job) {
      const bool first = job.hosts[static_cast<std::size_t>(job.rank)] % 2 == 0;
      return VerbsWire::open(job, rails_of_cable(first));
    },
    [] { return rails_of_cable(true).empty() ? "TUTTI_TEST_CABLE names no two devices" : no_device(); }};

INSTANTIATE_TEST_SUITE_P(Devices, WireSuite, every_way(kVerbs), name_of_wire_test);
INSTANTIATE_TEST_SUITE_P(Cable, WireSuite, every_way(kCable), name_of_wire_test);

#ifdef TUTTI_HAS_VERBS

constexpr std::size_t kGpuBytes = std::size_t{2} << 20;

/// A GPU's memory: pages of a file, which is what its driver hands out; at its address the host faults.
struct GpuMemory {
  int file = ::memfd_create("tutti gpu", MFD_CLOEXEC);
  std::byte* base = nullptr;
  std::byte* pages = nullptr;

  GpuMemory() {
    if (::ftruncate(file, kGpuBytes) != 0) std::abort();
    base = static_cast<std::byte*>(::mmap(nullptr, kGpuBytes, PROT_NONE, MAP_SHARED, file, 0));
    pages = static_cast<std::byte*>(::mmap(nullptr, kGpuBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    if (base == MAP_FAILED || pages == MAP_FAILED) std::abort();
  }
  ~GpuMemory() {
    ::munmap(base, kGpuBytes);
    ::munmap(pages, kGpuBytes);
    ::close(file);
  }
};

class VerbsDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    const Outcome missing = in_child(no_device);
    if (!missing.said.empty()) GTEST_SKIP() << "tutti-test: not run: " << missing.said;
  }
};

TEST_F(VerbsDevice, PutsOfAnySizeReachMemoryThatTheHostCannot) {
  run_job(kVerbs, Members::processes, {0, 1}, [](WireMember& member) {
    register_mapped_pages();
    GpuMemory gpu;
    const int peer = 1 - member.rank();
    const Result<std::string> key = member.wire().expose_device(gpu.base, kGpuBytes, {gpu.file, 0});
    EXPECT_TRUE(key.ok()) << key.status().message();
    const std::string theirs = member.gather(key.ok() ? key.value() : "")[static_cast<std::size_t>(peer)];
    const Result<Region> there = member.wire().attach(peer, theirs, kGpuBytes);
    EXPECT_TRUE(there.ok()) << there.status().message();
    if (::testing::Test::HasFailure()) return member.board().stop();
    std::uint64_t count = 0;
    // Those that would go along with the request, those that would be packed, and several writes.
    for (const std::size_t bytes : {1u, 8u, 200u, 257u, 4097u, 70'001u, (1u << 20) + 5}) {
      const std::size_t at = 64 + bytes % 7;
      fill(gpu.pages, bytes, ++count * 2 + static_cast<unsigned>(member.rank()));
      std::memset(gpu.pages + kGpuBytes / 2 - 64, 0xEE, kGpuBytes / 2 + 64);
      member.barrier();
      const Ticket ticket =
          member.put(peer, 0, there.value(), kGpuBytes / 2 - 64 + at, gpu.base, std::min(bytes, kGpuBytes / 2 - at));
      member.signal(peer, 0, count);
      if (!member.until_signal(peer, 0, count) || !member.until_completed(ticket)) return;
      const std::byte* come = gpu.pages + kGpuBytes / 2 - 64 + at;
      const std::size_t size = std::min(bytes, kGpuBytes / 2 - at);
      EXPECT_EQ(first_wrong(come, size, count * 2 + static_cast<unsigned>(peer)), size) << bytes << " bytes";
      EXPECT_EQ(come[-1], std::byte{0xEE});
      EXPECT_TRUE(come + size == gpu.pages + kGpuBytes || come[size] == std::byte{0xEE}) << bytes << " bytes";
      member.barrier();
    }
    member.wire().unexpose(gpu.base);
  });
}

// Soft-RoCE: so the tests' function above stands for a NIC's that can.
TEST_F(VerbsDevice, ADeviceThatCannotSaysSo) {
  run_job(kVerbs, Members::processes, {0, 1}, [](WireMember& member) {
    GpuMemory gpu;
    const Result<std::string> key = member.wire().expose_device(gpu.base, kGpuBytes, {gpu.file, 0});
    EXPECT_EQ(key.status().code(), Code::unsupported);
    EXPECT_THAT(key.status().message(), ::testing::HasSubstr("does not register a device's memory"));
  });
}

/// The virtual machine has four devices, each of which reaches itself alone. Two ranks share four on host 0, and host 1
/// has two. So rank 2 is connected to rank 0's first and to rank 1's third one, its own first and second.
const WireMaker kUneven{"Uneven", [](const WireJob& job) {
                          const bool first = job.hosts[static_cast<std::size_t>(job.rank)] == 0;
                          return VerbsWire::open(job, first ? "rxe0,rxe2,rxe1,rxe3" : "rxe0,rxe1");
                        }};

TEST_F(VerbsDevice, HostsMayHaveDifferentNumbersOfThem) {
  const Outcome devices = in_child([] { return VerbsWire::devices().take(); });
  if (devices.said.find("rxe3") == std::string::npos) GTEST_SKIP() << "tutti-test: not run: no rxe0 to rxe3";
  run_job(kUneven, Members::processes, {0, 0, 1}, [](WireMember& member) {
    constexpr std::size_t kBytes = 300'000;
    std::vector<std::byte> source(kBytes);
    fill(source.data(), kBytes, static_cast<unsigned>(member.rank()));
    for (int lane = 0; lane < member.job().lanes; ++lane) {
      const auto at = [&](int sender) { return WireMember::kData + static_cast<unsigned>(sender * 2 + lane) * kBytes; };
      std::vector<Ticket> tickets;
      for (const int peer : member.linked()) {
        tickets.push_back(member.put(peer, lane, at(member.rank()), source.data(), kBytes));
        member.signal(peer, lane, 1);
      }
      for (const int peer : member.linked()) {
        if (!member.until_signal(peer, lane, 1)) return;
        EXPECT_EQ(first_wrong(member.memory() + at(peer), kBytes, static_cast<unsigned>(peer)), kBytes)
            << "from " << peer << ", lane " << lane;
      }
      for (const Ticket ticket : tickets) {
        if (!member.until_completed(ticket)) return;
      }
    }
    member.barrier();
  });
}

WireMaker with_arena(const WireMaker& maker) {
  return {maker.name + "WithArena",
          [open = maker.open](const WireJob& job) {
            WireJob with = job;
            with.blocks = transport::Arena::process().take();
            return open(with);
          },
          maker.missing};
}

/// Puts `bytes` at `from` to rank 1 in each lane, which answers when they have come. In how many they were not
/// copied.
int put_and_await(WireMember& member, const std::byte* from, std::size_t bytes, std::uint64_t round) {
  int in_place = 0;
  for (int lane = 0; lane < member.job().lanes; ++lane) {
    const Ticket ticket = member.put(1, lane, WireMember::kData, from, bytes);
    member.signal(1, lane, round);
    member.until_completed(ticket);
    member.until_signal(1, lane, round);
    in_place += ticket != 0 ? 1 : 0;
  }
  return in_place;
}

/// The address of a block that has ended is that of the next one: with its old registration the NIC would send pages
/// that are not there any more.
TEST_F(VerbsDevice, ABlockIsSentFromWhereItLiesUntilItEnds) {
  run_job(with_arena(kVerbs), Members::processes, {0, 1}, [](WireMember& member) {
    using transport::Arena;
    constexpr std::size_t kBlock = std::size_t{3} << 20;
    constexpr std::uint64_t kRounds = 4;
    if (member.rank() == 1) {
      for (std::uint64_t round = 1; round <= kRounds + 4; ++round) {
        for (int lane = 0; lane < member.job().lanes; ++lane) {
          if (!member.until_signal(0, lane, round)) return;
          EXPECT_EQ(first_wrong(member.memory() + WireMember::kData, kBlock, round), kBlock) << "round " << round;
          std::memset(member.memory() + WireMember::kData, 0, kBlock);
          member.signal(0, lane, round);
        }
      }
      return;
    }
    Arena& arena = *Arena::process().take();
    std::byte* before = nullptr;
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      std::byte* block = arena.allocate(kBlock + 4096).take();
      EXPECT_TRUE(before == nullptr || block == before) << "the test shows nothing";
      before = block;
      fill(block + 100, kBlock, round);
      EXPECT_EQ(put_and_await(member, block + 100, kBlock, round), member.job().lanes);
      Arena::deallocate(block);
    }
    std::vector<std::byte> foreign(kBlock);
    fill(foreign.data(), kBlock, kRounds + 1);
    EXPECT_EQ(put_and_await(member, foreign.data(), kBlock, kRounds + 1), 0);
    // Windows need what may be locked more than this does. Half of it is enough for one rail, twice, then for none.
    std::uint64_t round = kRounds + 2;
    const rlim_t for_one = 2 * (kBlock + kBlock / 2);
    for (const rlim_t limit : {for_one, for_one, rlim_t{2 * kBlock}}) {
      const rlimit lockable{limit, limit};
      EXPECT_EQ(::setrlimit(RLIMIT_MEMLOCK, &lockable), 0);
      std::byte* block = arena.allocate(kBlock + 4096).take();
      fill(block, kBlock, round);
      EXPECT_EQ(put_and_await(member, block, kBlock, round++), limit == for_one ? 1 : 0);
      Arena::deallocate(block);
    }
  });
}

/// After a failed call: what the NIC was still to read is taken from it, and the link with it. The cable is to be a
/// slow one.
TEST_F(VerbsDevice, ABlockThatIsLetGoIsNotReadAgain) {
  if (rails_of_cable(true).empty()) GTEST_SKIP() << "tutti-test: not run: " << kCable.missing();
  run_job(with_arena(kCable), Members::processes, {0, 1}, [](WireMember& member) {
    using transport::Arena;
    constexpr std::size_t kBytes = std::size_t{7} << 20;
    const std::byte* received = member.memory() + WireMember::kData;
    if (member.rank() == 0) {
      std::byte* block = Arena::process().take()->allocate(kBytes).take();
      fill(block, kBytes, 5);
      const Ticket ticket = member.put(1, 0, WireMember::kData, block, kBytes);
      EXPECT_FALSE(member.wire().completed(ticket)) << "the test shows nothing";
      member.wire().release_source(ticket);
      EXPECT_TRUE(member.wire().completed(ticket));
      EXPECT_THAT(member.wire().broken(1).message(),
                  ::testing::HasSubstr("it has been closed: a call has failed here"));
      std::memset(block, 0xEE, kBytes);
      member.wire().release_source(ticket);
      Arena::deallocate(block);
    }
    member.barrier();
    for (std::size_t i = 0; member.rank() == 1 && i < kBytes; ++i) {
      if (received[i] != std::byte{0} && received[i] != wire_byte(5, i)) {
        ADD_FAILURE() << "byte " << i << " was read after it had been released";
        break;
      }
    }
  });
}

/// More than bounce buffers and the send queue have room for: put() does not wait for it, the order stays, and what is
/// released of arrives. The cable is to be a slow one.
TEST_F(VerbsDevice, WhatFindsNoRoomIsSentLaterAndInOrder) {
  if (rails_of_cable(true).empty()) GTEST_SKIP() << "tutti-test: not run: " << kCable.missing();
  run_job(kCable, Members::processes, {0, 1}, [](WireMember& member) {
    constexpr std::size_t kBytes = std::size_t{6} << 20;
    constexpr std::size_t kSmall = 100;
    if (member.rank() == 0) {
      const std::array ranks{1};
      std::vector<std::byte> large(kBytes);
      std::vector<std::byte> small(kSmall);
      for (const bool lets_go : {false, true}) {
        const std::uint64_t round = lets_go ? 2 : 1;
        fill(large.data(), kBytes, round);
        fill(small.data(), kSmall, round);
        const Ticket ticket = member.put(1, 0, WireMember::kData, large.data(), kBytes);
        EXPECT_FALSE(member.wire().completed(ticket)) << "the test shows nothing";
        EXPECT_FALSE(member.wire().idle(ranks));
        EXPECT_EQ(member.put(1, 0, WireMember::kData + kBytes, small.data(), kSmall), 0u)
            << "a small put is free at once";
        std::fill(small.begin(), small.end(), std::byte{0xEE});
        member.signal(1, 0, round);
        if (lets_go) {
          member.wire().release_source(ticket);
          std::fill(large.begin(), large.end(), std::byte{0xEE});
        }
        if (!member.until_completed(ticket) || !member.until_signal(1, 0, round)) return;
        EXPECT_TRUE(member.wire().idle(ranks));
        EXPECT_TRUE(member.wire().broken(1).ok()) << member.wire().broken(1).message();
      }
      return;
    }
    for (const std::uint64_t round : {1, 2}) {
      if (!member.until_signal(0, 0, round)) return;
      EXPECT_EQ(first_wrong(member.memory() + WireMember::kData, kBytes, round), kBytes) << "round " << round;
      EXPECT_EQ(first_wrong(member.memory() + WireMember::kData + kBytes, kSmall, round), kSmall) << "round " << round;
      member.signal(0, 0, round);
    }
  });
}

/// The link's words name the peer, the device and what it says.
TEST_F(VerbsDevice, ACableThatIsCutIsNamed) {
  if (rails_of_cable(true).empty()) GTEST_SKIP() << "tutti-test: not run: " << kCable.missing();
  struct Uncut {
    ~Uncut() { EXPECT_EQ(std::system("tc qdisc del dev cable0 root"), 0); }
  } after;
  run_job(kCable, Members::processes, {0, 1}, [](WireMember& member) {
    member.barrier();
    const char* const cut = member.rank() == 0 ? "tc qdisc add dev cable0 root netem loss 100%" : "true";
    EXPECT_EQ(std::system(cut), 0);
    member.barrier();
    const int peer = 1 - member.rank();
    (void)member.until("the link to break", [&] { return !member.wire().broken(peer).ok(); });  // who waits probes
    const std::string said = member.wire().broken(peer).message();
    EXPECT_THAT(said, ::testing::HasSubstr("rank " + std::to_string(peer)));
    EXPECT_THAT(said, ::testing::HasSubstr("rxe"));
    EXPECT_THAT(said, ::testing::HasSubstr("retry counter exceeded: the peer does not answer (vendor error"));
  });
}

#endif  // TUTTI_HAS_VERBS

}  // namespace
}  // namespace tutti::testing
