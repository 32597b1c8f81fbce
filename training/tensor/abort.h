// Errors of collective calls: a rank that cannot go on tells the others, so that none waits for it.
//
//   tutti::training::or_abort(comm, "training step", [&] { model->loss(tokens, targets).backward(); });
//
// Threads: as tutti::Communicator.
#pragma once

#include <torch/torch.h>

#include <exception>
#include <string>

#include "tutti/tutti.hpp"

namespace tutti::training {

/// Throws invalid_argument with "rank R: what". The other ranks fail with the same sentence.
[[noreturn]] void fail_on_all(Communicator comm, const std::string& what);

/// In a catch block: names the error that is being handled after the rank and `name`, brings the others down with it,
/// and throws it (a torch::Error and others as invalid_argument; a tutti::Error keeps its code).
[[noreturn]] void rethrow_on_all(Communicator comm, const std::string& name);

/// Runs `step`. When it throws, no rank waits for this one: the communicator is aborted with the error, named by rank.
template <class Step>
auto or_abort(const Communicator& comm, const std::string& name, Step&& step) {
  try {
    return step();
  } catch (const std::exception&) {
    rethrow_on_all(comm, name);
  }
}

}  // namespace tutti::training
