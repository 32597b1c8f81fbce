#include "errors.h"

#include <exception>

#include "signals.h"

namespace tutti_torch {

std::exception_ptr torch_error(const tutti::Error& error) {
  if (std::exception_ptr raised = take_interrupt()) return raised;
  // Not C10_THROW_ERROR: it would put this file and line into a sentence that is about something else.
  return std::make_exception_ptr(
      c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, error.what()));
}

}  // namespace tutti_torch
