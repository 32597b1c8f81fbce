// Streams and events: a thread and a queue each; what must be done before an operation is counted in streams.
#if TUTTI_HAS_CUDA
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tests/support/fake_cuda/state.h"

namespace tutti::testing::fake {

namespace {

void serve(const StreamRef& stream) {
  Lock lock(state->mutex);
  for (;;) {
    state->changed.wait(lock, [&] { return stream->ends || !stream->queue.empty(); });
    if (stream->queue.empty()) return;
    Op op = std::move(stream->queue.front());
    stream->queue.pop_front();
    state->changed.wait(lock, [&] {
      return std::all_of(op.after.begin(), op.after.end(), [](const auto& a) { return a.first->done >= a.second; });
    });
    const bool faulty = state->devices[static_cast<std::size_t>(stream->device)].fault != CUDA_SUCCESS;
    lock.unlock();
    if (!faulty) op.run();
    op.run = nullptr;
    lock.lock();
    ++stream->done;
    state->changed.notify_all();
  }
}

void put_in_queue(const StreamRef& stream, std::function<void()> run,
                  std::vector<std::pair<StreamRef, std::uint64_t>> after = {}) {
  if (stream->blocking) {
    for (const StreamRef& other : state->streams) {
      const bool orders =
          other != stream && other->device == stream->device && other->blocking && (stream->legacy || other->legacy);
      if (orders && other->done < other->enqueued) after.emplace_back(other, other->enqueued);
    }
  }
  stream->queue.push_back({std::move(run), std::move(after)});
  ++stream->enqueued;
  state->changed.notify_all();
}

void join_capture(const StreamRef& stream, const Event& event) {
  if (!stream->capture) {
    stream->capture = event.capture;
    event.capture->streams.push_back(stream);
  }
  stream->last.insert(stream->last.end(), event.nodes.begin(), event.nodes.end());
}

}  // namespace

StreamRef new_stream(int device, bool blocking, bool legacy) {
  auto stream = std::make_shared<Stream>();
  stream->device = device;
  stream->blocking = blocking;
  stream->legacy = legacy;
  state->streams.insert(stream);
  stream->thread = std::thread(serve, stream);
  return stream;
}

void end_stream(const StreamRef& stream) {
  Lock lock(state->mutex);
  stream->ends = true;
  state->changed.notify_all();
  lock.unlock();
  stream->thread.join();
  lock.lock();
  state->streams.erase(stream);
}

StreamRef stream_of(CUstream handle) {
  const Context* context = current();
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    if (context == nullptr) return nullptr;
    StreamRef& legacy = state->legacy[context->device];
    if (!legacy) legacy = new_stream(context->device, true, true);
    return legacy;
  }
  if (handle == CU_STREAM_PER_THREAD) {
    if (context == nullptr) return nullptr;
    StreamRef& own = state->per_thread[{std::this_thread::get_id(), context->device}];
    if (!own) own = new_stream(context->device, true, false);
    return own;
  }
  for (const StreamRef& stream : state->streams) {
    if (reinterpret_cast<CUstream>(stream.get()) == handle) return stream;
  }
  return nullptr;
}

CUresult refuse_beside(const Stream& stream) {
  const bool beside =
      stream.legacy && std::any_of(state->streams.begin(), state->streams.end(), [&](const StreamRef& other) {
        return other->device == stream.device && other->blocking && other->capture != nullptr;
      });
  if (!beside) return CUDA_SUCCESS;
  for (const CaptureRef& capture : state->captures) capture->invalid = true;
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult enqueue(const StreamRef& stream, std::function<void()> run) {
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult error = refuse_beside(*stream); error != CUDA_SUCCESS) return error;
  if (const CUresult fault = state->devices[static_cast<std::size_t>(stream->device)].fault; fault != CUDA_SUCCESS) {
    return fault;
  }
  if (!stream->capture) {
    put_in_queue(stream, std::move(run));
    return CUDA_SUCCESS;
  }
  if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::vector<Node>& nodes = stream->capture->graph->nodes;
  nodes.push_back({std::move(run), stream->last});
  stream->last = {static_cast<int>(nodes.size()) - 1};
  return CUDA_SUCCESS;
}

