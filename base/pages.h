// The pages of the running kernel: of 4 KiB on x86, of 4, 16 or 64 KiB on Arm.
#pragma once

#include <unistd.h>

#include <cstddef>

namespace tutti {

inline std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace tutti
