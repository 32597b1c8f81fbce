// The fake driver keeps the rules that the library relies on. Each test says which rule of the real one it stands for.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <thread>

#include "tests/support/fake_cuda/driver.h"

namespace tutti::testing::fake_driver_test {
namespace {

using device::Driver;

class Fake : public ::testing::Test {
 protected:
  void start(const FakeMachine& machine = {}) {
    cuda_.emplace(machine);
    table_ = device::driver().value();
    context_.emplace(device::enter(0).take());
  }
  void TearDown() override {
    context_.reset();
    cuda_.reset();
  }
  CUdeviceptr allocate(std::size_t bytes) {
    CUdeviceptr made = 0;
    EXPECT_EQ(table_->MemAlloc(&made, bytes), CUDA_SUCCESS);
    return made;
  }
  CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream made = nullptr;
    EXPECT_EQ(table_->StreamCreateWithPriority(&made, flags, 0), CUDA_SUCCESS);
    return made;
  }
  CUfunction function(const char* name) {
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    CUfunction made = nullptr;
    EXPECT_EQ(table_->LibraryLoadData(&library, "code", nullptr, nullptr, 0, nullptr, nullptr, 0), CUDA_SUCCESS);
    EXPECT_EQ(table_->LibraryGetKernel(&kernel, library, name), CUDA_SUCCESS);
    EXPECT_EQ(table_->KernelGetFunction(&made, kernel), CUDA_SUCCESS);
    return made;
  }
  template <class... A>
  CUresult launch(CUfunction f, unsigned blocks, CUstream on, A... arguments) {
    void* parameters[] = {&arguments...};
    return table_->LaunchKernel(f, blocks, 1, 1, 32, 1, 1, 0, on, parameters, nullptr);
  }
  static std::uint64_t* words(CUdeviceptr p) { return reinterpret_cast<std::uint64_t*>(p); }

