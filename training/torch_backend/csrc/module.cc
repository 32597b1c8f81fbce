// The Python module tutti_torch._C.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "csrc/backend.h"
#include "csrc/callbacks.h"
#include "csrc/creation.h"
#include "tutti/tutti.hpp"

namespace tutti_torch {

namespace {

c10::intrusive_ptr<c10d::Backend> create(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                         std::chrono::milliseconds timeout) {
  const py::gil_scoped_release no_gil;
  return create_backend(store, rank, size, timeout);
}

}  // namespace

}  // namespace tutti_torch

PYBIND11_MODULE(_C, m) {
  using namespace tutti_torch;
  m.attr("built_for_torch") = TUTTI_TORCH_BUILT_FOR;
  m.attr("version") = TUTTI_TORCH_VERSION;
  m.attr("tutti_version") = tutti::version();
  m.def("create_backend", &create, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"));
}
