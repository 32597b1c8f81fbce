// The buffers of a benchmark: registered with Tutti (on the host or on a GPU), or any memory of the host.
#pragma once

#include <cstddef>
#include <memory>

namespace tutti::perf {

enum class MemoryKind { registered, plain, device };
const char* name_of(MemoryKind kind);

struct ReleaseMemory {
  bool registered = false;
  void operator()(char* pointer) const noexcept;
};

/// Zero-filled, so every page is there before anything is timed. 64-byte aligned. Device memory is the calling thread's
/// current device's.
class Memory {
 public:
  Memory() = default;
  Memory(std::size_t bytes, MemoryKind kind);
  char* data() const { return data_.get(); }

 private:
  std::unique_ptr<char, ReleaseMemory> data_;
};

}  // namespace tutti::perf