namespace {

CUresult create(CUstream* handle, unsigned flags, int /*priority*/) {
  TUTTI_FAKE_ENTER("cuStreamCreateWithPriority", true);
  const Lock lock(state->mutex);
  *handle =
      reinterpret_cast<CUstream>(new_stream(current()->device, (flags & CU_STREAM_NON_BLOCKING) == 0, false).get());
  return CUDA_SUCCESS;
}

CUresult destroy(CUstream handle) {
  TUTTI_FAKE_ENTER("cuStreamDestroy");
  Lock lock(state->mutex);
  const StreamRef stream = stream_of(handle);
  if (!stream || stream->legacy) return CUDA_ERROR_INVALID_HANDLE;
  lock.unlock();
  end_stream(stream);
  return CUDA_SUCCESS;
}

CUresult refuse_capture(const StreamRef& stream) {
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult error = refuse_beside(*stream); error != CUDA_SUCCESS) return error;
  if (!stream->capture) return CUDA_SUCCESS;
  stream->capture->invalid = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult synchronize(CUstream handle) {
  TUTTI_FAKE_ENTER("cuStreamSynchronize");
  Lock lock(state->mutex);
  const StreamRef stream = stream_of(handle);
  if (const CUresult error = refuse_capture(stream); error != CUDA_SUCCESS) return error;
  const std::uint64_t until = stream->enqueued;
  state->changed.wait(lock, [&] { return stream->done >= until; });
  return state->devices[static_cast<std::size_t>(stream->device)].fault;
}

CUresult query(CUstream handle) {
  TUTTI_FAKE_ENTER("cuStreamQuery");
  const Lock lock(state->mutex);
  const StreamRef stream = stream_of(handle);
  if (const CUresult error = refuse_capture(stream); error != CUDA_SUCCESS) return error;
  if (stream->done < stream->enqueued) return CUDA_ERROR_NOT_READY;
  return state->devices[static_cast<std::size_t>(stream->device)].fault;
}

CUresult get_context(CUstream handle, CUcontext* context) {
  TUTTI_FAKE_ENTER("cuStreamGetCtx");
  const Lock lock(state->mutex);
  const StreamRef stream = stream_of(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  *context = reinterpret_cast<CUcontext>(&state->devices[static_cast<std::size_t>(stream->device)].context);
  return CUDA_SUCCESS;
}

CUresult wait_value(CUstream handle, CUdeviceptr at, cuuint64_t value, unsigned flags) {
  TUTTI_FAKE_ENTER("cuStreamWaitValue64");
  if (!state->machine.wait_values) return CUDA_ERROR_NOT_SUPPORTED;
  const Lock lock(state->mutex);
  const StreamRef stream = stream_of(handle);
  const int device = stream ? stream->device : 0;
  return enqueue(stream, [=] {
    auto* word = reinterpret_cast<std::uint64_t*>(at);
    for (;;) {
      const std::uint64_t seen = std::atomic_ref<std::uint64_t>(*word).load(std::memory_order_acquire);
      const bool met = flags == CU_STREAM_WAIT_VALUE_GEQ   ? static_cast<std::int64_t>(seen - value) >= 0
                       : flags == CU_STREAM_WAIT_VALUE_EQ  ? seen == value
                       : flags == CU_STREAM_WAIT_VALUE_AND ? (seen & value) != 0
                                                           : (~(seen | value)) != 0;
      if (met) return;
      std::this_thread::yield();
      const Lock inside(state->mutex);
      if (state->devices[static_cast<std::size_t>(device)].fault != CUDA_SUCCESS) return;
    }
  });
}

CUresult write_value(CUstream handle, CUdeviceptr at, cuuint64_t value, unsigned /*flags*/) {
  TUTTI_FAKE_ENTER("cuStreamWriteValue64");
  if (!state->machine.wait_values) return CUDA_ERROR_NOT_SUPPORTED;
  const Lock lock(state->mutex);
  return enqueue(stream_of(handle), [=] {
    std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(at)).store(value, std::memory_order_release);
  });
}

CUresult host_function(CUstream handle, CUhostFn function, void* data) {
  TUTTI_FAKE_ENTER("cuLaunchHostFunc");
  const Lock lock(state->mutex);
  return enqueue(stream_of(handle), [=] { function(data); });
}

Event& event_of(CUevent event) { return *reinterpret_cast<Event*>(event); }

CUresult event_create(CUevent* event, unsigned flags) {
  TUTTI_FAKE_ENTER("cuEventCreate", true);
  auto* made = new Event;
  made->timed = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  *event = reinterpret_cast<CUevent>(made);
  return CUDA_SUCCESS;
}

CUresult event_destroy(CUevent event) {
  TUTTI_FAKE_ENTER("cuEventDestroy");
  const Lock lock(state->mutex);
  delete &event_of(event);
  return CUDA_SUCCESS;
}

CUresult event_record(CUevent handle, CUstream on) {
  TUTTI_FAKE_ENTER("cuEventRecord");
  const Lock lock(state->mutex);
  const StreamRef stream = stream_of(on);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  Event& event = event_of(handle);
  if (stream->capture) {
    event.capture = stream->capture;
    event.nodes = stream->last;
    return stream->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  }
  auto stamp = std::make_shared<std::int64_t>(0);
  if (const CUresult error = enqueue(stream, [stamp] { *stamp = now_ns(); }); error != CUDA_SUCCESS) return error;
  event.stream = stream;
  event.count = stream->enqueued;
  event.stamp = std::move(stamp);
  event.capture = nullptr;
  return CUDA_SUCCESS;
}

CUresult refuse_captured(const Event& event) {
  if (!event.capture) return CUDA_SUCCESS;
  event.capture->invalid = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult event_query(CUevent handle) {
  TUTTI_FAKE_ENTER("cuEventQuery");
  const Lock lock(state->mutex);
  const Event& event = event_of(handle);
  if (const CUresult error = refuse_captured(event); error != CUDA_SUCCESS) return error;
  if (const CUresult error = unsafe_call(); error != CUDA_SUCCESS) return error;
  return !event.stream || event.stream->done >= event.count ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult event_synchronize(CUevent handle) {
  TUTTI_FAKE_ENTER("cuEventSynchronize");
  Lock lock(state->mutex);
  const Event event = event_of(handle);
  if (const CUresult error = refuse_captured(event); error != CUDA_SUCCESS) return error;
  if (!event.stream) return CUDA_SUCCESS;
  state->changed.wait(lock, [&] { return event.stream->done >= event.count; });
  return state->devices[static_cast<std::size_t>(event.stream->device)].fault;
}

CUresult event_elapsed(float* milliseconds, CUevent from, CUevent to) {
  TUTTI_FAKE_ENTER("cuEventElapsedTime");
  const Lock lock(state->mutex);
  const Event& a = event_of(from);
  const Event& b = event_of(to);
  if (!a.stream || !b.stream || !a.timed || !b.timed) return CUDA_ERROR_INVALID_HANDLE;
  if (a.stream->done < a.count || b.stream->done < b.count) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(static_cast<double>(*b.stamp - *a.stamp) * 1e-6);
  return CUDA_SUCCESS;
}

CUresult wait_event(CUstream on, CUevent handle, unsigned /*flags*/) {
  TUTTI_FAKE_ENTER("cuStreamWaitEvent");
  const Lock lock(state->mutex);
  const StreamRef stream = stream_of(on);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  const Event& event = event_of(handle);
  if (event.capture) {
    if (stream->legacy || (stream->capture && stream->capture != event.capture)) {
      event.capture->invalid = true;
      return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    join_capture(stream, event);
    return CUDA_SUCCESS;
  }
  if (stream->capture) {  // on something that is not part of the graph
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (event.stream && event.stream != stream) put_in_queue(stream, [] {}, {{event.stream, event.count}});
  return CUDA_SUCCESS;
}

}  // namespace

void fill_streams(device::Driver& table) {
  table.StreamCreateWithPriority = create;
  table.StreamDestroy = destroy;
  table.StreamSynchronize = synchronize;
  table.StreamQuery = query;
  table.StreamGetCtx = get_context;
  table.StreamWaitEvent = wait_event;
  table.StreamWaitValue64 = wait_value;
  table.StreamWriteValue64 = write_value;
  table.LaunchHostFunc = host_function;
  table.EventCreate = event_create;
  table.EventDestroy = event_destroy;
  table.EventRecord = event_record;
  table.EventQuery = event_query;
  table.EventSynchronize = event_synchronize;
  table.EventElapsedTime = event_elapsed;
}

}  // namespace tutti::testing::fake
#endif
