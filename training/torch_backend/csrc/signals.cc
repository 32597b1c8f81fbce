#include "csrc/signals.h"

#include <torch/csrc/utils/pybind.h>

#include <thread>

namespace tutti_torch {

namespace {

// Python has it as the thread that imported its first module; a fork makes the forking thread the main one, with the
// same id.
unsigned long main_thread() {
  static const unsigned long id = [] {
    const py::gil_scoped_acquire gil;
    return py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
  }();
  return id;
}

bool python_is_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

}  // namespace

void check_signals() {
  if (!Py_IsInitialized() || python_is_ending()) return;
  if (static_cast<unsigned long>(pthread_self()) != main_thread()) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

}  // namespace tutti_torch
