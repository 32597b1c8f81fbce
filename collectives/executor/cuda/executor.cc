#if defined(TUTTI_HAS_CUDA)

#include "collectives/executor/cuda/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "collectives/executor/cuda/kernels.h"
#include "collectives/executor/cuda/loaded_kernels.h"

namespace tutti::executor::cuda {

namespace {

// Larger than any counter, in every byte: what ends the waits of streams.
constexpr unsigned char kReleased = 0x3f;

std::uint64_t load(const std::uint64_t& word) {
  return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(word)).load(std::memory_order_acquire);
}

void store(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(word).store(value, std::memory_order_release);
}

}  // namespace

Result<std::shared_ptr<ProgramPool>> ProgramPool::create(int device, std::size_t bytes) {
  TUTTI_ASSIGN(const device::Driver* cuda, device::driver());
  TUTTI_ASSIGN(const auto context, device::enter(device));
  const device::UncapturedCalls uncaptured(*cuda);
  CUdeviceptr base = 0;
  TUTTI_TRY(device::check(cuda->MemAlloc(&base, bytes), "cuMemAlloc", device::name_of(device)));
  return std::shared_ptr<ProgramPool>(new ProgramPool(device, base, bytes));
}

ProgramPool::~ProgramPool() {
  const auto cuda = device::driver();
  if (!cuda.ok()) return;
  const auto context = device::enter(device_);
  const device::UncapturedCalls uncaptured(*cuda.value());
  cuda.value()->MemFree(base_);
}

CUdeviceptr ProgramPool::take(std::size_t bytes) {
  bytes = round_up(bytes, transport::kDeviceLine);
  const std::lock_guard lock(mutex_);
  CUdeviceptr at = base_;  // the first gap that is wide enough
  for (const auto& [address, size] : taken_) {
    if (address - at >= bytes) break;
    at = address + size;
  }
  if (at + bytes > base_ + bytes_) return 0;
  taken_[at] = bytes;
  return at;
}

void ProgramPool::give_back(CUdeviceptr address) {
  const std::lock_guard lock(mutex_);
  taken_.erase(address);
}

int DeviceProgram::kernel() const { return kernel_of(head().type, head().op, head().reduces); }

const std::vector<SegmentLaunch>& DeviceProgram::segments() const {
  if (segments_.empty()) segments_ = segments_of(head());
  return segments_;
}

Result<std::unique_ptr<DeviceExecutor>> DeviceExecutor::create(const Place& place) {
  std::unique_ptr<DeviceExecutor> executor(new DeviceExecutor(place));
  TUTTI_TRY(executor->prepare());
  return executor;
}

Status DeviceExecutor::prepare() {
  TUTTI_ASSIGN(cuda_, device::driver());
  TUTTI_ASSIGN(kernels_, Kernels::get(place_.device));
  TUTTI_ASSIGN(pool_, ProgramPool::create(place_.device, place_.pool_bytes));
  TUTTI_ASSIGN(const auto context, device::enter(place_.device));
  const device::UncapturedCalls uncaptured(*cuda_);
  const std::string where = device::name_of(place_.device);
  void* words = nullptr;
  TUTTI_TRY(
      device::check(cuda_->MemHostAlloc(&words, sizeof(*words_), CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                    "cuMemHostAlloc", where));
  words_ = new (words) transport::DeviceHostWords();
  words_->limit_ns = std::numeric_limits<std::uint64_t>::max();
  TUTTI_TRY(
      device::check(cuda_->StreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0), "cuStreamCreate", where));
  for (CUevent* event : {&done_, &captured_}) {
    TUTTI_TRY(device::check(cuda_->EventCreate(event, CU_EVENT_DISABLE_TIMING), "cuEventCreate", where));
  }
  seen_.resize(static_cast<std::size_t>(place_.sizes.ranks) * 2);
  p2p_.resize(static_cast<std::size_t>(place_.sizes.ranks) * transport::kP2pStrips);
  return {};
}

