// The suite of wires over verbs: on all devices of this machine, from each to itself; and over a cable between two
// devices (TUTTI_TEST_CABLE="rxe2,rxe3"), where packets travel and may be lost, by two rails: members on even hosts
// have them in this order and the others in the other one, so each rail begins at another end. ./dev rdma-vm runs it.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/support/verbs_card.h"
#include "tests/transport/wire_suite.h"
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

std::string cable() {
  const char* named = std::getenv("TUTTI_TEST_CABLE");
  return named != nullptr ? named : "";
}

const WireMaker kCable{"Cable",
                       [](const WireJob& job) {
                         const std::string ends = cable();
                         const std::size_t comma = ends.find(',');
                         const bool first = job.hosts[static_cast<std::size_t>(job.own)] % 2 == 0;
                         return VerbsWire::open(job,
                                                first ? ends : ends.substr(comma + 1) + "," + ends.substr(0, comma));
                       },
                       [] { return cable().empty() ? "TUTTI_TEST_CABLE names no two devices" : no_device(); }};

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
  run_job(kVerbs, Members::processes, {0, 1}, [](Party& party) {
    register_mapped_pages();
    GpuMemory gpu;
    const int peer = 1 - party.own();
    const Result<std::string> key = party.wire().expose_device(gpu.base, kGpuBytes, {gpu.file, 0});
    EXPECT_TRUE(key.ok()) << key.status().message();
    const std::string theirs = party.gather(key.ok() ? key.value() : "")[static_cast<std::size_t>(peer)];
    const Result<Region> there = party.wire().attach(peer, theirs, kGpuBytes);
    EXPECT_TRUE(there.ok()) << there.status().message();
    if (::testing::Test::HasFailure()) return party.board().stop();
    std::uint64_t count = 0;
    // Those that would go along with the request, those that would be packed, and several writes.
    for (const std::size_t bytes : {1u, 8u, 200u, 257u, 4097u, 70'001u, (1u << 20) + 5}) {
      const std::size_t at = 64 + bytes % 7;
      fill(gpu.pages, bytes, ++count * 2 + static_cast<unsigned>(party.own()));
      std::memset(gpu.pages + kGpuBytes / 2 - 64, 0xEE, kGpuBytes / 2 + 64);
      party.barrier();
      const Ticket ticket =
          party.put(peer, 0, there.value(), kGpuBytes / 2 - 64 + at, gpu.base, std::min(bytes, kGpuBytes / 2 - at));
      party.signal(peer, 0, count);
      if (!party.until_signal(peer, 0, count) || !party.until_settled(ticket)) return;
      const std::byte* come = gpu.pages + kGpuBytes / 2 - 64 + at;
      const std::size_t size = std::min(bytes, kGpuBytes / 2 - at);
      EXPECT_EQ(first_wrong(come, size, count * 2 + static_cast<unsigned>(peer)), size) << bytes << " bytes";
      EXPECT_EQ(come[-1], std::byte{0xEE});
      EXPECT_TRUE(come + size == gpu.pages + kGpuBytes || come[size] == std::byte{0xEE}) << bytes << " bytes";
      party.barrier();
    }
    party.wire().conceal(gpu.base);
  });
}

// Soft-RoCE: so the tests' function above stands for a card's that can.
TEST_F(VerbsDevice, ADeviceThatCannotSaysSo) {
  run_job(kVerbs, Members::processes, {0}, [](Party& party) {
    GpuMemory gpu;
    const Result<std::string> key = party.wire().expose_device(gpu.base, kGpuBytes, {gpu.file, 0});
    EXPECT_EQ(key.status().code(), Code::unsupported);
    EXPECT_THAT(key.status().message(), ::testing::HasSubstr("does not register a device's memory"));
  });
}

const WireMaker kWithArena{"WithArena",
                           [](const WireJob& job) {
                             WireJob with = job;
                             with.blocks = transport::Arena::process().take();
                             return VerbsWire::open(with);
                           },
                           no_device};

/// Puts `bytes` at `from` to member 1, which answers when they have come. True: they were not copied.
bool put_and_await(Party& party, const std::byte* from, std::size_t bytes, std::uint64_t round) {
  const Ticket ticket = party.put(1, 0, Party::kData, from, bytes);
  party.signal(1, 0, round);
  party.until_settled(ticket);
  party.until_signal(1, 0, round);
  return ticket != 0;
}

/// The address of a block that has ended is that of the next one: with its old registration the card would send pages
/// that are not there any more.
TEST_F(VerbsDevice, ABlockIsSentFromWhereItLiesUntilItEnds) {
  run_job(kWithArena, Members::processes, {0, 1}, [](Party& party) {
    using transport::Arena;
    constexpr std::size_t kBlock = std::size_t{3} << 20;
    constexpr std::uint64_t kRounds = 4;
    if (party.own() == 1) {
      for (std::uint64_t round = 1; round <= kRounds + 2; ++round) {
        if (!party.until_signal(0, 0, round)) return;
        EXPECT_EQ(first_wrong(party.memory() + Party::kData, kBlock, round), kBlock) << "round " << round;
        party.signal(0, 0, round);
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
      EXPECT_TRUE(put_and_await(party, block + 100, kBlock, round));
      Arena::deallocate(block);
    }
    std::vector<std::byte> foreign(kBlock);
    fill(foreign.data(), kBlock, kRounds + 1);
    EXPECT_FALSE(put_and_await(party, foreign.data(), kBlock, kRounds + 1));
    // Windows need what may be locked more than this does.
    const rlimit little{2 * kBlock, 2 * kBlock};
    EXPECT_EQ(::setrlimit(RLIMIT_MEMLOCK, &little), 0);
    std::byte* block = arena.allocate(kBlock + 4096).take();
    fill(block, kBlock, kRounds + 2);
    EXPECT_FALSE(put_and_await(party, block, kBlock, kRounds + 2));
    Arena::deallocate(block);
  });
}

#endif  // TUTTI_HAS_VERBS

}  // namespace
}  // namespace tutti::testing
