// Errors that cross from Tutti into torch.
//
//   translated([&] { communicator.barrier(); });   // throws what Python shows as torch.distributed.DistBackendError
//
// What Tutti says is passed on word for word: it is one sentence that names the rank, the call and what was expected.
// What the backend itself finds wrong in the arguments is a ValueError that begins with Caller's text; what it does not
// have is a NotImplementedError.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>
#include <utility>

#include "tutti/tutti.hpp"

namespace tutti_torch {

/// Who called what: "rank 1 called all_reduce". Cheap to make, so each call has one at hand.
struct Caller {
  int rank = 0;
  const char* call = "";
  std::string text() const { return "rank " + std::to_string(rank) + " called " + call; }
};

/// A DistBackendError of these words.
std::exception_ptr backend_error(std::string text);

/// Returns what to throw for `error`. Where a signal handler of Python raised on this thread while Tutti waited, what
/// it raised: the error came of it.
std::exception_ptr torch_error(const tutti::Error& error);

/// Calls `body`, and throws torch_error() for what it throws.
template <class Body>
auto translated(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const tutti::Error& error) {
    std::rethrow_exception(torch_error(error));
  }
}

}  // namespace tutti_torch

/// TUTTI_TORCH_EXPECT(a == b, caller, "output has ", a, " elements; expected ", b): a ValueError unless it holds.
#define TUTTI_TORCH_EXPECT(condition, caller, ...) TORCH_CHECK_VALUE(condition, (caller).text(), ": ", __VA_ARGS__)
