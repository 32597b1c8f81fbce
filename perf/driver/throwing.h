// What the inside says with a Status or a CUresult, as the exception that the driver's caller expects.
#pragma once

#include "base/status.h"
#include "tutti/tutti.hpp"
#if TUTTI_HAS_CUDA
#include "device/driver.h"
#endif

namespace tutti::perf {

inline void check(const Status& status) {
  if (!status.ok()) throw Error(status.code(), status.message());
}

template <class T>
T check(Result<T> result) {
  check(result.status());
  return result.take();
}

#if TUTTI_HAS_CUDA
inline void check(CUresult result, const char* call) { check(device::check(result, call)); }
#endif

}  // namespace tutti::perf
