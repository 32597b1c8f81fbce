#include "perf/driver/gpu.h"

#include "base/status.h"
#include "device/memory_kind.h"
#if TUTTI_HAS_CUDA
#include <optional>
#include <utility>

#include "device/driver.h"
#include "perf/driver/throwing.h"
#endif

namespace tutti::perf {

#if TUTTI_HAS_CUDA

using device::Driver;

namespace {

CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace

struct Gpu::Parts {
  const Driver* cuda = nullptr;
  int device = 0;
  std::optional<device::CurrentContext> current;
  CUstream stream = nullptr;
  CUgraphExec graph = nullptr;

  ~Parts() {
    if (graph != nullptr) (void)cuda->GraphExecDestroy(graph);
    if (stream != nullptr) (void)cuda->StreamDestroy(stream);
  }
};

Gpu::Gpu(int place, bool null_stream) : parts_(std::make_unique<Parts>()) {
  Parts& p = *parts_;
  p.cuda = check(device::driver());
  p.device = place % check(device::device_count());
  p.current.emplace(check(device::enter(p.device)));
  if (!null_stream) {
    check(p.cuda->StreamCreateWithPriority(&p.stream, CU_STREAM_NON_BLOCKING, 0), "cuStreamCreateWithPriority");
  }
}

Gpu::~Gpu() = default;

Stream Gpu::stream() const { return parts_->stream; }

std::string Gpu::name() const { return device::name_of(parts_->device); }

std::string gpu_name(int place) {
  const Result<int> devices = device::device_count();
  return devices.ok() ? device::name_of(place % devices.value()) : "no GPU";
}

void Gpu::upload(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  check(parts_->cuda->MemcpyAsync(address(to), address(from), bytes, parts_->stream), "cuMemcpyAsync");
  synchronize();
}

void Gpu::download(void* to, const void* from, std::size_t bytes) { upload(to, from, bytes); }

void Gpu::fill(void* to, unsigned char value, std::size_t bytes) {
  if (bytes == 0) return;
  check(parts_->cuda->MemsetD8Async(address(to), value, bytes, parts_->stream), "cuMemsetD8Async");
  synchronize();
}

void Gpu::synchronize() { check(parts_->cuda->StreamSynchronize(parts_->stream), "cuStreamSynchronize"); }

void Gpu::capture(const std::function<void()>& calls) {
  Parts& p = *parts_;
  if (p.graph != nullptr) check(p.cuda->GraphExecDestroy(std::exchange(p.graph, nullptr)), "cuGraphExecDestroy");
  // Other threads are ranks too, which may allocate meanwhile.
  check(p.cuda->StreamBeginCapture(p.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
  CUgraph graph = nullptr;
  try {
    calls();
  } catch (...) {
    (void)p.cuda->StreamEndCapture(p.stream, &graph);
    if (graph != nullptr) (void)p.cuda->GraphDestroy(graph);
    throw;
  }
  check(p.cuda->StreamEndCapture(p.stream, &graph), "cuStreamEndCapture");
  const CUresult made = p.cuda->GraphInstantiateWithFlags(&p.graph, graph, 0);
  (void)p.cuda->GraphDestroy(graph);
  check(made, "cuGraphInstantiateWithFlags");
}

void Gpu::replay() { check(parts_->cuda->GraphLaunch(parts_->graph, parts_->stream), "cuGraphLaunch"); }

#else

struct Gpu::Parts {};

Gpu::Gpu(int /*place*/, bool /*null_stream*/) {
  const Status status = device::available();
  throw Error(status.code(), status.message());
}
Gpu::~Gpu() = default;
Stream Gpu::stream() const { return nullptr; }
std::string Gpu::name() const { return {}; }
std::string gpu_name(int /*place*/) { return "no GPU"; }
void Gpu::upload(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) {}
void Gpu::download(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) {}
void Gpu::fill(void* /*to*/, unsigned char /*value*/, std::size_t /*bytes*/) {}
void Gpu::synchronize() {}
void Gpu::capture(const std::function<void()>& /*calls*/) {}
void Gpu::replay() {}

#endif

}  // namespace tutti::perf