DeviceExecutor::~DeviceExecutor() {
  if (cuda_ == nullptr) return;
  const auto context = device::enter(place_.device);
  const device::UncapturedCalls uncaptured(*cuda_);
  if (words_ != nullptr) cuda_->MemFreeHost(words_);
  if (done_ != nullptr) cuda_->EventDestroy(done_);
  if (captured_ != nullptr) cuda_->EventDestroy(captured_);
  if (stream_ != nullptr) cuda_->StreamDestroy(stream_);
}

Result<std::shared_ptr<const DeviceProgram>> DeviceExecutor::upload(std::vector<std::byte> program) {
  TUTTI_ASSIGN(const auto context, device::enter(place_.device));
  const device::UncapturedCalls uncaptured(*cuda_);
  const std::string& where = kernels_->where();
  const CUdeviceptr address = pool_->take(program.size());
  if (address == 0) {
    return Status(Code::memory_limit, fmt::format("{} has no room for a program of {} bytes in the {} bytes that "
                                                  "hold those of calls on device memory",
                                                  place_.name, program.size(), place_.pool_bytes));
  }
  auto uploaded = std::make_shared<const DeviceProgram>(pool_, address, program);
  TUTTI_TRY(
      device::check(cuda_->MemcpyAsync(address, reinterpret_cast<CUdeviceptr>(program.data()), program.size(), stream_),
                    "cuMemcpyAsync", where));
  TUTTI_TRY(device::check(cuda_->StreamSynchronize(stream_), "cuStreamSynchronize", where));
  return uploaded;
}

int DeviceExecutor::Launch::blocks() const {
  int most = 0;
  for (const auto* program : {&first, &if_plain, &if_in_place}) {
    if (*program != nullptr) most = std::max(most, (*program)->blocks());
  }
  return most;
}

int DeviceExecutor::Launch::kernel() const {
  for (const auto* program : {&first, &if_plain, &if_in_place}) {
    if (*program != nullptr && (*program)->head().reduces) return (*program)->kernel();
  }
  return kMoveKernel;
}

LaunchArguments DeviceExecutor::arguments_of(std::span<const Launch> calls) const {
  const auto at = [](const std::shared_ptr<const DeviceProgram>& program) {
    return program == nullptr ? nullptr : reinterpret_cast<const Program*>(program->address());
  };
  LaunchArguments a;
  a.peers = reinterpret_cast<const transport::DevicePeer*>(place_.peers);
  a.host = words_;
  a.sizes = place_.sizes;
  a.rank = place_.rank;
  a.count = static_cast<std::int32_t>(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Launch& from = calls[i];
    a.calls[i] = {.first = at(from.first),
                  .if_plain = at(from.if_plain),
                  .if_in_place = at(from.if_in_place),
                  .input = reinterpret_cast<std::uint64_t>(from.input),
                  .output = reinterpret_cast<std::uint64_t>(from.output),
                  .fingerprint = from.fingerprint,
                  .announcement = from.announcement};
  }
  return a;
}

Result<bool> DeviceExecutor::begin_launch(CUstream stream) {
  const std::string& where = kernels_->where();
  CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t capture = 0;
  TUTTI_TRY(device::check(cuda_->StreamGetCaptureInfo(stream, &capturing, &capture, nullptr, nullptr, nullptr),
                          "cuStreamGetCaptureInfo", where));
  const bool captured = capturing != CU_STREAM_CAPTURE_STATUS_NONE;
  if (captured && place_.form == Form::segmented) {
    return unsupported(
        fmt::format("{} cannot capture a call into a graph: processes share {}, where a call waits "
                    "for values that change with every call",
                    place_.name, where));
  }
  TUTTI_TRY(follow(stream, captured, capture));
  return captured;
}

Status DeviceExecutor::end_launch(const Status& put, bool captured, CUstream stream) {
  if (captured) return put;
  const std::lock_guard lock(mutex_);
  launched_any_ = true;
  const Status recorded = device::check(cuda_->EventRecord(done_, stream), "cuEventRecord", kernels_->where());
  return put.ok() ? recorded : put;
}

