// The buffers of a benchmark: registered with Tutti, or any memory.
#pragma once

#include <cstddef>
#include <memory>

namespace tutti::perf {

struct ReleaseMemory {
  bool registered = false;
  void operator()(char* pointer) const noexcept;
};

/// Zero-filled, so every page is there before anything is timed. 64-byte aligned.
class Memory {
 public:
  Memory() = default;
  Memory(std::size_t bytes, bool registered);
  char* data() const { return data_.get(); }

 private:
  std::unique_ptr<char, ReleaseMemory> data_;
};

}  // namespace tutti::perf
