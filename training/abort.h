// Errors of collective work: a rank that cannot go on aborts the communicators, so that no other rank waits for it.
//
//   or_abort(comm, "training step", [&] { model->loss(tokens, targets).backward(); });
//   or_abort({mesh.world(), mesh.tp(), mesh.dp()}, "training step", [&] { ... });     // all that the step uses
//
// What the other ranks get: Code::aborted with the same sentence, from the call that they are in or the next one. An
//   aborted communicator cannot be used again.
// The sentence: "rank R: name: reason", R being the rank in the first communicator. An error that names its rank
//   already, such as one that came from another rank, stays as it is.
// Threads: as tutti::Communicator.
#pragma once

#include <torch/torch.h>

#include <exception>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>

#include "tutti/tutti.hpp"

namespace tutti::training {

/// Aborts all of them (empty ones are passed over) and throws invalid_argument with "rank R: what".
[[noreturn]] void fail_on_all(std::span<const Communicator> comms, const std::string& what);
[[noreturn]] inline void fail_on_all(const Communicator& comm, const std::string& what) {
  fail_on_all(std::span(&comm, 1), what);
}

/// In a catch block: aborts all of them with the error that is being handled, and throws it. A tutti::Error keeps its
/// code, others get Code::aborted.
[[noreturn]] void rethrow_on_all(std::span<const Communicator> comms, const std::string& name);
[[noreturn]] inline void rethrow_on_all(const Communicator& comm, const std::string& name) {
  rethrow_on_all(std::span(&comm, 1), name);
}

/// Runs `step` and returns what it returns. When it throws: rethrow_on_all.
template <class Step>
auto or_abort(std::span<const Communicator> comms, const std::string& name, Step&& step) {
  try {
    return step();
  } catch (const std::exception&) {
    rethrow_on_all(comms, name);
  }
}
template <class Step>
auto or_abort(std::initializer_list<Communicator> comms, const std::string& name, Step&& step) {
  return or_abort(std::span(comms.begin(), comms.size()), name, std::forward<Step>(step));
}
template <class Step>
auto or_abort(const Communicator& comm, const std::string& name, Step&& step) {
  return or_abort(std::span(&comm, 1), name, std::forward<Step>(step));
}

}  // namespace tutti::training
