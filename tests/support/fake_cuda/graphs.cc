// Capture of streams, and graphs that are launched again and again.
#if TUTTI_HAS_CUDA
#include <algorithm>
#include <cstddef>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tests/support/fake_cuda/state.h"

namespace tutti::testing::fake {

namespace {

/// The state of one launch of a graph: how many nodes each node still waits for.
struct Progress {
  std::vector<int> waits;
  std::vector<std::vector<int>> next;
  int left = 0;
};

void run_from(const GraphRef& graph, const std::shared_ptr<Progress>& progress, int node) {
  while (node >= 0) {
    graph->nodes[static_cast<std::size_t>(node)].run();
    const Lock lock(state->mutex);
    int own = -1;
    for (const int after : progress->next[static_cast<std::size_t>(node)]) {
      if (--progress->waits[static_cast<std::size_t>(after)] > 0) continue;
      if (own < 0) {
        own = after;  // this thread goes on with it
      } else {
        start_task([graph, progress, after] { run_from(graph, progress, after); });
      }
    }
    if (--progress->left == 0) state->changed.notify_all();
    node = own;
  }
}

}  // namespace

void run_graph(const GraphRef& graph) {
  auto progress = std::make_shared<Progress>();
  progress->left = static_cast<int>(graph->nodes.size());
  progress->next.resize(graph->nodes.size());
  std::vector<int> first;
  for (std::size_t n = 0; n < graph->nodes.size(); ++n) {
    std::vector<int> after = graph->nodes[n].after;
    std::sort(after.begin(), after.end());
    after.erase(std::unique(after.begin(), after.end()), after.end());
    progress->waits.push_back(static_cast<int>(after.size()));
    for (const int before : after) progress->next[static_cast<std::size_t>(before)].push_back(static_cast<int>(n));
    if (after.empty()) first.push_back(static_cast<int>(n));
  }
  if (first.empty()) return;
  {
    const Lock lock(state->mutex);
    for (std::size_t i = 1; i < first.size(); ++i) {
      start_task([graph, progress, node = first[i]] { run_from(graph, progress, node); });
    }
  }
  run_from(graph, progress, first[0]);
  Lock lock(state->mutex);
  state->changed.wait(lock, [&] { return progress->left == 0; });
}

namespace {

GraphRef& graph_of(CUgraph graph) { return *reinterpret_cast<GraphRef*>(graph); }
GraphRef& graph_of(CUgraphExec graph) { return *reinterpret_cast<GraphRef*>(graph); }

CUresult begin(CUstream handle, CUstreamCaptureMode mode) {
  TUTTI_FAKE_ENTER("cuStreamBeginCapture");
  const Lock lock(state->mutex);
  const StreamRef stream = stream_of(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->origin = stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->id = state->next_capture++;
  capture->streams.push_back(stream);
  stream->capture = capture;
  stream->last.clear();
  state->captures.push_back(capture);
  return CUDA_SUCCESS;
}

/// Whether everything that the other streams were given comes before what the capturing stream ends with.
bool is_joined(const Capture& capture) {
  std::vector<int> reach = capture.origin->last;
  std::vector<bool> seen(capture.graph->nodes.size());
  while (!reach.empty()) {
    const auto node = static_cast<std::size_t>(reach.back());
    reach.pop_back();
    if (seen[node]) continue;
    seen[node] = true;
    const std::vector<int>& after = capture.graph->nodes[node].after;
    reach.insert(reach.end(), after.begin(), after.end());
  }
  return std::all_of(seen.begin(), seen.end(), [](bool s) { return s; });
}

CUresult end(CUstream handle, CUgraph* graph) {
  TUTTI_FAKE_ENTER("cuStreamEndCapture");
  const Lock lock(state->mutex);
  const StreamRef stream = stream_of(handle);
  *graph = nullptr;
  if (!stream || !stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  const CaptureRef capture = stream->capture;
  if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  const bool joined = is_joined(*capture);
  for (const StreamRef& part : capture->streams) {
    part->capture = nullptr;
    part->last.clear();
  }
  std::erase(state->captures, capture);
  if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!joined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  *graph = reinterpret_cast<CUgraph>(new GraphRef(capture->graph));
  return CUDA_SUCCESS;
}

CUresult capture_info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                      const CUgraphNode** dependencies, size_t* count) {
  TUTTI_FAKE_ENTER("cuStreamGetCaptureInfo");
  const Lock lock(state->mutex);
  const StreamRef stream = stream_of(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult error = refuse_beside(*stream); error != CUDA_SUCCESS) return error;
  *status = !stream->capture           ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id != nullptr) *id = stream->capture->id;
  if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(&stream->capture->graph);  // only for its user objects
  if (dependencies != nullptr) *dependencies = nullptr;
  if (count != nullptr) *count = 0;
  return CUDA_SUCCESS;
}

CUresult instantiate(CUgraphExec* exec, CUgraph graph, unsigned long long /*flags*/) {
  TUTTI_FAKE_ENTER("cuGraphInstantiateWithFlags", true);
  const Lock lock(state->mutex);
  *exec = reinterpret_cast<CUgraphExec>(new GraphRef(std::make_shared<Graph>(*graph_of(graph))));
  return CUDA_SUCCESS;
}

CUresult launch(CUgraphExec exec, CUstream stream) {
  TUTTI_FAKE_ENTER("cuGraphLaunch");
  const Lock lock(state->mutex);
  return enqueue(stream_of(stream), [graph = graph_of(exec)] { run_graph(graph); });
}

template <class Handle>
CUresult destroy(Handle graph) {
  GraphRef last;  // what it retains is released without the lock: it may call back
  const Lock lock(state->mutex);
  last = std::move(graph_of(graph));
  delete &graph_of(graph);
  return CUDA_SUCCESS;
}

CUresult destroy_exec(CUgraphExec graph) {
  TUTTI_FAKE_ENTER("cuGraphExecDestroy");
  return destroy(graph);
}

CUresult destroy_graph(CUgraph graph) {
  TUTTI_FAKE_ENTER("cuGraphDestroy");
  return destroy(graph);
}

using ObjectRef = std::shared_ptr<UserObject>;

CUresult create_object(CUuserObject* object, void* pointer, CUhostFn destroy, unsigned count, unsigned flags) {
  TUTTI_FAKE_ENTER("cuUserObjectCreate");
  if (count != 1 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_shared<UserObject>();
  made->pointer = pointer;
  made->destroy = destroy;
  *object = reinterpret_cast<CUuserObject>(new ObjectRef(std::move(made)));
  return CUDA_SUCCESS;
}

CUresult release_object(CUuserObject object, unsigned count) {
  TUTTI_FAKE_ENTER("cuUserObjectRelease");
  TUTTI_CHECK_EQ(count, 1U);
  delete reinterpret_cast<ObjectRef*>(object);
  return CUDA_SUCCESS;
}

CUresult retain_object(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  TUTTI_FAKE_ENTER("cuGraphRetainUserObject");
  TUTTI_CHECK_EQ(count, 1U);
  auto* reference = reinterpret_cast<ObjectRef*>(object);
  const Lock lock(state->mutex);
  graph_of(graph)->retained.push_back(*reference);
  if ((flags & CU_GRAPH_USER_OBJECT_MOVE) != 0) delete reference;
  return CUDA_SUCCESS;
}

}  // namespace

void fill_graphs(device::Driver& table) {
  table.StreamBeginCapture = begin;
  table.StreamEndCapture = end;
  table.StreamGetCaptureInfo = capture_info;
  table.GraphInstantiateWithFlags = instantiate;
  table.GraphLaunch = launch;
  table.GraphExecDestroy = destroy_exec;
  table.GraphDestroy = destroy_graph;
  table.UserObjectCreate = create_object;
  table.UserObjectRelease = release_object;
  table.GraphRetainUserObject = retain_object;
}

}  // namespace tutti::testing::fake
#endif