// A graph may be launched for as long as the communicator lives.
void DeviceExecutor::keep(const std::shared_ptr<const DeviceProgram>& program) {
  const std::lock_guard lock(mutex_);
  if (program != nullptr && std::find(kept_.begin(), kept_.end(), program) == kept_.end()) kept_.push_back(program);
}

Status DeviceExecutor::launch(std::span<const Launch> calls, CUstream stream) {
  TUTTI_ASSIGN(const auto context, device::enter(place_.device));
  TUTTI_ASSIGN(const bool captured, begin_launch(stream));
  return end_launch(put(calls, captured, stream), captured, stream);
}

Status DeviceExecutor::put(std::span<const Launch> calls, bool captured, CUstream stream) {
  while (!calls.empty()) {
    std::size_t count = 1;
    if (place_.form == Form::segmented) {
      TUTTI_TRY(launch_segmented(calls.front(), stream));
    } else {
      TUTTI_ASSIGN(count, launch_together(calls, stream));
    }
    for (const Launch& call : calls.first(captured ? count : 0)) {
      for (const auto& program : {call.first, call.if_plain, call.if_in_place}) keep(program);
    }
    calls = calls.subspan(count);
    const std::lock_guard lock(mutex_);
    if (!captured) launched_ += count;
  }
  return {};
}

// The kernel that reduces serves programs that only move, too.
Result<std::size_t> DeviceExecutor::launch_together(std::span<const Launch> calls, CUstream stream) {
  int blocks = 0;
  int kernel = kMoveKernel;
  std::size_t count = 0;
  for (const Launch& call : calls.first(std::min(calls.size(), std::size_t{kMostCalls}))) {
    if (kernel != kMoveKernel && call.kernel() != kMoveKernel && call.kernel() != kernel) break;
    if (call.kernel() != kMoveKernel) kernel = call.kernel();
    blocks = std::max(blocks, call.blocks());
    ++count;
  }
  TUTTI_CHECK_LE(blocks, place_.sizes.lanes);
  const LaunchArguments arguments = arguments_of(calls.first(count));
  TUTTI_TRY(launch_kernel(&arguments, kernel, blocks, stream));
  return count;
}

Status DeviceExecutor::launch_p2p(const std::shared_ptr<const DeviceProgram>& program, CUstream stream) {
  TUTTI_ASSIGN(const auto context, device::enter(place_.device));
  TUTTI_ASSIGN(const bool captured, begin_launch(stream));
  P2pArguments arguments;
  arguments.p2p = reinterpret_cast<const P2pList*>(program->address());
  arguments.peers = reinterpret_cast<const transport::DevicePeer*>(place_.peers);
  arguments.host = words_;
  arguments.sizes = place_.sizes;
  arguments.rank = place_.rank;
  const P2pList& list = program->p2p();
  const int units = list.tasks * list.strips;
  Status put;
  if (place_.form == Form::segmented) {
    put = launch_p2p_segmented(arguments, list, stream);
  } else {
    const int blocks = std::min(units, place_.sizes.lanes);
    if (largest_share(static_cast<std::size_t>(units), static_cast<std::size_t>(blocks)) > kMostUnits) {
      return unsupported(fmt::format("{} groups messages to and from {} peers; {} blocks serve at most {} at a time",
                                     place_.name, list.tasks, blocks, blocks * kMostUnits / list.strips));
    }
    put = launch_kernel(&arguments, kP2pKernel, blocks, stream);
  }
  if (captured) keep(program);
  return end_launch(put, captured, stream);
}

Status DeviceExecutor::wait_for(std::uint64_t offset, std::uint64_t value, CUstream stream) {
  return device::check(cuda_->StreamWaitValue64(stream, place_.window + offset, value, CU_STREAM_WAIT_VALUE_GEQ),
                       "cuStreamWaitValue64", kernels_->where());
}

