#include "training/memory/pool.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "tutti/tutti.hpp"

namespace tutti::training {
namespace {

constexpr std::size_t kGrain = 64;       // of tutti::allocate for small blocks
constexpr std::size_t kLargestFit = 2;   // times what was asked for
constexpr std::size_t kLargestHeld = 2;  // times the most that was live

struct Block {
  void* pointer;
  std::size_t bytes;
};

void deallocate_all(const std::vector<Block>& blocks) {
  for (const Block& block : blocks) deallocate(block.pointer);
}

}  // namespace

class RegisteredPool::Blocks {
 public:
  ~Blocks() { deallocate_all(waiting_); }

  Block take(std::size_t asked) {
    const bool possible = asked <= std::numeric_limits<std::size_t>::max() - kGrain;  // allocate() refuses the rest
    const std::size_t bytes = possible ? (asked + kGrain - 1) / kGrain * kGrain : asked;
    std::vector<Block> extra;
    {
      const std::scoped_lock lock(mutex_);
      ++stats_.taken;
      auto best = waiting_.end();
      for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
        if (it->bytes < bytes || it->bytes / kLargestFit > bytes) continue;
        if (best == waiting_.end() || it->bytes <= best->bytes) best = it;  // of equals the last, which caches may hold
      }
      if (best != waiting_.end()) {
        const Block block = *best;
        waiting_.erase(best);
        stats_.waiting_bytes -= block.bytes;
        now_live(block.bytes);
        return block;
      }
      ++stats_.allocated;
      now_live(bytes);  // before it is: what makes room for it goes first
      extra = past_limit();
    }
    deallocate_all(extra);
    return {allocate_or_trim(bytes), bytes};
  }

  void put(Block block) noexcept {
    std::vector<Block> extra;
    {
      const std::scoped_lock lock(mutex_);
      stats_.live_bytes -= block.bytes;
      if (closed_) {
        extra.push_back(block);
      } else {
        waiting_.push_back(block);
        stats_.waiting_bytes += block.bytes;
        extra = past_limit();
      }
    }
    deallocate_all(extra);
  }

  void trim(bool close) {
    std::vector<Block> all;
    {
      const std::scoped_lock lock(mutex_);
      all.swap(waiting_);
      stats_.waiting_bytes = 0;
      stats_.peak_live_bytes = stats_.live_bytes;
      closed_ = closed_ || close;
    }
    deallocate_all(all);
  }

  Stats stats() const {
    const std::scoped_lock lock(mutex_);
    return stats_;
  }

 private:
  void* allocate_or_trim(std::size_t bytes) {
    try {
      try {
        return allocate(bytes);
      } catch (const Error& error) {
        if (error.code() != Code::memory_limit || stats().waiting_bytes == 0) throw;
      }
      trim(/*close=*/false);
      return allocate(bytes);
    } catch (...) {
      const std::scoped_lock lock(mutex_);
      stats_.live_bytes -= bytes;
      stats_.peak_live_bytes = stats_.live_bytes;  // what there was no room for was not live
      throw;
    }
  }

  void now_live(std::size_t bytes) {
    stats_.live_bytes += bytes;
    stats_.peak_live_bytes = std::max(stats_.peak_live_bytes, stats_.live_bytes);
  }

  std::vector<Block> past_limit() {
    std::size_t held = stats_.live_bytes + stats_.waiting_bytes;
    auto end = waiting_.begin();
    for (; end != waiting_.end() && held > kLargestHeld * stats_.peak_live_bytes; ++end) {
      held -= end->bytes;
      stats_.waiting_bytes -= end->bytes;
    }
    std::vector<Block> extra(waiting_.begin(), end);
    waiting_.erase(waiting_.begin(), end);
    return extra;
  }

  mutable std::mutex mutex_;
  std::vector<Block> waiting_;  // in the order of release; some dozens at most, so they are searched one by one
  Stats stats_;
  bool closed_ = false;  // the pool is gone
};

std::shared_ptr<RegisteredPool> RegisteredPool::process() {
  struct Current {
    std::shared_ptr<RegisteredPool> pool;
    pid_t owner = 0;
  };
  // Never destroyed: tensors may be released by static destructors.
  static std::mutex* const mutex = new std::mutex;
  static Current* const current = new Current;
  const std::scoped_lock lock(*mutex);
  if (current->owner != getpid()) {
    // The parent's blocks are the parent's: forget them.
    if (current->pool) new std::shared_ptr<RegisteredPool>(std::move(current->pool));
    *current = {std::make_shared<RegisteredPool>(), getpid()};
  }
  return current->pool;
}

RegisteredPool::RegisteredPool() : blocks_(std::make_shared<Blocks>()) {}
RegisteredPool::~RegisteredPool() { blocks_->trim(/*close=*/true); }

std::shared_ptr<void> RegisteredPool::take(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const Block block = blocks_->take(bytes);
  return {block.pointer, [blocks = blocks_, block](void*) { blocks->put(block); }};
}

torch::Tensor RegisteredPool::empty(at::IntArrayRef sizes, torch::ScalarType type) {
  std::size_t bytes = c10::elementSize(type);
  for (std::int64_t size : sizes) bytes *= static_cast<std::size_t>(size);
  std::shared_ptr<void> block = take(bytes);
  void* pointer = block.get();
  return torch::from_blob(
      pointer, sizes, [block = std::move(block)](void*) mutable { block.reset(); }, type);
}

void RegisteredPool::trim() { blocks_->trim(/*close=*/false); }
RegisteredPool::Stats RegisteredPool::stats() const { return blocks_->stats(); }

}  // namespace tutti::training
