#include "csrc/base/errors.h"

#include <exception>
#include <string>
#include <utility>

#include "csrc/base/signals.h"

namespace tutti_torch {

// Not C10_THROW_ERROR: it would put this file and line into a sentence that is about something else.
std::exception_ptr backend_error(std::string text) {
  return std::make_exception_ptr(
      c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, std::move(text)));
}

std::exception_ptr torch_error(const tutti::Error& error) {
  if (std::exception_ptr raised = take_interrupt()) return raised;
  return backend_error(error.what());
}

}  // namespace tutti_torch
