// The Python module tutti_torch._C. tutti_torch/__init__.py is what users see; what is here is checked there.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/backend/backend.h"
#include "csrc/backend/creation.h"
#include "csrc/base/callbacks.h"
#include "csrc/base/signals.h"
#include "csrc/tensors/allocator.h"
#include "tutti/tutti.hpp"

namespace tutti_torch {

namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using NoGil = py::call_guard<py::gil_scoped_release>;

BackendPtr create(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout,
                  const std::string& name, const std::vector<std::uint64_t>& global_ranks) {
  auto options = c10::make_intrusive<TuttiBackend::Options>(timeout);
  options->group_name = name;
  options->global_ranks_in_group = global_ranks;
  return create_backend(store, rank, size, options);
}

TuttiBackend& tutti_backend(const BackendPtr& backend) {
  auto* const found = dynamic_cast<TuttiBackend*>(backend.get());
  TORCH_CHECK_VALUE(found != nullptr, "the group's backend is ", backend->getBackendName(), "; expected tutti");
  return *found;
}

std::string flight_recorder(const BackendPtr& backend, bool json) {
  const tutti::Communicator communicator = tutti_backend(backend).collectives().communicator();
  if (!communicator) return {};
  return json ? communicator.flight_recorder_json() : communicator.flight_recorder_text();
}

tutti::Explanation explain(const BackendPtr& backend) {
  Channel& channel = tutti_backend(backend).collectives();
  return translated([&] { return channel.use([](tutti::Communicator& c) { return c.explain_last_call(); }); });
}

tutti::MemoryReport memory(const BackendPtr& backend) {
  tutti::MemoryReport sum;
  TuttiBackend& group = tutti_backend(backend);
  for (Channel* channel : {&group.collectives(), &group.transfers()}) {
    const tutti::MemoryReport part =
        translated([&] { return channel->use([](tutti::Communicator& c) { return c.memory(); }); });
    sum.scratch += part.scratch;
    sum.plans += part.plans;
    sum.messages += part.messages;
  }
  return sum;
}

void end_process(std::chrono::milliseconds limit) {
  Channel::close_all(limit);
  wait_for_callbacks(limit);
}

}  // namespace

}  // namespace tutti_torch

PYBIND11_MODULE(_C, m) {
  using namespace tutti_torch;
  find_main_thread();
  m.attr("version") = TUTTI_TORCH_VERSION;
  m.attr("tutti_version") = tutti::version();
  m.attr("serves_cuda") = tutti::supports(tutti::Memory::device);
  m.def("create_backend", &create, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
        py::arg("name"), py::arg("global_ranks"), NoGil());
  m.def("is_tutti", [](const BackendPtr& b) { return dynamic_cast<TuttiBackend*>(b.get()) != nullptr; });
  m.def("flight_recorder", &flight_recorder, py::arg("backend"), py::arg("json"), NoGil());
  m.def(
      "abort", [](const BackendPtr& b, const std::string& reason) { tutti_backend(b).abort_because(reason); }, NoGil());
  m.def("error_state", [](const BackendPtr& b) { return static_cast<int>(tutti_backend(b).getError()); });
  m.def("explain", [](const BackendPtr& b) {
    tutti::Explanation e;
    {
      const py::gil_scoped_release no_gil;
      e = explain(b);
    }
    return py::make_tuple(e.algorithm, e.lanes, e.rounds, e.reason);
  });
  m.def("memory", [](const BackendPtr& b) {
    tutti::MemoryReport report;
    {
      const py::gil_scoped_release no_gil;
      report = memory(b);
    }
    return py::make_tuple(report.scratch, report.plans, report.messages);
  });
  m.def("registered_memory", [] {
    const RegisteredMemory memory = registered_memory();
    return py::make_tuple(memory.live_bytes, memory.waiting_bytes, memory.peak_live_bytes);
  });
  m.def(
      "monitored_barrier",
      [](const BackendPtr& b, std::chrono::milliseconds timeout, bool wait_all_ranks) {
        c10d::BarrierOptions options;
        options.timeout = timeout;
        tutti_backend(b).monitoredBarrier(options, wait_all_ranks);
      },
      NoGil());
  m.def("end_process", &end_process, py::arg("limit"), NoGil());
}
