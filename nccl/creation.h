// What the ways to make a communicator have in common.
#pragma once

#include <cstring>
#include <memory>
#include <utility>

#include "nccl/abi.h"
#include "nccl/comm.h"
#include "nccl/device.h"
#include "tutti/tutti.hpp"

namespace tutti::nccl {

/// Tutti's options for every communicator of this library, which baselines may measure but which never is one.
inline Options own_options() {
  Options options;
  options.backend = "tutti";
  return options;
}

/// NCCL's id as Tutti's.
inline UniqueId unique_id_of(const ncclUniqueId& id) {
  UniqueId ours;
  static_assert(sizeof(ours.bytes) == sizeof(id.internal));
  std::memcpy(ours.bytes, id.internal, sizeof(ours.bytes));
  return ours;
}

/// Runs `make`, which gives a Communicator, for the task of `comm`.
template <class Make>
Outcome make_into(const char* function, const std::shared_ptr<Comm>& comm, Make&& make) {
  try {
    Communicator made = make();
    open_memory(made, comm->device());
    const int rank = made.rank();
    const int size = made.size();
    comm->made(std::move(made), rank, size);
    return {};
  } catch (...) {
    return outcome_of_current_exception(function);
  }
}

/// Checks what split, shrink and grow have in common; `parent` is the communicator.
Outcome read_parent(const char* function, ncclComm_t handle, const ncclComm_t* slot, const ncclConfig_t* given,
                    std::shared_ptr<Comm>& parent, Config& config);

}  // namespace tutti::nccl
