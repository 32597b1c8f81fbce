// A libnccl.so.2 that does nothing well: what nccl.preload.* links its programs to, so that only LD_PRELOAD can have
// made them work.
#include <type_traits>

#include "nccl/abi.h"

namespace tutti::nccl {
namespace {

template <class T>
T nothing() {
  if constexpr (std::is_same_v<T, ncclResult_t>) {
    return ncclInternalError;
  } else if constexpr (std::is_same_v<T, const char*>) {
    return "this is the dummy";
  } else if constexpr (!std::is_void_v<T>) {
    return {};
  }
}

}  // namespace

#define NOTHING(result, name, parameters)                         \
  extern "C" result name parameters { return nothing<result>(); } \
  extern "C" result p##name parameters { return nothing<result>(); }
TUTTI_NCCL_FUNCTIONS(NOTHING)
TUTTI_NCCL_DEVICE_FUNCTIONS(NOTHING)

}  // namespace tutti::nccl
