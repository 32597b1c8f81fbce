#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace tutti::executor {

/// A small array on the stack, or a large one on the heap: of what a step has for each range, rarely more than this.
template <class T>
class Scratchpad {
 public:
  explicit Scratchpad(std::size_t size) : size_(size) {
    if (size > kFew) heap_.resize(size);
  }
  T* data() { return size_ > kFew ? heap_.data() : stack_; }
  T& operator[](std::size_t i) { return data()[i]; }
  std::span<T> span() { return {data(), size_}; }

 private:
  static constexpr std::size_t kFew = 16;
  std::size_t size_;
  T stack_[kFew];
  std::vector<T> heap_;
};

}  // namespace tutti::executor
