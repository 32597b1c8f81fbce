#include "perf/driver/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/even_share.h"
#include "tutti/tutti.hpp"

namespace tutti::perf {

Memory::Memory(std::size_t bytes, bool registered) {
  const std::size_t size = round_up(std::max<std::size_t>(bytes, 1), 64);
  void* pointer = registered ? allocate(size) : std::aligned_alloc(64, size);
  if (pointer == nullptr) throw std::bad_alloc();
  data_ = std::unique_ptr<char, ReleaseMemory>(static_cast<char*>(pointer), ReleaseMemory{registered});
  std::memset(pointer, 0, size);
}

void ReleaseMemory::operator()(char* pointer) const noexcept {
  if (registered) {
    deallocate(pointer);
  } else {
    std::free(pointer);
  }
}

}  // namespace tutti::perf