// Round by round one chunk of everything, first what goes, then what comes: two ranks that send to each other both have
// room for the first chunks, and make room for the others by turns.
Status DeviceExecutor::launch_p2p_segmented(P2pArguments arguments, const P2pList& list, CUstream stream) {
  const transport::DeviceWindowSizes& sizes = place_.sizes;
  const auto* tasks = reinterpret_cast<const P2pTask*>(reinterpret_cast<const std::byte*>(&list) + list.tasks_at);
  const int units = list.tasks * list.strips;
  const int blocks = std::min(units, kMostUnits);
  std::vector<std::vector<std::uint64_t>> chunks;
  std::uint64_t rounds = 0;
  for (int t = 0; t < list.tasks; ++t) {
    chunks.push_back(chunks_of(list, tasks[t], sizes.p2p_bytes));
    for (const std::uint64_t of_strip : chunks.back()) rounds = std::max(rounds, of_strip);
  }
  if (units > kMostUnits * kMostUnits) return unsupported("a group of more messages than kernels can hold");
  const auto cell = [&](int peer, int strip, int channel) {
    return sizes.p2p_signals_at() + sizes.p2p_index(peer, strip, channel) * sizeof(transport::DeviceSignal);
  };
  arguments.one_round = 1;
  arguments.round = ~std::uint64_t{0};  // nothing: it only says that the group has begun
  arguments.mark = 2 * ++groups_ - 1;
  TUTTI_TRY(launch_kernel(&arguments, kP2pKernel, 1, stream));
  arguments.mark = 0;
  for (arguments.round = 0; arguments.round < rounds; ++arguments.round) {
    for (const int sending : {1, 0}) {
      bool any = false;
      for (int t = 0; t < list.tasks; ++t) {
        if (tasks[t].sending != sending) continue;
        for (int strip = 0; strip < list.strips; ++strip) {
          if (chunks[static_cast<std::size_t>(t)][static_cast<std::size_t>(strip)] <= arguments.round) continue;
          any = true;
          P2pCount& count = p2p_[static_cast<std::size_t>(tasks[t].peer * transport::kP2pStrips + strip)];
          if (sending == 0) {
            TUTTI_TRY(wait_for(cell(tasks[t].peer, strip, 0), ++count.seen, stream));
          } else if (++count.sent > transport::kP2pSlots) {
            TUTTI_TRY(wait_for(cell(tasks[t].peer, strip, 1), count.sent - transport::kP2pSlots, stream));
          }
        }
      }
      arguments.sending = sending;
      if (any) TUTTI_TRY(launch_kernel(&arguments, kP2pKernel, blocks, stream));
    }
  }
  arguments.round = ~std::uint64_t{0};
  arguments.mark = 2 * groups_;
  return launch_kernel(&arguments, kP2pKernel, 1, stream);
}

// Calls of a communicator do not overtake each other, on whatever streams they are.
Status DeviceExecutor::follow(CUstream stream, bool captured, std::uint64_t capture) {
  const std::string& where = kernels_->where();
  if (!captured) {
    const bool same = stream == last_stream_ && stream != CU_STREAM_PER_THREAD;
    if (launched_any_ && !same) {
      TUTTI_TRY(device::check(cuda_->StreamWaitEvent(stream, done_, 0), "cuStreamWaitEvent", where));
    }
    last_stream_ = stream;
    return {};
  }
  if (capture == last_capture_ && stream != last_captured_stream_) {
    TUTTI_TRY(device::check(cuda_->EventRecord(captured_, last_captured_stream_), "cuEventRecord", where));
    TUTTI_TRY(device::check(cuda_->StreamWaitEvent(stream, captured_, 0), "cuStreamWaitEvent", where));
  }
  last_capture_ = capture;
  last_captured_stream_ = stream;
  return {};
}

Status DeviceExecutor::launch_kernel(const void* arguments, int kernel, int blocks, CUstream stream) {
  void* parameters[] = {const_cast<void*>(arguments)};
  return device::check(cuda_->LaunchKernel(kernels_->function(kernel), static_cast<unsigned>(blocks), 1, 1,
                                           kThreadsOfBlock, 1, 1, 0, stream, parameters, nullptr),
                       "cuLaunchKernel", kernels_->where());
}

