#include "csrc/base/signals.h"

#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <utility>

namespace tutti_torch {

namespace {

// Written before any wait. A fork makes the forking thread the main one, with the same id.
unsigned long g_main_thread = 0;

bool python_is_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Null: none.
std::exception_ptr raised_by_handlers() {
  if (!Py_IsInitialized() || python_is_ending()) return nullptr;
  if (static_cast<unsigned long>(pthread_self()) != g_main_thread) return nullptr;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return nullptr;
  return std::make_exception_ptr(py::error_already_set());
}

thread_local std::exception_ptr t_interrupt;

}  // namespace

void find_main_thread() {
  g_main_thread = py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
}

void check_signals() {
  if (const std::exception_ptr raised = raised_by_handlers()) std::rethrow_exception(raised);
}

bool interrupted() {
  t_interrupt = raised_by_handlers();
  return t_interrupt != nullptr;
}

std::exception_ptr take_interrupt() { return std::exchange(t_interrupt, nullptr); }

bool handling_exception() {
  if (!Py_IsInitialized() || python_is_ending()) return false;
  const py::gil_scoped_acquire gil;
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_GetExcInfo(&type, &value, &traceback);
  const bool any = value != nullptr && value != Py_None;
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
  return any;
}

}  // namespace tutti_torch