  std::optional<FakeDriver> cuda_;
  const Driver* table_ = nullptr;
  std::optional<device::CurrentContext> context_;
};

void add_one(const FakeBlock& block, std::uint64_t* data) {
  std::atomic_ref<std::uint64_t>(data[block.index]).fetch_add(1);
}

void append(const FakeBlock& /*block*/, std::uint64_t* data, std::uint64_t value) { *data = *data * 10 + value; }

/// Every block waits until all of them are there.
void meet(const FakeBlock& block, std::uint64_t* counter) {
  std::atomic_ref<std::uint64_t> here(*counter);
  here.fetch_add(1);
  while (here.load() < block.count) std::this_thread::yield();
}

TEST_F(Fake, CallsNeedAContext) {
  start();
  context_.reset();
  CUdeviceptr made = 0;
  EXPECT_EQ(table_->MemAlloc(&made, 16), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(Fake, FreshMemoryIsGarbage) {
  start();
  const CUdeviceptr memory = allocate(64);
  EXPECT_NE(*words(memory), 0U);
  EXPECT_EQ(cuda_->allocated(0), 64U);
  EXPECT_EQ(table_->MemFree(memory), CUDA_SUCCESS);
  EXPECT_EQ(cuda_->allocated(0), 0U);
}

TEST_F(Fake, MemoryEnds) {
  start({.memory = 1000});
  CUdeviceptr made = 0;
  EXPECT_EQ(table_->MemAlloc(&made, 1001), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(Fake, LaunchRunsEachBlockOnAThread) {
  start();
  cuda_->kernel<std::uint64_t*>("meet", meet);
  const CUdeviceptr counter = allocate(8);
  const CUstream on = stream();
  ASSERT_EQ(table_->MemsetD8Async(counter, 0, 8, on), CUDA_SUCCESS);
  ASSERT_EQ(launch(function("meet"), 32, on, words(counter)), CUDA_SUCCESS);  // 8 x 4: as many as there is room for
  ASSERT_EQ(table_->StreamSynchronize(on), CUDA_SUCCESS);
  EXPECT_EQ(*words(counter), 32U);
  EXPECT_EQ(cuda_->resident_most(0), 32);
}

TEST_F(Fake, BlocksWaitForRoom) {
  start({.multiprocessors = 1, .blocks_per_multiprocessor = 2});
  cuda_->kernel<std::uint64_t*>("add", add_one);
  const CUdeviceptr data = allocate(8 * 100);
  const CUstream on = stream();
  ASSERT_EQ(table_->MemsetD8Async(data, 0, 8 * 100, on), CUDA_SUCCESS);
  ASSERT_EQ(launch(function("add"), 100, on, words(data)), CUDA_SUCCESS);
  ASSERT_EQ(table_->StreamSynchronize(on), CUDA_SUCCESS);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(words(data)[i], 1U);
  EXPECT_LE(cuda_->resident_most(0), 2);
}

TEST_F(Fake, StreamKeepsItsOrder) {
  start();
  cuda_->kernel<std::uint64_t*, std::uint64_t>("append", append);
  const CUdeviceptr data = allocate(8);
  const CUstream on = stream();
  ASSERT_EQ(table_->MemsetD8Async(data, 0, 8, on), CUDA_SUCCESS);
  for (std::uint64_t v = 1; v <= 5; ++v) ASSERT_EQ(launch(function("append"), 1, on, words(data), v), CUDA_SUCCESS);
  ASSERT_EQ(table_->StreamSynchronize(on), CUDA_SUCCESS);
  EXPECT_EQ(*words(data), 12345U);
}

TEST_F(Fake, ValuesHoldUpOtherStreams) {
  start();
  const CUdeviceptr data = allocate(16);
  std::memset(words(data), 0, 16);
  const CUstream a = stream();
  const CUstream b = stream();
  ASSERT_EQ(table_->StreamWaitValue64(a, data, 3, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
  ASSERT_EQ(table_->StreamWriteValue64(a, data + 8, 7, 0), CUDA_SUCCESS);
  EXPECT_EQ(table_->StreamQuery(a), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(words(data)[1], 0U);
  ASSERT_EQ(table_->StreamWriteValue64(b, data, 4, 0), CUDA_SUCCESS);
  ASSERT_EQ(table_->StreamSynchronize(a), CUDA_SUCCESS);
  EXPECT_EQ(words(data)[1], 7U);
}

TEST_F(Fake, LegacyStreamWaitsForBlockingOnes) {
  start();
  const CUdeviceptr data = allocate(24);
  std::memset(words(data), 0, 24);
  const CUstream blocking = stream(CU_STREAM_DEFAULT);
  ASSERT_EQ(table_->StreamWaitValue64(blocking, data, 1, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
  ASSERT_EQ(table_->StreamWriteValue64(nullptr, data + 8, 1, 0), CUDA_SUCCESS);    // behind it
  ASSERT_EQ(table_->StreamWriteValue64(blocking, data + 16, 1, 0), CUDA_SUCCESS);  // behind the legacy one
  const CUstream free = stream();
  ASSERT_EQ(table_->StreamWriteValue64(free, data, 1, 0), CUDA_SUCCESS);  // behind no other work: else this hangs
  ASSERT_EQ(table_->StreamSynchronize(blocking), CUDA_SUCCESS);
  EXPECT_EQ(words(data)[1], 1U);
  EXPECT_EQ(words(data)[2], 1U);
}

TEST_F(Fake, PerThreadStreamsAreOnePerThread) {
  start();
  const CUdeviceptr data = allocate(8);
  *words(data) = 0;
  ASSERT_EQ(table_->StreamWaitValue64(CU_STREAM_PER_THREAD, data, 1, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
  std::thread([&] {
    const auto current = device::enter(0);
    EXPECT_EQ(table_->StreamWriteValue64(CU_STREAM_PER_THREAD, data, 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(table_->StreamSynchronize(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  }).join();
  EXPECT_EQ(table_->StreamSynchronize(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
}

TEST_F(Fake, Events) {
  start();
  const CUdeviceptr data = allocate(16);
  std::memset(words(data), 0, 16);
  const CUstream a = stream();
  const CUstream b = stream();
  CUevent event = nullptr;
  CUevent later = nullptr;
  ASSERT_EQ(table_->EventCreate(&event, 0), CUDA_SUCCESS);
  ASSERT_EQ(table_->EventCreate(&later, 0), CUDA_SUCCESS);
  EXPECT_EQ(table_->EventQuery(event), CUDA_SUCCESS);  // never recorded
  ASSERT_EQ(table_->StreamWaitValue64(a, data, 1, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
  ASSERT_EQ(table_->EventRecord(event, a), CUDA_SUCCESS);
  ASSERT_EQ(table_->StreamWaitEvent(b, event, 0), CUDA_SUCCESS);
  ASSERT_EQ(table_->StreamWriteValue64(b, data + 8, 5, 0), CUDA_SUCCESS);
  ASSERT_EQ(table_->EventRecord(later, b), CUDA_SUCCESS);
  EXPECT_EQ(table_->EventQuery(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(words(data)[1], 0U);
  std::atomic_ref<std::uint64_t>(*words(data)).store(1);  // from the host, as a pinned word would be
  ASSERT_EQ(table_->EventSynchronize(later), CUDA_SUCCESS);
  EXPECT_EQ(words(data)[1], 5U);
  float ms = -1;
  EXPECT_EQ(table_->EventElapsedTime(&ms, event, later), CUDA_SUCCESS);
  EXPECT_GE(ms, 0);
  EXPECT_EQ(table_->EventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(table_->EventDestroy(later), CUDA_SUCCESS);
}

TEST_F(Fake, CaptureAndReplay) {
  start();
  cuda_->kernel<std::uint64_t*, std::uint64_t>("append", append);
  const CUdeviceptr data = allocate(16);
  std::memset(words(data), 0, 16);
  const CUstream main = stream();
  const CUstream side = stream();
  CUevent fork = nullptr;
  CUevent join = nullptr;
  ASSERT_EQ(table_->EventCreate(&fork, 0), CUDA_SUCCESS);
  ASSERT_EQ(table_->EventCreate(&join, 0), CUDA_SUCCESS);
  ASSERT_EQ(table_->StreamBeginCapture(main, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(launch(function("append"), 1, main, words(data), std::uint64_t{1}), CUDA_SUCCESS);
  ASSERT_EQ(table_->EventRecord(fork, main), CUDA_SUCCESS);
  ASSERT_EQ(table_->StreamWaitEvent(side, fork, 0), CUDA_SUCCESS);
  // The branches wait for each other: they run at the same time.
  ASSERT_EQ(table_->StreamWriteValue64(side, data + 8, 9, 0), CUDA_SUCCESS);
  ASSERT_EQ(table_->StreamWaitValue64(main, data + 8, 9, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
  ASSERT_EQ(table_->EventRecord(join, side), CUDA_SUCCESS);
  ASSERT_EQ(table_->StreamWaitEvent(main, join, 0), CUDA_SUCCESS);
  ASSERT_EQ(launch(function("append"), 1, main, words(data), std::uint64_t{2}), CUDA_SUCCESS);
  CUstreamCaptureStatus status{};
  ASSERT_EQ(table_->StreamGetCaptureInfo(side, &status, nullptr, nullptr, nullptr, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUgraph graph = nullptr;
  ASSERT_EQ(table_->StreamEndCapture(main, &graph), CUDA_SUCCESS);
  EXPECT_EQ(*words(data), 0U);  // nothing has run yet
  CUgraphExec exec = nullptr;
  ASSERT_EQ(table_->GraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(table_->GraphDestroy(graph), CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(table_->GraphLaunch(exec, main), CUDA_SUCCESS);
  ASSERT_EQ(table_->StreamSynchronize(main), CUDA_SUCCESS);
  EXPECT_EQ(*words(data), 121212U);
  EXPECT_EQ(table_->GraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(table_->EventDestroy(fork), CUDA_SUCCESS);
  EXPECT_EQ(table_->EventDestroy(join), CUDA_SUCCESS);
}

TEST_F(Fake, CaptureForbidsWhatTheRealOneForbids) {
  start();
  const CUstream on = stream(CU_STREAM_DEFAULT);
  CUgraph graph = nullptr;
  const auto captured = [&](auto&& call) {
    EXPECT_EQ(table_->StreamBeginCapture(on, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    const CUresult refused = call();
    EXPECT_EQ(table_->StreamEndCapture(on, &graph),
              refused == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    if (graph != nullptr) {
      EXPECT_EQ(table_->GraphDestroy(graph), CUDA_SUCCESS);
    }
    return refused;
  };
  CUdeviceptr made = 0;
  EXPECT_EQ(captured([&] { return table_->StreamSynchronize(on); }), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(captured([&] { return table_->MemAlloc(&made, 8); }), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(captured([&] { return table_->StreamSynchronize(nullptr); }), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(captured([&] {
              const device::UncapturedCalls uncaptured(*table_);
              return table_->MemAlloc(&made, 8);
            }),
            CUDA_SUCCESS);
}

TEST_F(Fake, GraphKeepsWhatItRetains) {
  start();
  const CUstream on = stream();
  int destroyed = 0;
  const CUhostFn count = [](void* p) { ++*static_cast<int*>(p); };
  CUuserObject object = nullptr;
  CUgraph graph = nullptr;
  ASSERT_EQ(table_->UserObjectCreate(&object, &destroyed, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC), CUDA_SUCCESS);
  ASSERT_EQ(table_->StreamBeginCapture(on, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  CUstreamCaptureStatus status{};
  ASSERT_EQ(table_->StreamGetCaptureInfo(on, &status, nullptr, &graph, nullptr, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(table_->GraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE), CUDA_SUCCESS);
  ASSERT_EQ(table_->StreamEndCapture(on, &graph), CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(table_->GraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(table_->GraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(destroyed, 0);
  ASSERT_EQ(table_->GraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(destroyed, 1);
}

TEST_F(Fake, InjectedErrorsAndFaults) {
  start();
  cuda_->fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 2);
  CUdeviceptr made = 0;
  EXPECT_EQ(table_->MemAlloc(&made, 8), CUDA_SUCCESS);
  EXPECT_EQ(table_->MemAlloc(&made, 8), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(table_->MemAlloc(&made, 8), CUDA_SUCCESS);
  const CUstream on = stream();
  *words(made) = 0;
  ASSERT_EQ(table_->StreamWaitValue64(on, made, 1, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
  cuda_->fault(0, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(table_->StreamSynchronize(on), CUDA_ERROR_ILLEGAL_ADDRESS);
}

/// Runs `child` in a process of its own, with what it is sent through a pipe; its exit status.
int in_child(const CUipcMemHandle& handle, int (*child)(const CUipcMemHandle&)) {
  const pid_t pid = fork();
  if (pid == 0) _exit(child(handle));
  int status = -1;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// The parent has a driver with threads; a child of a fork makes one of its own in the memory that it inherits, which
// only works because no thread held a lock: so the parent makes its memory in a child too.
TEST(FakeIpc, OtherProcessesOpenHandles) {
  int to_parent[2];
  int to_child[2];
  ASSERT_EQ(pipe(to_parent), 0);
  ASSERT_EQ(pipe(to_child), 0);
  const pid_t owner = fork();
  if (owner == 0) {
    const FakeDriver cuda;
    const Driver* table = device::driver().value();
    const auto context = device::enter(0);
    CUdeviceptr memory = 0;
    if (table->MemAlloc(&memory, 10000) != CUDA_SUCCESS) _exit(1);
    std::memset(reinterpret_cast<void*>(memory), 1, 10000);
    CUipcMemHandle handle{};
    if (table->IpcGetMemHandle(&handle, memory) != CUDA_SUCCESS) _exit(2);
    CUdeviceptr own = 0;
    if (table->IpcOpenMemHandle(&own, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_ERROR_INVALID_CONTEXT)
      _exit(3);
    if (write(to_parent[1], &handle, sizeof(handle)) != sizeof(handle)) _exit(4);
    char byte = 0;
    if (read(to_child[0], &byte, 1) != 1) _exit(5);
    _exit(reinterpret_cast<char*>(memory)[9999] == 2 ? 0 : 6);
  }
  CUipcMemHandle handle{};
  ASSERT_EQ(read(to_parent[0], &handle, sizeof(handle)), static_cast<ssize_t>(sizeof(handle)));
  const auto opens = [](const CUipcMemHandle& h) {
    const FakeDriver cuda;
    const Driver* table = device::driver().value();
    const auto context = device::enter(0);
    CUdeviceptr memory = 0;
    CUdeviceptr again = 0;
    if (table->IpcOpenMemHandle(&memory, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS) return 1;
    if (table->IpcOpenMemHandle(&again, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS) return 2;
    auto* bytes = reinterpret_cast<char*>(memory);
    if (again != memory || bytes[0] != 1) return 3;
    bytes[9999] = 2;
    if (table->IpcCloseMemHandle(memory) != CUDA_SUCCESS || cuda.mapped() != 1) return 4;
    if (table->IpcCloseMemHandle(memory) != CUDA_SUCCESS || cuda.mapped() != 0) return 5;
    return 0;
  };
  EXPECT_EQ(in_child(handle, opens), 0);
  ASSERT_EQ(write(to_child[1], "x", 1), 1);
  int status = -1;
  ASSERT_EQ(waitpid(owner, &status, 0), owner);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(in_child(handle, opens), 1);  // its owner has ended
}

TEST_F(Fake, MappedMemory) {
  start();
  CUmemAllocationProp what{};
  what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  what.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  std::size_t unit = 0;
  ASSERT_EQ(table_->MemGetAllocationGranularity(&unit, &what, CU_MEM_ALLOC_GRANULARITY_MINIMUM), CUDA_SUCCESS);
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(table_->MemCreate(&handle, unit, &what, 0), CUDA_SUCCESS);
  int file = -1;
  ASSERT_EQ(table_->MemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_EQ(table_->MemImportFromShareableHandle(&imported, reinterpret_cast<void*>(std::intptr_t{file}),
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  close(file);
  CUmemAccessDesc access{};
  access.location = what.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUdeviceptr at[2] = {};
  const CUmemGenericAllocationHandle handles[2] = {handle, imported};
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(table_->MemAddressReserve(&at[i], unit, 0, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(table_->MemMap(at[i], unit, 0, handles[i], 0), CUDA_SUCCESS);
    ASSERT_EQ(table_->MemSetAccess(at[i], unit, &access, 1), CUDA_SUCCESS);
    ASSERT_EQ(table_->MemRelease(handles[i]), CUDA_SUCCESS);
  }
  words(at[0])[5] = 4711;
  EXPECT_EQ(words(at[1])[5], 4711U);
  for (const CUdeviceptr p : at) {
    ASSERT_EQ(table_->MemUnmap(p, unit), CUDA_SUCCESS);
    ASSERT_EQ(table_->MemAddressFree(p, unit), CUDA_SUCCESS);
  }
}

}  // namespace
}  // namespace tutti::testing::fake_driver_test
