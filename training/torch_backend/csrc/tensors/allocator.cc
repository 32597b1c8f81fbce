#include "csrc/tensors/allocator.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <list>
#include <mutex>
#include <unordered_map>

#include "csrc/base/per_process.h"
#include "tutti/tutti.hpp"

namespace tutti_torch {

namespace {

class Blocks {
 public:
  void* take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    Block block = fitting(bytes);
    if (block.memory == nullptr) block = fresh(bytes);
    live_.emplace(block.memory, block.bytes);
    count_.live_bytes += block.bytes;
    count_.peak_live_bytes = std::max(count_.peak_live_bytes, count_.live_bytes);
    return block.memory;
  }

  void give_back(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(memory);
    if (found == live_.end()) return;  // of the process that this one was forked from
    count_.live_bytes -= found->second;
    count_.waiting_bytes += found->second;
    waiting_.push_back({memory, found->second});
    live_.erase(found);
    while (count_.live_bytes + count_.waiting_bytes > 2 * count_.peak_live_bytes) drop(waiting_.begin());
  }

  RegisteredMemory count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  struct Block {
    void* memory = nullptr;
    std::size_t bytes = 0;
  };
  using Waiting = std::list<Block>;  // the one that has waited longest in front; a handful

  Block fitting(std::size_t bytes) {
    auto best = waiting_.end();
    for (auto block = waiting_.begin(); block != waiting_.end(); ++block) {
      if (block->bytes < bytes || block->bytes / 2 > bytes) continue;
      if (best == waiting_.end() || block->bytes < best->bytes) best = block;
    }
    if (best == waiting_.end()) return {};
    const Block found = *best;
    waiting_.erase(best);
    count_.waiting_bytes -= found.bytes;
    return found;
  }

  Block fresh(std::size_t bytes) {
    for (;;) {
      try {
        return {tutti::allocate(bytes), bytes};
      } catch (const tutti::Error& error) {
        TORCH_CHECK_WITH(OutOfMemoryError, !waiting_.empty(), error.what());
        drop(waiting_.begin());
      }
    }
  }

  void drop(Waiting::iterator block) {
    count_.waiting_bytes -= block->bytes;
    tutti::deallocate(block->memory);
    waiting_.erase(block);
  }

  mutable std::mutex mutex_;
  std::unordered_map<void*, std::size_t> live_;  // guarded by mutex_
  Waiting waiting_;                              // guarded by mutex_
  RegisteredMemory count_;                       // guarded by mutex_
};

Blocks& blocks() { return per_process<Blocks>(); }

class RegisteredAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const memory = bytes == 0 ? nullptr : blocks().take(bytes);
    return {memory, memory, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  static void release(void* memory) {
    if (memory != nullptr) blocks().give_back(memory);
  }
};

}  // namespace

c10::Allocator* registered_allocator() {
  static auto* const allocator = new RegisteredAllocator;
  return allocator;
}

at::Tensor registered_empty(at::IntArrayRef sizes, at::ScalarType type) {
  return at::detail::empty_generic(sizes, registered_allocator(), c10::DispatchKeySet(c10::DispatchKey::CPU), type,
                                   c10::MemoryFormat::Contiguous);
}

RegisteredMemory registered_memory() { return blocks().count(); }

}  // namespace tutti_torch
