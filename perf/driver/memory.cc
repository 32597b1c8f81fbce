#include "perf/driver/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/even_share.h"
#include "tutti/tutti.hpp"

namespace tutti::perf {

const char* name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::registered: return "registered";
    case MemoryKind::plain: return "plain";
    case MemoryKind::device: return "device";
  }
  return "?";
}

Memory::Memory(std::size_t bytes, MemoryKind kind) {
  const std::size_t size = round_up(std::max<std::size_t>(bytes, 1), 64);
  const bool registered = kind != MemoryKind::plain;
  const tutti::Memory where = kind == MemoryKind::device ? tutti::Memory::device : tutti::Memory::host;
  void* pointer = registered ? allocate(size, where) : std::aligned_alloc(64, size);
  if (pointer == nullptr) throw std::bad_alloc();
  data_ = std::unique_ptr<char, ReleaseMemory>(static_cast<char*>(pointer), ReleaseMemory{registered});
  if (kind != MemoryKind::device) std::memset(pointer, 0, size);  // a device's is zero already, and there
}

void ReleaseMemory::operator()(char* pointer) const noexcept {
  if (registered) {
    deallocate(pointer);
  } else {
    std::free(pointer);
  }
}

}  // namespace tutti::perf
