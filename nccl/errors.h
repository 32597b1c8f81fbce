// How a failure leaves the library: an ncclResult_t, and one sentence that ncclGetLastError gives.
//
//   if (comm == nullptr) return fail(ncclInvalidArgument, "ncclCommCount: comm is null");
//   return guarded("ncclCommSplit", [&] { ... });   // a tutti::Error becomes a result and its sentence
//
// Thread-safe.
#pragma once

#include <string>

#include "nccl/abi.h"
#include "tutti/tutti.hpp"

namespace tutti::nccl {

/// A result with its sentence, on its way up.
struct Outcome {
  ncclResult_t result = ncclSuccess;
  std::string text;
  bool finishes = false;  // the communicator, as tutti::Code says
  bool ok() const { return result == ncclSuccess; }
};

/// Returns NCCL's code for a failure of this kind.
ncclResult_t result_of(Code code);

/// "ncclAllReduce: <sentence>"; a sentence that names the function already stays as it is.
Outcome outcome_of(const std::string& function, const Error& error);
/// Returns the outcome of the exception that is being handled. REQUIRES: in a catch block.
Outcome outcome_of_current_exception(const std::string& function);

/// Returns the failure of a function that this library has by name only: "ncclX: not served by this library: <why>".
Outcome not_served(const std::string& function, const std::string& why);

/// Notes the sentence as this thread's and the process's last error; gives the result.
ncclResult_t fail(ncclResult_t result, std::string text);
inline ncclResult_t report(const Outcome& outcome) {
  return outcome.ok() ? ncclSuccess : fail(outcome.result, outcome.text);
}

/// This thread's last error; where it had none, the process's; empty without any. Valid until the thread's next call.
const char* last_error();
/// Returns the sentence as memory that is valid until the thread's next call.
const char* keep_for_caller(std::string text);

/// Runs `body`, which gives an ncclResult_t; no exception passes.
template <class Body>
ncclResult_t guarded(const char* function, Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    return report(outcome_of_current_exception(function));
  }
}

}  // namespace tutti::nccl
