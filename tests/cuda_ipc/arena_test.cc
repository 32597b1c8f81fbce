// Device memory that Tutti hands out.
#include "transport/cuda_ipc/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "device/driver.h"
#include "device/memory_kind.h"
#include "tests/support/fake_cuda/driver.h"
#include "tutti/tutti.hpp"

namespace tutti::transport::arena_test {
namespace {

using testing::FakeDriver;

TEST(DeviceArena, ZeroedAlignedAndOnItsGpu) {
  FakeDriver cuda({.devices = 2});
  DeviceArena* arena = DeviceArena::of(1).value();
  std::byte* first = arena->allocate(1000).value();
  std::byte* second = arena->allocate(3).value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 512, 0U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(second) % 512, 0U);
  EXPECT_EQ(device::kind_of(second), (device::MemoryKind{device::MemoryPlace::device, 1}));
  EXPECT_TRUE(std::all_of(first, first + 1000, [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(arena->segments(), 1U);  // one allocation of the driver's serves both
  EXPECT_EQ(cuda.allocated(1), DeviceArena::kSegment);
  EXPECT_EQ(cuda.allocated(0), 0U);
  EXPECT_TRUE(DeviceArena::deallocate(first));
  EXPECT_TRUE(DeviceArena::deallocate(second));
  EXPECT_EQ(arena->allocated(), 0U);
  EXPECT_EQ(cuda.allocated(1), 0U);  // no peer was notified of the segment
}

TEST(DeviceArena, MemoryIsZeroWhenItIsUsedAgain) {
  const FakeDriver cuda;
  DeviceArena* arena = DeviceArena::of(0).value();
  std::byte* keeps = arena->allocate(100).value();
  std::byte* first = arena->allocate(5000).value();
  std::memset(first, 7, 5000);
  ASSERT_TRUE(DeviceArena::deallocate(first));
  std::byte* again = arena->allocate(5000).value();
  EXPECT_EQ(again, first);
  EXPECT_TRUE(std::all_of(again, again + 5000, [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_TRUE(DeviceArena::deallocate(again));
  EXPECT_TRUE(DeviceArena::deallocate(keeps));
}

TEST(DeviceArena, LargeOnesGetSegmentsOfTheirOwn) {
  const FakeDriver cuda({.memory = std::size_t{200} << 20});
  DeviceArena* arena = DeviceArena::of(0).value();
  std::byte* large = arena->allocate((std::size_t{100} << 20) + 1).value();
  EXPECT_EQ(cuda.allocated(0), std::size_t{102} << 20);
  std::byte* tight = arena->allocate(std::size_t{90} << 20).value();  // a segment of 64 MiB would not do
  const Result<std::byte*> more = arena->allocate(std::size_t{20} << 20);
  EXPECT_EQ(more.status().code(), Code::memory_limit);
  EXPECT_THAT(more.status().message(),
              ::testing::HasSubstr("allocate(20971520) finds no room in the memory of GPU 0 (Fake GPU)"));
  EXPECT_EQ(arena->allocate(SIZE_MAX).status().code(), Code::memory_limit);
  EXPECT_TRUE(DeviceArena::deallocate(large));
  EXPECT_TRUE(DeviceArena::deallocate(tight));
}

TEST(DeviceArena, TakesLessThanASegmentWhereMemoryIsShort) {
  const FakeDriver cuda({.memory = std::size_t{10} << 20});
  DeviceArena* arena = DeviceArena::of(0).value();
  EXPECT_TRUE(arena->allocate(std::size_t{4} << 20).ok());
}

TEST(DeviceArena, SegmentsThatPeersKnowStay) {
  const FakeDriver cuda;
  DeviceArena* arena = DeviceArena::of(0).value();
  std::byte* memory = arena->allocate(100).value();
  ASSERT_TRUE(arena->export_segment(0).has_value());
  EXPECT_TRUE(DeviceArena::deallocate(memory));
  EXPECT_EQ(cuda.allocated(0), DeviceArena::kSegment);
  EXPECT_EQ(arena->allocate(100).value(), memory);
}

TEST(DeviceArena, FindsWhatIsItsOwn) {
  const FakeDriver cuda;
  DeviceArena* arena = DeviceArena::of(0).value();
  std::byte* first = arena->allocate(1000).value();
  std::byte* second = arena->allocate(1000).value();
  const auto place = arena->find(second + 10, 100);
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->offset, static_cast<std::size_t>(second - first) + 10);
  EXPECT_FALSE(arena->find(first, DeviceArena::kSegment + 1).has_value());
  int word = 0;
  EXPECT_FALSE(arena->find(&word, 4).has_value());
  EXPECT_FALSE(DeviceArena::deallocate(&word));
}

TEST(DeviceArena, PublicAllocate) {
  const FakeDriver cuda({.devices = 2});
  EXPECT_TRUE(supports(Memory::device));
  void* first = allocate(100, Memory::device);  // this thread has no device yet
  EXPECT_EQ(device::kind_of(first).device, 0);
  const Result<device::CurrentContext> current = device::enter(1);
  void* second = allocate(100, Memory::device);
  EXPECT_EQ(device::kind_of(second), (device::MemoryKind{device::MemoryPlace::device, 1}));
  void* host = allocate(100);
  EXPECT_EQ(device::kind_of(host), device::MemoryKind{});
  for (void* pointer : {first, second, host}) deallocate(pointer);
  EXPECT_EQ(cuda.allocated(0) + cuda.allocated(1), 0U);
}

TEST(DeviceArena, PublicAllocateWithoutADriver) {
  if (device::available().ok()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_FALSE(supports(Memory::device));
  try {
    (void)allocate(100, Memory::device);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::unsupported);
    EXPECT_THAT(error.what(), ::testing::StartsWith("device memory: this machine has no CUDA driver"));
  }
}

TEST(DeviceArena, NoSuchGpu) {
  const FakeDriver cuda;
  EXPECT_EQ(DeviceArena::of(5).status().message(), "GPU 5 was asked for, but the machine shows 1");
}

}  // namespace
}  // namespace tutti::transport::arena_test
