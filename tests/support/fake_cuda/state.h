// What is behind a FakeDriver; for fake_*.cc only.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/driver.h"

namespace tutti::testing::fake {

struct Memory {  // what cuMemCreate makes, and what is behind every other device allocation
  int file = -1;
  std::size_t bytes = 0;
  int device = 0;
  bool exportable = false;  // as a descriptor
  ~Memory();
};

enum class Kind { device, pool, mapped_file, ipc, pinned, managed };

struct Allocation {
  Kind kind = Kind::device;
  std::size_t bytes = 0;
  int device = 0;
  unsigned long long id = 0;
  std::shared_ptr<Memory> memory;  // none for pinned and pool memory
  std::uint64_t opened = 0;        // ipc: inode of the file
  int opens = 0;                   // ipc: how often it is open
  std::byte* alias = nullptr;      // of memory that the host must not touch: where the driver reaches it
};

struct Context {
  int device = 0;
};

struct Stream;
using StreamRef = std::shared_ptr<Stream>;

struct Op {
  std::function<void()> run;
  std::vector<std::pair<StreamRef, std::uint64_t>> after;  // streams, and how much of them must be done
};

struct Node {
  std::function<void()> run;
  std::vector<int> after;
};

struct UserObject {
  void* pointer = nullptr;
  CUhostFn destroy = nullptr;
  ~UserObject() { destroy(pointer); }
};

struct Graph {
  std::vector<Node> nodes;
  std::vector<std::shared_ptr<UserObject>> retained;
};
using GraphRef = std::shared_ptr<Graph>;

struct Capture {
  GraphRef graph = std::make_shared<Graph>();
  StreamRef origin;
  CUstreamCaptureMode mode{};
  std::thread::id thread;
  bool invalid = false;
  std::uint64_t id = 0;
  std::vector<StreamRef> streams;
};
using CaptureRef = std::shared_ptr<Capture>;

struct Stream : std::enable_shared_from_this<Stream> {
  int device = 0;
  bool blocking = true;  // waits for the legacy default stream, and it for this one
  bool legacy = false;
  std::uint64_t enqueued = 0;
  std::uint64_t done = 0;
  std::deque<Op> queue;
  bool ends = false;
  std::thread thread;
  CaptureRef capture;
  std::vector<int> last;  // in a capture: the nodes that the next one comes after
};

struct Event {
  StreamRef stream;  // null: never recorded
  std::uint64_t count = 0;
  bool timed = true;
  std::shared_ptr<std::int64_t> stamp;
  CaptureRef capture;
  std::vector<int> nodes;
};

/// One parameter of a launch, aligned for any type.
struct alignas(64) Line {
  std::byte bytes[64];
};
using Parameter = std::vector<Line>;

struct Kernel {
  std::string name;
  std::vector<std::size_t> sizes;
  std::function<void(const FakeBlock&, void* const*)> body;
  int most_shared = 48 << 10;
};

struct Device {
  Context context;
  CUresult fault = CUDA_SUCCESS;
  std::size_t allocated = 0;
  int resident = 0;
  int resident_most = 0;
  std::uint64_t dispatching = 0;  // tickets: launches find room in the order in which they start
  std::uint64_t next_ticket = 0;
};

struct Failure {
  CUresult error{};
  int after = 1;
  int times = 1;
};

struct State {
  FakeMachine machine;
  device::Driver table;
  mutable std::mutex mutex;         // guards all that follows, streams, events and graphs included
  std::condition_variable changed;  // anything
  bool initialised = false;
  bool ends = false;
  std::vector<Device> devices;
  std::map<std::string, Failure> failures;
  std::map<std::string, int> calls;
  std::map<std::uintptr_t, Allocation> memory;
  std::map<std::uintptr_t, std::size_t> reserved;
  unsigned long long next_id = 1;
  std::set<std::pair<int, int>> peers;
  std::map<std::string, Kernel> kernels;
  std::set<StreamRef> streams;  // all that have not ended
  std::map<int, StreamRef> legacy;
  std::map<std::pair<std::thread::id, int>, StreamRef> per_thread;
  std::vector<CaptureRef> captures;  // in progress
  std::uint64_t next_capture = 1;

  // Threads that run blocks and a graph's branches.
  std::vector<std::thread> workers;
  std::deque<std::function<void()>> tasks;
  int idle = 0;
};

extern State* state;
extern thread_local std::vector<Context*> context_stack;

using Lock = std::unique_lock<std::mutex>;

/// Counts the call; the error that a test has asked for, or that the driver gives before anything else.
CUresult enter(const char* call, bool needs_context = false);
/// REQUIRES: the lock is held. What a call that a capture does not allow gives; it ends the capture.
CUresult unsafe_call();
inline Context* current() { return context_stack.empty() ? nullptr : context_stack.back(); }

// Streams. REQUIRES of all: the lock is held.
/// Null when the handle needs a context and there is none.
StreamRef stream_of(CUstream handle);
StreamRef new_stream(int device, bool blocking, bool legacy);
/// Puts it in the queue, or makes it a node of the stream's capture.
CUresult enqueue(const StreamRef& stream, std::function<void()> run);
CUresult refuse_beside(const Stream& stream);  // the legacy stream, while a blocking one captures; ends the capture
void end_stream(const StreamRef& stream);

/// Runs the task on a thread of its own. REQUIRES: the lock is held.
void start_task(std::function<void()> task);
/// All nodes in their order, branches at the same time. REQUIRES: the lock is not held.
void run_graph(const GraphRef& graph);
/// All blocks of a launch. REQUIRES: the lock is not held.
void run_kernel(const std::function<void(const FakeBlock&, void* const*)>& body, const FakeBlock& shape,
                const std::vector<Parameter>& parameters);

/// Makes shared memory and maps it. REQUIRES: the lock is held.
CUresult add_memory(Kind kind, std::size_t bytes, int device, CUdeviceptr* pointer);
inline void* address(CUdeviceptr pointer) { return reinterpret_cast<void*>(pointer); }

/// The allocation that an address lies in, or memory.end().
std::map<std::uintptr_t, Allocation>::iterator find_memory(CUdeviceptr pointer);

// The parts of the table that each file serves.
void fill_devices(device::Driver& table);
void fill_memory(device::Driver& table);
void fill_sharing(device::Driver& table);
void fill_streams(device::Driver& table);
void fill_graphs(device::Driver& table);
void fill_kernels(device::Driver& table);

#define TUTTI_FAKE_ENTER(...)                                                                               \
  if (const CUresult tutti_fake_ = ::tutti::testing::fake::enter(__VA_ARGS__); tutti_fake_ != CUDA_SUCCESS) \
  return tutti_fake_

}  // namespace tutti::testing::fake
