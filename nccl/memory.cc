// Memory, what may be registered, and reductions with a factor.

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "nccl/device.h"
#include "nccl/group.h"
#include "nccl/scalar.h"

namespace tutti::nccl {

TUTTI_NCCL_DEFINE(ncclResult_t, ncclMemAlloc, (void** pointer, size_t bytes)) {
  return guarded("ncclMemAlloc", [&] {
    if (pointer == nullptr) return fail(ncclInvalidArgument, "ncclMemAlloc: ptr is null");
    *pointer = bytes == 0 ? nullptr : allocate_buffer(bytes);
    return ncclSuccess;
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclMemFree, (void* pointer)) {
  return guarded("ncclMemFree", [&] {
    if (pointer != nullptr) deallocate_buffer(pointer);
    return ncclSuccess;
  });
}

// Memory of ncclMemAlloc is within the peers' reach anyway, and other memory is reached as it is: a registration is
// kept, and asks for nothing more.
TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommRegister,
                  (const ncclComm_t handle, void* buffer, size_t bytes, void** result)) {
  return guarded("ncclCommRegister", [&] {
    std::shared_ptr<Comm> comm;
    if (const Outcome found = find_comm("ncclCommRegister", handle, comm); !found.ok()) return report(found);
    if (result == nullptr || buffer == nullptr || bytes == 0) {
      return fail(
          ncclInvalidArgument,
          fmt::format("ncclCommRegister: {}: {}; expected a buffer, its size and where to put the handle", comm->who(),
                      result == nullptr   ? "handle is null"
                      : buffer == nullptr ? "buff is null"
                                          : "size is 0"));
    }
    *result = comm->registrations().add();
    return ncclSuccess;
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclCommDeregister, (const ncclComm_t handle, void* registration)) {
  return guarded("ncclCommDeregister", [&] {
    std::shared_ptr<Comm> comm;
    if (const Outcome found = find_comm("ncclCommDeregister", handle, comm); !found.ok()) return report(found);
    if (comm->registrations().remove(registration)) return ncclSuccess;
    return fail(ncclInvalidArgument,
                fmt::format("ncclCommDeregister: {}: handle is not one that ncclCommRegister gave for this "
                            "communicator, or not any more",
                            comm->who()));
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclRedOpCreatePreMulSum,
                  (ncclRedOp_t * op, void* scalar, ncclDataType_t type, ncclScalarResidence_t residence,
                   ncclComm_t handle)) {
  return guarded("ncclRedOpCreatePreMulSum", [&] {
    Operation operation;
    operation.function = "ncclRedOpCreatePreMulSum";
    if (const Outcome found = find_comm(operation.function, handle, operation.comm); !found.ok()) return report(found);
    const auto wrong = [&](const std::string& what) {
      return fail(ncclInvalidArgument, fmt::format("{}: {}: {}", operation.function, operation.comm->who(), what));
    };
    if (op == nullptr || scalar == nullptr) return wrong(op == nullptr ? "op is null" : "scalar is null");
    if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate) {
      return wrong(fmt::format("residence is {}; expected ncclScalarDevice or ncclScalarHostImmediate",
                               static_cast<int>(residence)));
    }
    if (const Outcome read = read_type(operation, type); !read.ok()) return report(read);
    Scaling scaling{operation.type, 1.0, scalar};
    if (residence == ncclScalarHostImmediate) {
      const std::optional<double> factor = value_of(operation.type, scalar);
      if (!factor) return wrong("the scalar is an integer that a double does not hold; expected at most 2^53");
      scaling.factor = *factor;
      scaling.scalar = nullptr;
    }
    const std::optional<ncclRedOp_t> added = operation.comm->operators().add(scaling);
    if (!added) {
      return fail(ncclInvalidUsage, fmt::format("{}: {} has {} operators already; expected ncclRedOpDestroy of those "
                                                "that are not needed",
                                                operation.function, operation.comm->who(), UserOperators::kMost));
    }
    *op = *added;
    return ncclSuccess;
  });
}

TUTTI_NCCL_DEFINE(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t handle)) {
  return guarded("ncclRedOpDestroy", [&] {
    std::shared_ptr<Comm> comm;
    if (const Outcome found = find_comm("ncclRedOpDestroy", handle, comm); !found.ok()) return report(found);
    if (comm->operators().remove(op)) return ncclSuccess;
    return fail(ncclInvalidArgument,
                fmt::format("ncclRedOpDestroy: {}: op is {:#x}; expected an operator that was made with this "
                            "communicator and not destroyed",
                            comm->who(), static_cast<unsigned>(op)));
  });
}

}  // namespace tutti::nccl
