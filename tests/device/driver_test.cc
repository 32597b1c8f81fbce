// The driver's table, its errors in words, and what a pointer means.
#include "device/driver.h"

#include <gtest/gtest.h>

#include <thread>

#include "device/loading.h"
#include "device/memory_kind.h"
#include "tests/support/fake_cuda/driver.h"

namespace tutti::device::driver_test {
namespace {

using testing::FakeDriver;

TEST(Driver, NoLibraryIsOneSentence) {
  Driver table;
  const Status status = internal::load_driver("libtutti_no_such_driver.so.1", table);
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_EQ(status.message(),
            "device memory: this machine has no CUDA driver (libtutti_no_such_driver.so.1 cannot be loaded)");
}

TEST(Driver, LibraryWithoutEntryPointIsTooOld) {
  Driver table;
  const Status status = internal::load_driver("libc.so.6", table);
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_EQ(status.message(), "device memory: the CUDA driver is older than CUDA 12.0");
}

TEST(Driver, OldDriverIsRefused) {
  const FakeDriver cuda({.driver_version = 11080});
  EXPECT_EQ(driver().status().message(),
            "device memory: the CUDA driver serves CUDA 11.8, but 12.0 or newer is needed");
}

TEST(Driver, NoDeviceIsOneSentence) {
  const FakeDriver cuda({.devices = 0});
  EXPECT_EQ(driver().status().code(), Code::unsupported);
  EXPECT_EQ(driver().status().message(), "device memory: the CUDA driver finds no GPU");
}

TEST(Driver, InitialisesOnce) {
  const FakeDriver cuda;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(driver().ok());
  EXPECT_EQ(cuda.calls("cuInit"), 1);
}

TEST(Driver, ErrorsInWords) {
  FakeDriver cuda;
  ASSERT_TRUE(driver().ok());
  const Status memory = check(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc", "GPU 0");
  EXPECT_EQ(memory.code(), Code::memory_limit);
  EXPECT_EQ(memory.message(), "cuMemAlloc failed on GPU 0: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  EXPECT_EQ(check(CUDA_ERROR_ILLEGAL_ADDRESS, "cuStreamSynchronize").code(), Code::system);
  EXPECT_EQ(check(static_cast<CUresult>(4711), "cuX").message(), "cuX failed: error 4711");
  EXPECT_EQ(uuid_of(3).status().message(), "GPU 3 was asked for, but the machine shows 1");
}

TEST(Driver, CurrentContextIsGivenBack) {
  const FakeDriver cuda({.devices = 2});
  EXPECT_EQ(current_device().value(), -1);
  {
    const Result<CurrentContext> outer = enter(0);
    ASSERT_TRUE(outer.ok());
    {
      const Result<CurrentContext> inner = enter(1);
      EXPECT_EQ(current_device().value(), 1);
    }
    EXPECT_EQ(current_device().value(), 0);
    std::thread([] { EXPECT_EQ(current_device().value(), -1); }).join();
  }
  EXPECT_EQ(current_device().value(), -1);
  for (int i = 0; i < 3; ++i) (void)enter(0);
  EXPECT_EQ(cuda.calls("cuDevicePrimaryCtxRetain"), 2);  // one for each device
}

TEST(Driver, PeerAccess) {
  const FakeDriver cuda({.devices = 2});
  EXPECT_TRUE(enable_peer_access(0, 0).value());
  EXPECT_TRUE(enable_peer_access(0, 1).value());
  EXPECT_TRUE(cuda.peer_enabled(0, 1));
  EXPECT_FALSE(cuda.peer_enabled(1, 0));
  EXPECT_TRUE(enable_peer_access(0, 1).value());
  EXPECT_EQ(cuda.calls("cuCtxEnablePeerAccess"), 1);
}

TEST(Driver, PeerAccessThatAnotherLibraryEnabled) {
  FakeDriver cuda({.devices = 2});
  cuda.fail("cuCtxEnablePeerAccess", CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  EXPECT_TRUE(enable_peer_access(0, 1).value());
}

TEST(Driver, PeerAccessThatTheDeviceLacks) {
  const FakeDriver cuda({.devices = 2, .peer_access = false});
  EXPECT_FALSE(enable_peer_access(0, 1).value());
}

TEST(MemoryKind, EverythingIsTheHostsWithoutADriver) {
  if (loaded_driver() != nullptr) GTEST_SKIP() << "this machine has a driver";
  int word = 0;
  EXPECT_EQ(kind_of(&word), MemoryKind{});
  EXPECT_EQ(internal::presence.load(), internal::Presence::absent);
  EXPECT_EQ(available().code(), Code::unsupported);
}

TEST(MemoryKind, HostUntilTheDriverIsInitialised) {
  const FakeDriver cuda;
  int word = 0;
  EXPECT_EQ(kind_of(&word), MemoryKind{});  // the call fails inside, and that is no error
  EXPECT_EQ(cuda.calls("cuInit"), 0);
}

TEST(MemoryKind, EachKind) {
  FakeDriver cuda({.devices = 2});
  const Driver& table = *driver().value();
  ASSERT_TRUE(available().ok());
  const Result<CurrentContext> current = enter(1);
  CUdeviceptr device = 0;
  void* pinned = nullptr;
  ASSERT_EQ(table.MemAlloc(&device, 100), CUDA_SUCCESS);
  ASSERT_EQ(table.MemHostAlloc(&pinned, 100, 0), CUDA_SUCCESS);
  const CUdeviceptr managed = cuda.allocate_managed(100);
  int word = 0;

  const auto pointer = [](CUdeviceptr p) { return reinterpret_cast<const void*>(p); };
  EXPECT_EQ(kind_of(&word), MemoryKind{});
  EXPECT_EQ(kind_of(nullptr), MemoryKind{});
  EXPECT_EQ(kind_of(pointer(device)), (MemoryKind{MemoryPlace::device, 1}));
  EXPECT_EQ(kind_of(pointer(device + 99)), (MemoryKind{MemoryPlace::device, 1}));
  EXPECT_EQ(kind_of(pinned).place, MemoryPlace::pinned);
  EXPECT_EQ(kind_of(pointer(managed)).place, MemoryPlace::managed);
  EXPECT_EQ(print(kind_of(pointer(device))), "memory of GPU 1");
  ASSERT_EQ(table.MemFree(device), CUDA_SUCCESS);
  EXPECT_EQ(kind_of(pointer(device)), MemoryKind{});
  ASSERT_EQ(table.MemFreeHost(pinned), CUDA_SUCCESS);
  ASSERT_EQ(table.MemFree(managed), CUDA_SUCCESS);
}

}  // namespace
}  // namespace tutti::device::driver_test