Status DeviceExecutor::launch_segmented(const Launch& launch, CUstream stream) {
  LaunchArguments arguments = arguments_of({&launch, 1});
  const DeviceProgram& program = *launch.first;
  const std::uint64_t call = launched_ + 1;
  const transport::DeviceWindowSizes& sizes = place_.sizes;
  for (const SegmentLaunch& one : program.segments()) {
    for (const SegmentLaunch::Wait& wait : one.before) {
      std::uint64_t& seen = seen_[static_cast<std::size_t>(wait.peer * 2 + wait.channel)];
      TUTTI_TRY(
          wait_for(sizes.signals_at() + sizes.link_index(wait.peer, 0, wait.channel) * sizeof(transport::DeviceSignal),
                   ++seen, stream));
    }
    arguments.segment = one.segment;
    TUTTI_TRY(launch_kernel(&arguments, program.kernel(), one.segment.begins ? 1 : program.blocks(), stream));
    for (int peer = 0; one.segment.begins && call > 1 && peer < sizes.ranks; ++peer) {  // the gate
      TUTTI_TRY(
          wait_for(sizes.call_offset(peer, call - 1) + offsetof(transport::DeviceCall, sequence), call - 1, stream));
    }
  }
  return {};
}

void DeviceExecutor::abort() {
  store(words_->abort, 1);
  if (place_.form != Form::segmented || idle()) return;
  // Streams wait for values in this rank's window: store larger ones than any. The calls are never finished.
  const auto context = device::enter(place_.device);
  if (!context.ok()) return;
  const device::UncapturedCalls uncaptured(*cuda_);
  const transport::DeviceWindowSizes& sizes = place_.sizes;
  cuda_->MemsetD8Async(place_.window + offsetof(transport::DeviceState, failed), kReleased, sizeof(std::uint64_t),
                       stream_);
  cuda_->MemsetD8Async(place_.window + sizes.calls_at(), kReleased, sizes.links_at() - sizes.calls_at(), stream_);
  cuda_->MemsetD8Async(place_.window + sizes.p2p_signals_at(), kReleased, sizes.p2p_links_at() - sizes.p2p_signals_at(),
                       stream_);
}

void DeviceExecutor::set_limit(std::int64_t ns) { store(words_->limit_ns, static_cast<std::uint64_t>(ns)); }

transport::DeviceVerdict DeviceExecutor::verdict() const {
  return load(words_->verdict.state) == 0 ? transport::DeviceVerdict{} : words_->verdict;
}

DeviceExecutor::Progress DeviceExecutor::progress() const {
  const std::lock_guard lock(mutex_);
  return {launched_, load(words_->entered), load(words_->finished), load(words_->p2p), !kept_.empty()};
}

bool DeviceExecutor::idle() const {
  const std::lock_guard lock(mutex_);
  if (!launched_any_) return true;
  // Another thread may be capturing, which forbids questions to all that do not say that they are none of it.
  const device::UncapturedCalls uncaptured(*cuda_);
  return cuda_->EventQuery(done_) != CUDA_ERROR_NOT_READY;
}

std::uint64_t DeviceExecutor::absent_in(std::uint64_t call) {
  const auto context = device::enter(place_.device);
  if (!context.ok()) return 0;
  const device::UncapturedCalls uncaptured(*cuda_);
  std::uint64_t absent = 0;
  for (int peer = 0; peer < place_.sizes.ranks; ++peer) {
    std::uint64_t sequence = 0;
    const std::uint64_t at = place_.window + place_.sizes.call_offset(peer, call);
    if (cuda_->MemcpyAsync(reinterpret_cast<CUdeviceptr>(&sequence), at, sizeof(sequence), stream_) != CUDA_SUCCESS ||
        cuda_->StreamSynchronize(stream_) != CUDA_SUCCESS) {
      return 0;
    }
    if (sequence < call) absent |= std::uint64_t{1} << peer;
  }
  return absent;
}

}  // namespace tutti::executor::cuda

#endif  // TUTTI_HAS_CUDA
